"""Study 02's bounds: cells against closed forms, verdicts, figures."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lib import data, figures, reconstruction, sweep
from lib import reconstruction_bounds as bounds

BASE = {"epsilon": 4.0, "delta": 1e-5, "sampling_rate": 1.0, "steps": 10}
PARAMETERS = SimpleNamespace(
    delta=1e-5,
    steps=10,
    n_bound_rates=3,
    bound_epsilons=[1.0, 4.0, 16.0],
    bound_steps=[2, 10],
    bound_sampling_rates=[0.5, 1.0],
    bound_prior_sizes=[2, 10],
    estimator_n_samples=[1000],
    estimator_repetitions=4,
    prior_n_images=60,
    prior_radii=[0.0, 9.0],
    second_prior_radii=[1.0],
)


def cell_rows(function, loaded=None, **changes):
    cell = BASE | changes
    return pd.DataFrame(function(cell, sweep.Streams(0, cell), loaded))


def test_bounds_by_all_methods_for_full_batches():
    methods = ["pld", "gaussian", *bounds.RIVALS]
    rows = cell_rows(bounds.bounds, methods=methods, prior_sizes=[2, 10])
    assert rows["method"].unique().tolist() == methods
    wide = rows.pivot_table(index="prior_size", columns="method", values="bound")
    sigma = rows["noise_multiplier"].iloc[0]
    exact = stats.norm.cdf(stats.norm.ppf([1 / 2, 1 / 10]) + np.sqrt(10) / sigma)
    np.testing.assert_allclose(wide["gaussian"], exact, atol=1e-9)
    np.testing.assert_allclose(wide["pld"], exact, atol=5e-4)
    for rival in bounds.RIVALS:
        assert (wide[rival] >= wide["pld"] - 5e-4).all()


def test_closed_form_is_left_out_where_there_is_none():
    rows = cell_rows(
        bounds.bounds, methods=["pld", "gaussian"], prior_sizes=[10], sampling_rate=0.5
    )
    assert rows["method"].tolist() == ["pld"]


def test_estimates_stand_beside_the_exact_bound():
    options = {"method": "target_side", "prior_size": 10, "n_samples": 2000, "repetitions": 20}
    rows = cell_rows(bounds.estimator, **options)
    assert rows["bound"].nunique() == 1
    assert rows["estimate"].nunique() > 15  # repetitions are independent
    # 95 % intervals: all 20 cover but at most four, which chance exceeds once in 400.
    assert ((rows["low"] <= rows["bound"]) & (rows["high"] >= rows["bound_low"])).sum() >= 16


def test_prior_of_images():
    """Exact match of different images: at most 1/n and what 60 of them cannot rule out."""
    prior = {"dataset": "mnist5k", "n_images": 60, "epsilons": [4.0]}
    rows = pd.concat(
        [
            cell_rows(bounds.prior, data.load("mnist5k"), **prior, radius=radius)
            for radius in (0.0, 9.0, 40.0)
        ]
    )
    assert (rows["kappa_low"] <= rows["kappa_high"]).all()
    assert (rows["kappa_high"].diff().dropna() >= 0).all()
    assert rows["kappa_high"].iloc[-1] == 1  # no two images are further apart than 28
    expected = reconstruction.success_bound(
        kappa=rows["kappa_high"].iloc[0],
        noise_multiplier=rows["noise_multiplier"].iloc[0],
        steps=10,
        sampling_rate=1.0,
    )
    assert rows["bound"].iloc[0] == expected


def test_tiny_prior_needs_logarithms():
    row = cell_rows(bounds.tiny_prior, log_kappa=bounds.TINY_LOG_KAPPA).iloc[0]
    assert np.exp(bounds.TINY_LOG_KAPPA) == 0
    # Φ(−x) is about exp(−x²/2)/(x·√(2π)), so that the bound gains about x·√T/σ nats.
    x, shift = np.sqrt(-2 * bounds.TINY_LOG_KAPPA), np.sqrt(10) / row["noise_multiplier"]
    gain = row["log_bound"] - row["log_kappa"]
    assert gain == pytest.approx(x * shift - shift**2 / 2, rel=0.01)


def test_noise_by_renyi_divergences_gives_less_away():
    """σ = 2 for ε = 4, one full-batch release in ten: the accountants' order is what matters."""
    by = {
        accountant: cell_rows(bounds.calibration, accountant=accountant, prior_size=10).iloc[0]
        for accountant in (bounds.LOSSES, bounds.RENYI)
    }
    losses, renyi = by[bounds.LOSSES], by[bounds.RENYI]
    assert renyi["noise_multiplier"] > losses["noise_multiplier"]
    assert renyi["theoretical_epsilon"] < losses["theoretical_epsilon"] <= losses["epsilon"]
    assert renyi["bound"] < losses["bound"]


