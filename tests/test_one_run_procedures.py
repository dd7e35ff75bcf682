"""Study 01's procedures: false rates, the same bounds as lib.one_run, pairs, verdicts, figures."""

import itertools
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import special, stats

from lib import accounting, data, figures, one_run, sweep, tables, verification
from lib import one_run_procedures as procedures
from lib.errors import WorkbookError

TRUE_ACCURACY = special.expit(procedures.EPSILON)
N_AUDITS = 200
# All rates of this file together are outside their limits by chance once in 1,000 seeds.
SURE = 1e-3 / (2 * len(procedures.PROCEDURES))


def typed(name: str, rows: list[dict]) -> pd.DataFrame:
    """Rows as the study sees them: written and read again."""
    table = procedures.TABLES[name]
    frame, problems = tables.read(tables.write(rows, table), tables.schema(table))
    assert not problems
    return frame


def run(function, cell: dict, dataset=None, seed: int = 0) -> list[dict]:
    return function(cell, sweep.Streams(seed, cell), dataset)


@pytest.fixture(scope="module")
def tried():
    rows = [
        run(procedures.procedure, {"procedure": name, "n_audits": N_AUDITS})[0]
        for name in procedures.PROCEDURES
    ]
    return typed("procedures", rows)


# ---------------------------------------------------------------------------- false rates


def test_what_theory_allows_is_false_seldom_enough(tried):
    valid = tried[tried["valid"]]
    assert len(valid) == 15
    assert (valid["n_false"] <= stats.binom.ppf(1 - SURE, valid["n_audits"], 0.05)).all()
    assert (valid["rate_surely"] <= valid["allowed"]).all()
    # None of them gets there by claiming nothing, the silent mechanism apart.
    signal = valid[valid["epsilon"] > 0]
    assert (signal["mean_bound"] > 0.1).all()
    assert (valid["mean_bound"] < valid["epsilon"] + 0.02).all()


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        # Rates of 2,000 audits elsewhere; the rest is exact.
        ("best of 11 counts, uncorrected", 0.172),
        ("best of 11 counts, no signal", 0.191),
        ("biased coins, all 'out', fair formula", 1.0),
        ("Gaussian curve as a bound, 200 guesses", 0.73),
        ("Gaussian curve as a bound, everybody", 1.0),
        ("many runs, best threshold", 0.105),
    ],
)
def test_what_theory_does_not_allow_is_false_as_often_as_known(tried, name, rate):
    row = tried.set_index("procedure").loc[name]
    assert not row["valid"]
    assert pd.isna(row["allowed"])
    # The known rate is itself of 2,000 audits.
    spread = np.sqrt(rate * (1 - rate) * (1 / row["n_audits"] + 1 / 2000))
    margin = stats.norm.isf(SURE) * spread + 0.01
    assert abs(row["n_false"] / row["n_audits"] - rate) <= margin


def test_the_fair_formula_claims_two_of_biased_coins_and_silence(tried):
    claimed = tried.set_index("procedure").loc["biased coins, all 'out', fair formula"]
    assert claimed["epsilon"] == 0
    assert abs(claimed["mean_bound"] - 2.02) < 0.03


def exact_rate_of_everybody() -> float:
    """Chance that 1,000 responses refute their own ε, from the binomial distribution alone."""
    v = np.arange(procedures.M + 1)
    tail = stats.binom.sf(v - 1, procedures.M, TRUE_ACCURACY)
    return float(tail[tail < 0.05].max())


def exact_rate_of_twelve() -> float:
    """Chance that twelve confidences refute ε when taken for ten guesses, by all 4,096 cases."""
    rate = 0.0
    for right in itertools.product((0, 1), repeat=12):
        v = int(np.ceil(np.dot(right, [1.0] * 4 + [0.75] * 8)))
        chance = np.prod(np.where(right, TRUE_ACCURACY, 1 - TRUE_ACCURACY))
        rate += chance * (stats.binom.sf(v - 1, 10, TRUE_ACCURACY) < 0.05)
    return float(rate)


