"""Study 01's sweeps: their points, trends with intervals, verdicts and figure."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib import canaries, figures
from lib import one_run_sweeps as sweeps

PARAMETERS = SimpleNamespace(
    sweep_sampling_rate=0.1,
    sweep_n_canaries=[100, 1000],
    sweep_n_train=[50, 60],
    sweep_steps=[1, 10, 100],
    sweep_base=[500, 70, 20],
)


def tables(bound, *, scatter=0.05, n_runs=3, n_simulations=40, seed=0):
    """Sweeps whose bounds are ``bound(sweep, q, value)`` and ceilings the same, both scattered."""
    rng = np.random.default_rng(seed)
    audits, simulated = [], []
    for point in sweeps.points(PARAMETERS):
        value = point[sweeps.VARIED[point["sweep"]]]
        mean = bound(point["sweep"], point["sampling_rate"], value)
        common = {"epsilon": 8.0, "theoretical_epsilon": 8.0, "n_guesses": 9, "test_accuracy": 0.1}
        common |= {name: point[name] for name in ("n_canaries", "sampling_rate", "steps")}
        for score in canaries.SCORES:
            audits += [
                common
                | {"setting": point["sweep"], "score": score, "n_train": point["n_train"]}
                | {"run": run, "epsilon_lower_bound": mean + scatter * rng.standard_normal()}
                for run in range(n_runs)
            ]
        simulated += [
            common | {"epsilon_lower_bound": mean + scatter * rng.standard_normal()}
            for _ in range(n_simulations)
        ]
    # The images' sweep repeats one mechanism; its simulations are made once.
    ceiling = pd.DataFrame(simulated).drop_duplicates(
        ["n_canaries", "sampling_rate", "steps", "epsilon_lower_bound"]
    )
    return {"sweeps": pd.DataFrame(audits), "sweep_ceiling": ceiling}


def verdict(made, start):
    (found,) = [row for row in sweeps.verdicts(made) if row["claim"].startswith(start)]
    return found["verdict"]


def test_points_vary_one_thing_at_a_time():
    points = sweeps.points(PARAMETERS)
    assert len(points) == 2 * (2 + 2 + 3)
    base = dict(zip(sweeps.VARIED.values(), PARAMETERS.sweep_base, strict=True))
    for point in points:
        varied = sweeps.VARIED[point["sweep"]]
        assert all(point[name] == value for name, value in base.items() if name != varied)
    assert {point["sampling_rate"] for point in points} == {1.0, 0.1}


def test_change_by_hand():
    """Bounds 1, 2, 3 at 1, 10, 100: from first to last by 2, which is once their mean."""
    runs = pd.DataFrame(
        {
            "steps": [1, 10, 100],
            "epsilon": 8.0,
            "sampling_rate": 1.0,
            "n_canaries": 5,
            "epsilon_lower_bound": [1.0, 2.0, 3.0],
        }
    )
    # Each point's simulated audits have variance 2 · 0.1²: −0.1 and 0.1 about anything.
    ceilings = pd.concat([runs.assign(epsilon_lower_bound=x) for x in (-0.1, 0.1)])
    change, low, high = sweeps.relative_change(runs, "steps", ceilings)
    assert change == pytest.approx(1.0)
    # Slope times range is last less first: variance 2 · 0.02, over the mean 2.
    half = 1.959964 * np.sqrt(2 * 0.02) / 2
    assert (low, high) == pytest.approx((1 - half, 1 + half))


def test_interval_of_a_change_covers_it_as_often_as_it_says():
    """95 % intervals of a change of 0 cover it, within four standard errors."""
    covered = 0
    for seed in range(400):
        made = tables(lambda *_: 2.0, scatter=0.3, seed=seed)
        runs = made["sweeps"].query("setting == 'steps' and sampling_rate == 1")
        runs = runs[runs["score"] == canaries.BEST_SCORE]
        _, low, high = sweeps.relative_change(runs, "steps", made["sweep_ceiling"])
        covered += low <= 0 <= high
    assert abs(covered / 400 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 400)


def test_verdicts_follow_from_the_intervals():
    def as_theory_says(sweep, rate, value):
        if sweep == sweeps.CANARIES:
            return 1 + np.log10(value)
        return 2 + (0.5 * np.log10(value) if sweep == sweeps.STEPS and rate < 1 else 0)

    made = tables(as_theory_says, scatter=0.02)
    assert verdict(made, "white-box bound over canaries m, 100 to 1,000, q = 1") == "agrees"
    assert verdict(made, "white-box bound over ordinary images, 50 to 60, q = 0.1") == "agrees"
    assert verdict(made, "white-box bound over steps T, at constant ε, 1 to 100, q = 1") == "agrees"
    subsampled = "white-box bound over steps T, at constant ε, 1 to 100, q = 0.1"
    assert verdict(made, subsampled) == "differs: grows; for q < 1 the ceiling moves with T"
    assert verdict(made, "share of the ceiling, sweeps") == "at least 90%"
    falling = tables(lambda sweep, rate, value: 3 - 0.5 * np.log10(value), scatter=0.02)
    assert verdict(falling, "white-box bound over canaries m, 100 to 1,000, q = 1") == (
        "differs: falls"
    )
    vague = tables(lambda *_: 2.0, scatter=0.5)
    assert verdict(vague, "white-box bound over ordinary images, 50 to 60, q = 1") == (
        "not distinguishable"
    )
    nothing = tables(lambda *_: 0.0, scatter=0.0)
    assert verdict(nothing, "white-box bound over canaries m, 100 to 1,000, q = 1") == (
        "differs: no change"
    )


def test_summary_and_figure_hold_the_tables(tmp_path):
    first, second = tables(lambda *_: 2.0), tables(lambda *_: 2.5)
    summary = sweeps.summary(first)
    assert len(summary) == 14
    assert summary["bound"].to_numpy() == pytest.approx(2.0, abs=0.2)
    drawn = [
        figures.save(sweeps.FIGURES["sweeps"].draw(made), tmp_path / f"{i}")[0].read_bytes()
        for i, made in enumerate((first, first, second))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