def test_cells_cover_every_point_once():
    session = SimpleNamespace(p=PARAMETERS)
    cells = bounds.bound_cells(session)
    keys = [(c["epsilon"], c["sampling_rate"], c["steps"]) for c in cells]
    assert len(keys) == len(set(keys)) == 3 * 2 + 2  # T = 10 at the middle ε is there already
    rates = [cell["sampling_rate"] for cell in bounds.figure_5_cells(session)]
    assert rates == [0.01, 0.5, 0.99]


# ---------------------------------------------------------------------------------- verdicts


def tables(*, figure_5=(0.195, 0.30, 0.345), rival=1.2, covered=20):
    points = [
        {"epsilon": epsilon, "sampling_rate": rate, "steps": 10, "prior_size": n}
        for epsilon in (1.0, 4.0, 16.0)
        for rate in (0.1, 1.0)
        for n in (2, 10)
    ]
    points += [point | {"steps": 20} for point in points if point["epsilon"] == 4.0]
    rows = [
        point
        | {"method": name, "bound": 0.5 * (rival if name != "pld" else 1) / point["prior_size"]}
        | {"bound_low": 0.4 / point["prior_size"]}
        for point in points
        for name in ("pld", *bounds.RIVALS)
    ]
    estimates = [
        {"sampling_rate": 1.0, "method": method, "n_samples": 1000, "repetition": i}
        | {"estimate": 0.31, "low": 0.2 if i < covered else 0.35, "high": 0.4}
        | {"bound": 0.3, "bound_low": 0.299}
        for method in ("monte_carlo", "target_side")
        for i in range(20)
    ]
    prior = [
        {"dataset": "mnist", "epsilon": epsilon, "radius": radius, "n_images": 60, "steps": 10}
        | {"kappa": k, "kappa_low": k / 2, "kappa_high": min(1, 2 * k), "bound": min(1, 3 * k)}
        for epsilon in (1.0, 4.0)
        for radius, k in ((0.0, 0.01), (9.0, 0.5))
    ]
    return {
        "figure_5": pd.DataFrame(
            {"sampling_rate": [0.01, 0.5, 0.99], "bound": figure_5, "bound_low": 0.0}
        ),
        "calibrations": pd.DataFrame(
            {"sampling_rate": [0.01, 0.99], "accountant": bounds.RENYI, "bound": [0.17, 0.338]}
        ),
        "bounds": pd.DataFrame(rows),
        "estimators": pd.DataFrame(estimates),
        "priors": pd.DataFrame(prior),
        "priors_second": pd.DataFrame(prior),
    }


def verdict(made, start):
    (found,) = [row for row in bounds.verdicts(made) if row["claim"].startswith(start)]
    return found["verdict"]


def test_verdicts_follow_from_the_numbers():
    made = tables()
    assert verdict(made, "bound at ε = 4, q = 0.01") == "agrees"
    assert verdict(made, "bound at ε = 4, q = 0.99") == "agrees"
    assert verdict(made, "smallest step of the bound") == "agrees"
    over_steps = "smallest change of the bound from one T to the next larger one"
    assert verdict(made, f"{over_steps}, ε constant, q = 0.1") == "never falls"
    made["bounds"].loc[made["bounds"]["steps"] == 20, "bound"] *= 0.9
    assert verdict(made, f"{over_steps}, ε constant, q = 0.1") == "falls"
    assert verdict(made, "largest ratio of the rival's bound to ours, Fano") == "agrees"
    other = tables(figure_5=(0.22, 0.21, 0.33), rival=0.9, covered=10)
    assert verdict(other, "bound at ε = 4, q = 0.01") == "differs: ours is looser"
    assert verdict(other, "bound at ε = 4, q = 0.99") == "differs: ours is tighter"
    assert verdict(other, "smallest step of the bound") == "differs: falls"
    assert verdict(other, "largest ratio of the rival's bound to ours, Fano").startswith("differs")
    intervals = [row for row in bounds.verdicts(other) if row["claim"].startswith("95 %")]
    assert [row["verdict"] for row in intervals] == ["below 95 %"] * 2
    assert [row["ours"] for row in intervals] == [0.5, 0.5]


def test_summary_has_a_column_for_each_method():
    summary = bounds.summary(tables())
    assert len(summary) == 6
    assert summary[bounds.METHOD_LABELS["pld"]].iloc[0] == pytest.approx(0.05)


@pytest.mark.parametrize("name", bounds.FIGURES)
def test_figures_show_what_the_tables_hold(name, tmp_path):
    first, second = tables(), tables()
    second["bounds"]["bound"] *= 0.9
    second["estimators"]["estimate"] += 0.01
    second["priors"]["kappa"] *= 0.9
    drawn = [
        figures.save(bounds.FIGURES[name].draw(made), tmp_path / f"{i}")[0].read_bytes()
        for i, made in enumerate((first, first, second))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