@pytest.mark.parametrize(
    ("name", "exact"),
    [
        ("everybody guessed", exact_rate_of_everybody),
        ("12 confidences, taken for 10 guesses", exact_rate_of_twelve),
    ],
)
def test_rates_that_can_be_computed_are_met(name, exact):
    (row,) = run(procedures.procedure, {"procedure": name, "n_audits": 5000})
    rate = exact()
    assert abs(row["n_false"] / 5000 - rate) <= stats.norm.isf(SURE) * np.sqrt(rate / 5000)
    assert (rate <= 0.05) == row["valid"]


# ------------------------------------------------------------- the same bounds as lib.one_run


@pytest.fixture(scope="module")
def audits():
    """Thirty audits' coins and scores, and what draws just these."""
    coins, scores = procedures.laplace(np.random.default_rng(5), 30)
    return coins, scores, lambda rng, n: (coins, scores)


def test_fixed_counts_are_those_of_audit(audits):
    coins, scores, draw = audits
    ours = procedures._fixed(draw, 100, 50, 1e-5)(None, 30)
    for bound, included, score in zip(ours, coins, scores, strict=True):
        rng = np.random.default_rng(0)
        assert bound == pytest.approx(
            one_run.audit(
                score, included, n_positive=100, n_negative=50, delta=1e-5, rng=rng
            ).epsilon_lower_bound,
            abs=1e-9,
        )


def test_the_corrected_grid_is_that_of_best_over_counts(audits):
    coins, scores, draw = audits
    counts = [(k, k) for k in procedures.GRID]
    ours = procedures._best_of_grid(draw, len(counts))(None, 30)
    for bound, included, score in zip(ours, coins, scores, strict=True):
        rng = np.random.default_rng(0)
        best = one_run.best_over_counts(score, included, counts=counts, delta=0.0, rng=rng)
        assert bound == pytest.approx(best.epsilon_lower_bound, abs=1e-9)
    assert (procedures._best_of_grid(draw, 1)(None, 30) >= ours).all()


def test_counts_from_the_scores_look_at_no_coin(audits):
    coins, scores, _ = audits
    seen = []

    def draw(rng, n):
        return seen[-1], scores

    rule = procedures._from_scores(draw, lambda: 1.5, 0.0)
    seen.append(coins)
    bounds = rule(None, 30)
    seen.append(~coins)  # every guess turns wrong, none turns into no guess
    assert (rule(None, 30) == 0).all()
    for bound, included, score in zip(bounds, coins, scores, strict=True):
        guessed = abs(score - 0.5) > 1.5
        right = (score > 0.5) == included
        assert bound == pytest.approx(
            one_run.epsilon_lower_bound(
                n_canaries=1000,
                n_guesses=int(guessed.sum()),
                n_correct=int((guessed & right).sum()),
                delta=0.0,
            ),
            abs=1e-9,
        )


def test_a_rule_that_guesses_nobody_says_nothing(audits):
    _, _, draw = audits
    assert (procedures._from_scores(draw, lambda: np.inf, 1e-5)(None, 30) == 0).all()


def test_confidences_are_the_evidence_of_laplace_scores():
    scores = np.array([-3.0, 0.0, 0.25, 0.5, 0.7, 1.0, 9.0])
    assert procedures.confidences(scores).tolist() == [-1, -1, -0.5, 0, 0.5, 1, 1]


# ------------------------------------------------------------------------------------- pairs


def planted(n_pairs=4, n_parameters=50, sampling_rate=1.0, noise_multiplier=2.0):
    return procedures.PairCanaries(
        n_pairs=n_pairs,
        n_parameters=n_parameters,
        clip_norm=3.0,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        coin_rng=np.random.default_rng(1),
        place_rng=np.random.default_rng(2),
        batch_rng=np.random.default_rng(3),
    )


def test_one_of_each_pair_pulls_along_the_pairs_own_coordinate():
    pairs = planted()
    gradient = pairs.gradient(0)
    signs = np.where(pairs.included[:, 0], 3.0, -3.0)
    assert (pairs.included.sum(axis=1) == 1).all()
    assert np.array_equal(gradient[pairs.places], signs)
    assert np.abs(gradient).sum() == 12  # nothing anywhere else


