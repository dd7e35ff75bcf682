"""Study 01 beyond the paper: audits by curves, and the audit from many runs."""

import numpy as np
import pandas as pd
import pytest

from lib import accounting, canaries, figures, one_run, sweep, trade_off
from lib import one_run_beyond as beyond

CELL = {
    "epsilon": 8.0,
    "theoretical_epsilon": 8.0,
    "delta": 1e-5,
    "significance": 0.05,
    "steps": 50,
    "n_canaries": 10_000,
    "n_guesses": [200, 400, 800],
}


def noise(epsilon, sampling_rate=1.0):
    return accounting.noise_multiplier(
        epsilon=epsilon, delta=1e-5, sampling_rate=sampling_rate, steps=50
    )


def ceiling(**changes):
    cell = CELL | {"sampling_rate": 1.0, "noise_multiplier": noise(8.0)} | changes
    return beyond.curve_ceiling(cell, sweep.Streams(0, cell), None)


@pytest.fixture(scope="module")
def full_batch():
    return pd.DataFrame(ceiling(n_simulations=5))


@pytest.fixture(scope="module")
def subsampled():
    return pd.DataFrame(
        ceiling(
            sampling_rate=0.1, noise_multiplier=noise(8.0, 0.1), n_guesses=[400], n_simulations=2
        )
    )


def test_honest_audits_of_full_batches_reach_what_they_should(full_batch):
    """m = 10⁴, ε = 8, 200 to 800 guesses, five audits each."""
    means = full_batch.groupby("n_guesses")[["epsilon_lower_bound", "gaussian_epsilon"]].mean()
    assert (means["epsilon_lower_bound"] >= 3.5).all()
    assert (means["gaussian_epsilon"] >= 4.5).all()
    assert full_batch["subsampled_epsilon"].isna().all()
    assert (full_batch["guesses"] == "mixed").all()
    assert (full_batch["n_positive"] == full_batch["n_negative"]).all()


def test_exact_curves_of_subsampling_say_more_and_stay_below_the_truth(subsampled):
    assert (subsampled["guesses"] == "positive").all()
    for row in subsampled.to_dict("records"):
        in_order = ["epsilon_lower_bound", "gaussian_epsilon", "subsampled_epsilon"]
        assert row[in_order[0]] < row[in_order[1]] < row[in_order[2]] < 8.0
        counts = {name: row[name] for name in ("n_canaries", "n_guesses", "n_correct", "delta")}
        assert row["subsampled_epsilon"] == one_run.epsilon_lower_bound(
            **counts,
            method="fdp",
            family=trade_off.SubsampledGaussian(0.1, 50),
            guesses="positive",
        )


def many(**changes):
    cell = {name: value for name, value in CELL.items() if name not in ("n_canaries", "n_guesses")}
    cell |= {"sampling_rate": 1.0, "noise_multiplier": noise(8.0)} | changes
    return pd.DataFrame(beyond.many_runs(cell, sweep.Streams(0, cell), None))


def test_many_runs_are_false_seldom_enough_and_their_threshold_is_settled_before():
    """2,000 audits at ε = 1: more than 131 false ones come once in 1,000 times."""
    rows = many(
        epsilon=1.0,
        theoretical_epsilon=1.0,
        noise_multiplier=noise(1.0),
        n_runs=[20, 2000],
        n_simulations=2000,
    )
    for _, audits in rows.groupby("n_runs"):
        assert audits["threshold"].nunique() == 1
        assert (audits["epsilon_lower_bound"] > 1.0).sum() <= 131


def test_errors_of_many_runs_are_the_gaussian_mechanisms():
    """The sum of T releases is N(0, T·σ²) without the canary, N(T, T·σ²) with it."""
    rows = many(n_runs=[20_000], n_simulations=20)
    sigma, steps, rng = noise(8.0), 50, np.random.default_rng(0)
    threshold = rows["threshold"].iloc[0] * sigma * np.sqrt(steps)
    sums = np.array([0, steps])[:, None] + sigma * np.sqrt(steps) * rng.standard_normal(
        (2, 200_000)
    )
    rates = ((sums > threshold)[0].mean(), (sums <= threshold)[1].mean())
    seen = rows[["n_wrong_first", "n_wrong_second"]].sum() / 200_000
    for rate, expected in zip(seen, rates, strict=True):
        assert abs(rate - expected) <= 4 * np.sqrt(2 * max(expected, 1e-5) / 200_000)


def test_more_runs_say_more():
    means = many(n_runs=[10, 100, 1000, 10_000], n_simulations=20)
    means = means.groupby("n_runs")["epsilon_lower_bound"].mean()
    assert means.iloc[0] < means.iloc[1] < means.iloc[2] < means.iloc[3] < 8.0


@pytest.fixture(scope="module")
def tables(full_batch, subsampled):
    simulated = pd.concat([full_batch, subsampled], ignore_index=True)
    simulated["subsampled_epsilon"] = simulated["subsampled_epsilon"].astype(float)
    trained = simulated.copy()
    values = ["epsilon_lower_bound", *beyond.CURVES]
    trained[values] = trained[values] * 1.01
    runs = many(n_runs=[10, 1000, 100_000], n_simulations=5)
    return {"curve_audits": trained, "curve_ceiling": simulated, "many_runs": runs}


def test_verdicts_follow_from_the_tables(tables):
    verdicts = {row["claim"]: row for row in beyond.verdicts(tables)}
    gain = verdicts["what curves add to the same guesses, q = 1"]
    means = (
        tables["curve_audits"]
        .query("sampling_rate == 1")[["gaussian_epsilon", "epsilon_lower_bound"]]
        .mean()
    )
    assert gain["ours"] == pytest.approx(means.iloc[0] / means.iloc[1])
    assert gain["verdict"] == "curves say more"
    share = verdicts["share of the ceiling, audits by curves, q = 0.1"]
    assert share["ours"] == pytest.approx(1.01)
    saved = verdicts["training runs that one run replaces, full batch, ε = 8"]
    assert (saved["ours"], saved["low"], saved["high"]) == (1000, None, None)
    assert saved["verdict"] == "more than 1,000, at most 100,000"
    assert "only 10, 1,000 and 100,000 were tried" in saved["reason"]
    reached = [row for claim, row in verdicts.items() if claim.startswith("full batch, ε = 8")]
    assert [row["verdict"] for row in reached] == ["reached", "reached"]
    lower = {name: tables[name].assign(epsilon_lower_bound=3.0) for name in tables}
    verdict = {row["claim"]: row["verdict"] for row in beyond.verdicts(lower)}
    assert verdict[reached[0]["claim"]] == "not reached"


def test_nothing_is_claimed_where_there_is_nothing(tables):
    columns = dict.fromkeys(["epsilon_lower_bound", *beyond.CURVES], 0.0)
    empty = {name: frame.assign(**columns) for name, frame in tables.items()}
    claims = [row["claim"] for row in beyond.verdicts(empty)]
    assert not any(claim.startswith("what curves add") for claim in claims)


@pytest.mark.parametrize("name", beyond.FIGURES)
def test_figures_show_what_the_tables_hold(tables, name, tmp_path):
    changed = {key: frame.assign(epsilon_lower_bound=1.0) for key, frame in tables.items()}
    drawn = [
        figures.save(beyond.FIGURES[name].draw(made), tmp_path / f"{i}")[0].read_bytes()
        for i, made in enumerate((tables, tables, changed))
    ]
    assert drawn[0] == drawn[1] != drawn[2]


def test_best_score_is_one_of_the_scores():
    assert canaries.BEST_SCORE in canaries.SCORES