def test_canaries_are_sampled_like_examples():
    """The share of 20,000 canaries in a batch is within four deviations of q."""
    pairs = planted(n_pairs=20_000, n_parameters=20_000, sampling_rate=0.1)
    share = np.count_nonzero(pairs.gradient(0)) / 20_000
    assert abs(share - 0.1) <= 4 * np.sqrt(0.09 / 20_000)
    assert not np.array_equal(pairs.gradient(1), pairs.gradient(2))


def test_evidence_of_a_pair_by_hand():
    """For q = 1 the two hypotheses are N(C, σ²C²) and N(−C, σ²C²): the evidence is 2·y/σ²."""
    pairs, ordinary = planted(), np.linspace(-5, 5, 50)
    along = np.array([1.5, -0.5, 0.0, 2.0])
    release = ordinary.copy()
    release[pairs.places] += 3.0 * along
    for _ in range(2):
        pairs.observe(release, ordinary)
    scores = pairs.scores()
    assert np.allclose(scores[:, 0] - scores[:, 1], 2 * 2 * along / 2.0**2)


def test_evidence_of_a_subsampled_pair_is_the_ratio_of_its_densities():
    pairs = planted(sampling_rate=0.3)
    along = np.array([1.5, -0.5, 0.0, 2.0])
    release = np.zeros(50)
    release[pairs.places] = 3.0 * along
    pairs.observe(release, np.zeros(50))
    density = [
        0.7 * stats.norm.pdf(along, 0, 2) + 0.3 * stats.norm.pdf(along, sign, 2) for sign in (1, -1)
    ]
    scores = pairs.scores()
    assert np.allclose(scores[:, 0] - scores[:, 1], np.log(density[0] / density[1]))


def test_more_pairs_than_parameters_are_refused():
    with pytest.raises(WorkbookError, match="n_pairs = 60; allowed: 1 to 50"):
        planted(n_pairs=60)


PLAN = {
    "epsilon": 8.0,
    "delta": 1e-5,
    "sampling_rate": 1.0,
    "steps": 3,
    "significance": 0.05,
    "n_pairs": 3000,
    "n_simulations": 30,
}
TRAINING = {
    "n_train": 30,
    "network": "small_cnn",
    "clip_norm": 1.0,
    "learning_rate": 0.5,
    "device": "cpu",
}


@pytest.fixture(scope="module")
def pair_tables():
    plans = typed("pair_plans", run(procedures.pair_plan, PLAN))
    session = SimpleNamespace(
        tables={"pair_plans": plans},
        p=SimpleNamespace(**TRAINING, sweep_base=[3000, 30, 3], pair_runs=2),
    )
    (ceiling,) = procedures.pair_ceiling_cells(session)
    dataset = data.load("mnist5k")
    rows = [
        row
        for cell in procedures.pair_audit_cells(session)
        for row in run(procedures.pair_audit, cell, dataset)
    ]
    return {
        "pair_plans": plans,
        "pair_ceiling": typed("pair_ceiling", run(procedures.pair_ceiling, ceiling)),
        "pairs": typed("pairs", rows),
    }


def test_noise_is_accounted_for_replacement(pair_tables):
    """For q = 1 replacing is twice the sensitivity: the ε of half the noise under add/remove."""
    (plan,) = pair_tables["pair_plans"].to_dict("records")
    mechanism = {"delta": 1e-5, "sampling_rate": 1.0, "steps": 3}
    half = accounting.epsilon(noise_multiplier=plan["noise_multiplier"] / 2, **mechanism)
    assert plan["theoretical_epsilon"] == pytest.approx(half, rel=1e-3)
    assert 7.98 <= plan["theoretical_epsilon"] <= 8.0
    same_noise = accounting.epsilon(noise_multiplier=plan["noise_multiplier"], **mechanism)
    assert plan["add_remove_epsilon"] == pytest.approx(same_noise, abs=2e-6)


def test_trained_pairs_reach_their_ceiling_and_stay_below_the_truth(pair_tables):
    """Two runs' right guesses, within four deviations of the simulated ones'."""
    ceiling, trained = pair_tables["pair_ceiling"], pair_tables["pairs"]
    spread = ceiling["n_correct"].std() * np.sqrt(1 / len(trained) + 1 / len(ceiling))
    assert abs(trained["n_correct"].mean() - ceiling["n_correct"].mean()) <= 4 * spread
    assert (trained["n_guesses"] == pair_tables["pair_plans"]["n_guesses"][0]).all()
    assert (ceiling["epsilon_lower_bound"] < 8.0).all()


def trained_cell(pair_tables, **changes):
    plan = pair_tables["pair_plans"].drop(columns=["add_remove_epsilon", "n_simulations"])
    return plan.to_dict("records")[0] | TRAINING | {"run": 0} | changes


def test_a_trained_pair_is_told_as_often_as_a_gaussian_one(pair_tables):
    """Of all pairs Φ(√T/σ) are told right: 80 %, and within four deviations of it here."""
    cell = trained_cell(pair_tables, n_guesses=3000)
    (row,) = run(procedures.pair_audit, cell, data.load("mnist5k"))
    expected = stats.norm.cdf(np.sqrt(cell["steps"]) / cell["noise_multiplier"])
    deviation = np.sqrt(expected * (1 - expected) / 3000)
    assert abs(row["n_correct"] / 3000 - expected) <= 4 * deviation


def test_pairs_refute_the_add_remove_epsilon_of_their_noise(pair_tables):
    """What a bound by pairs may not be held against, and the verdict that says so."""
    (plan,) = pair_tables["pair_plans"].to_dict("records")
    many = plan | {"n_pairs": 30_000, "n_guesses": 1000, "n_simulations": 20}
    bounds = pd.DataFrame(run(procedures.pair_ceiling, many))["epsilon_lower_bound"]
    error = bounds.std() / np.sqrt(len(bounds))
    assert plan["add_remove_epsilon"] < bounds.mean() - 4 * error
    assert bounds.mean() < plan["theoretical_epsilon"]
    for shift, verdict in ((0.0, "not distinguishable"), (1.0, "agrees: it exceeds")):
        shifted = {name: pair_tables[name].copy() for name in ("pairs", "pair_ceiling")}
        shifted["pairs"]["epsilon_lower_bound"] = plan["add_remove_epsilon"] + shift
        made = made_verdicts(pair_tables | shifted)
        (row,) = [row for row in made if "over the add/remove ε" in row["claim"]]
        assert row["verdict"].startswith(verdict)
        assert row["ours"] == pytest.approx(1 + shift / plan["add_remove_epsilon"])


def test_training_again_gives_the_same_row(pair_tables):
    cell = trained_cell(pair_tables)
    rows = run(procedures.pair_audit, cell, data.load("mnist5k"))
    pd.testing.assert_frame_equal(typed("pairs", rows), pair_tables["pairs"].iloc[:1])


# ------------------------------------------------------------- cells, tables, verdicts, figures


def made_verdicts(pair_tables, changed=None):
    made = example_procedures()
    for name, value in (changed or {}).items():
        made.loc[made["procedure"] == name, "n_false"] = value
    counts = {"n_successes": made["n_false"].to_numpy(), "n_trials": made["n_audits"].to_numpy()}
    for column, end in (("rate_low", "lower"), ("rate_high", "upper")):
        made[column] = getattr(procedures.intervals, f"rate_{end}")(**counts)
    made["rate_surely"] = procedures.intervals.rate_lower(**counts, confidence=procedures.SURELY)
    return procedures.verdicts(pair_tables | {"procedures": made})


def example_procedures():
    """A table of 2,000 audits each, 60 of them false where theory allows the procedure."""
    rows = []
    for name, tried in procedures.PROCEDURES.items():
        n_false = 60 if tried.valid else 400
        row = {"procedure": name, "mechanism": tried.mechanism, "valid": tried.valid}
        row |= {"epsilon": tried.epsilon, "delta": tried.delta, "significance": 0.05}
        row |= {"n_audits": 2000, "n_false": n_false, "mean_bound": 0.7, "standard_error": 0.01}
        row |= {"rate_low": 0.0, "rate_high": 1.0, "rate_surely": 0.0}
        row |= {"allowed": 0.05 if tried.valid else None}
        rows.append(row)
    return typed("procedures", rows)


def test_verdicts_tell_an_honest_rate_from_a_false_one(pair_tables):
    honest, *others = made_verdicts(pair_tables)
    assert honest["verdict"] == "agrees"
    assert honest["ours"] == 0.03
    invalid = [row for row in others if row["paper"] == "nothing promised"]
    assert [row["verdict"] for row in invalid] == ["above 5 %"] * 7
    changed = {"everybody guessed": 300, "many runs, best threshold": 100}
    false, *others = made_verdicts(pair_tables, changed)
    assert false["verdict"] == "differs: more"
    assert "everybody guessed, 300 of 2000" in false["reason"]
    (unclear,) = [row for row in others if "best threshold" in row["claim"]]
    assert unclear["verdict"] == "not distinguishable from 5 %"


def test_verdicts_are_one_a_claim(pair_tables):
    claims = [row["claim"] for row in made_verdicts(pair_tables)]
    assert len(set(claims)) == len(claims) == 10


def test_rates_follow_from_their_counts(tried):
    recipes = {f.name: f.recipe for f in procedures.TABLES["procedures"].fields if f.recipe}
    assert set(recipes) == {"rate_low", "rate_high", "rate_surely"}
    for name, recipe in recipes.items():
        assert np.allclose(verification.recompute(tried, recipe), tried[name])


def test_a_dishonest_rate_breaks_the_claim_and_a_chance_one_does_not():
    """130 of 2,000 are within chance at 5 %; the interval of 95 % would not reach down to it."""
    made = example_procedures()
    (claim,) = procedures.TABLES["procedures"].claims
    recipes = {f.name: f.recipe for f in procedures.TABLES["procedures"].fields if f.recipe}
    for n_false, n_problems in ((130, 0), (160, 15)):
        made.loc[made["valid"], "n_false"] = n_false
        for name, recipe in recipes.items():
            made[name] = verification.recompute(made, recipe)
        assert (made.loc[made["valid"], "rate_low"] > 0.05).all()
        assert len(verification._claim_problems(made, claim, recipes)) == n_problems


def test_cells_are_one_a_procedure_and_one_a_mechanism():
    p = SimpleNamespace(
        n_simulated_audits=40,
        sweep_base=[3000, 30, 3],
        sweep_sampling_rate=0.1,
        pair_epsilons=[1.0, 8.0],
        delta=1e-5,
        significance=0.05,
        n_simulations=3,
    )
    session = SimpleNamespace(p=p)
    assert len(procedures.procedure_cells(session)) == len(procedures.PROCEDURES)
    mechanisms = [
        (cell["epsilon"], cell["sampling_rate"], cell["n_pairs"], cell["steps"])
        for cell in procedures.pair_plan_cells(session)
    ]
    assert set(mechanisms) == {(e, q, 3000, 3) for e in (1.0, 8.0) for q in (1.0, 0.1)}
    assert set(p.__dict__).issuperset(set(procedures.PARAMETERS) - {"pair_runs"})


def test_summaries_hold_what_the_tables_say(tried, pair_tables):
    summary = procedures.summary({"procedures": tried})
    assert summary["procedure"].tolist() == list(procedures.PROCEDURES)
    assert (summary["false rate"] * summary["of"]).round().tolist() == tried["n_false"].tolist()
    (row,) = procedures.pair_summary(pair_tables).to_dict("records")
    assert row["low"] <= row["bound"] <= row["high"]
    assert row["runs"] == 2
    assert row["of ceiling"] == pytest.approx(row["bound"] / row["ceiling"])


def test_figures_show_every_procedure_and_tell_valid_ones_by_marker(tried, pair_tables):
    made = pair_tables | {"procedures": tried}
    with figures.style():
        for figure in procedures.FIGURES.values():
            drawn = figure.draw({name: made[name] for name in figure.tables})
            drawn.draw_without_rendering()
        left = procedures.draw_procedures({"procedures": tried}).axes[0]
    assert [label.get_text() for label in left.get_yticklabels()] == list(procedures.PROCEDURES)
    shown = {
        line.get_marker(): set(line.get_ydata().astype(int))
        for line in left.lines
        if line.get_marker() in "os"
    }
    assert shown["o"] == {-i for i in tried.index[tried["valid"]]}
    assert shown["s"] == {-i for i in tried.index[~tried["valid"]]}
