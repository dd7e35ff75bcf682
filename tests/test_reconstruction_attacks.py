"""Study 02's attacks: candidate sets, one cell of each kind, verdicts and figures."""

import numpy as np
import pandas as pd
import pytest

from lib import data, figures, reconstruction, sweep
from lib import reconstruction_attacks as attacks

CELL = {
    "epsilon": 4.0,
    "theoretical_epsilon": 4.0,
    "delta": 1e-5,
    "sampling_rate": 0.5,
    "steps": 20,
    "noise_multiplier": 2.0,
    "prior_size": 4,
    "n_runs": 400,
    "n_train": 10,
    "hidden_units": 4,
    "learning_rate": 0.5,
    "clip_norm": 1.0,
}


def cell_rows(function, dataset=None, seed=0, **changes):
    cell = CELL | changes
    return function(cell, sweep.Streams(seed, cell), dataset)


@pytest.fixture(scope="module")
def digits():
    return data.load("mnist5k")


def test_idealised_rows_hold_rates_bound_and_pairs():
    rows = {row["attack"]: row for row in cell_rows(attacks.idealised)}
    assert list(rows) == list(attacks.ATTACKS)
    bound = reconstruction.success_bound(
        kappa=0.25, noise_multiplier=2.0, steps=20, sampling_rate=0.5
    )
    for row in rows.values():
        assert row["bound"] == bound
        assert row["success"] == row["n_correct"] / row["n_runs"]
        assert row["success_low"] <= row["success"] <= row["success_high"]
        difference = row["n_map_right_alone"] - row["n_right_alone"]
        assert rows["map"]["n_correct"] - row["n_correct"] == difference
    # Counting and posterior masses estimate one thing: within four standard errors.
    best = rows["map"]
    error = np.sqrt(best["success"] * (1 - best["success"]) / best["n_runs"])
    assert abs(best["mean_mass"] - best["success"]) < 4 * error


def test_network_attacks_beat_guessing_and_keep_below_the_bound(digits):
    rows = cell_rows(attacks.network, digits)
    again, other = cell_rows(attacks.network, digits), cell_rows(attacks.network, digits, seed=1)
    assert rows == again
    assert rows != other
    best = rows[-1]
    assert best["attack"] == "map"
    assert best["success_low"] > 0.25
    assert all(row["success_low"] <= row["bound"] for row in rows)
    assert 0 < best["squared_norm"] <= 1 + 1e-5
    assert -1 <= best["cosine"] <= 1


@pytest.mark.parametrize("kind", attacks.KINDS)
def test_candidate_sets(kind, digits):
    rest = np.arange(1000, 4000)
    images, labels = attacks.candidate_sets(kind, digits, rest, 6, 10, np.random.default_rng(0))
    assert images.shape == (60, *digits.train_images.shape[1:])
    by_set = labels.reshape(6, 10)
    if kind == "one image, every label":
        assert (by_set == np.arange(10)).all()
        sets = images.reshape(6, 10, -1)
        assert (sets == sets[:, :1]).all()
        return
    for a_set in images.reshape(6, 10, -1):
        assert len(np.unique(a_set, axis=0)) == 10
    pool = {
        image.tobytes(): label
        for image, label in zip(digits.train_images, digits.train_labels, strict=True)
    }
    true = np.array([pool[image.tobytes()] for image in images])
    if kind == "mislabelled":
        assert (labels != true).all()
    else:
        assert (labels == true).all()
    if kind == "one of each class":
        assert (by_set == np.arange(10)).all()


def test_exposed_sets_choose_and_count_on_different_runs(digits):
    rows = cell_rows(attacks.exposed, digits, kind="random", n_sets=3, n_runs=11)
    assert [row["candidate_set"] for row in rows] == [0, 1, 2]
    for row in rows:
        assert (row["n_choice"], row["n_runs"]) == (5, 6)
        assert 0 < row["mean_mass_choice"] <= 1
        assert row["success"] == row["n_correct"] / 6
        assert 0 < row["mean_mass"] <= 1
        assert row["mean_mass"] != row["mean_mass_choice"]


# ---------------------------------------------------------------------------------- verdicts


def attack_rows(success, *, n_runs=10_000, rates=(0.1, 1.0), mass=None, alone=(100, 100)):
    """Rows of every attack at ε = 4 and these rates, all with one success."""
    counts = {"n_runs": n_runs, "n_correct": round(success * n_runs)}
    half = 2 * np.sqrt(success * (1 - success) / n_runs)
    return pd.DataFrame(
        [
            {"epsilon": 4.0, "sampling_rate": rate, "steps": 100, "prior_size": 10, "attack": name}
            | counts
            | {"success": success, "success_low": success - half, "success_high": success + half}
            | {"mean_mass": mass or success, "mass_error": half / 4, "bound": 0.36}
            | {"n_map_right_alone": alone[0], "n_right_alone": alone[1]}
            | {"squared_norm": 0.9, "cosine": 0.1, "accuracy": 0.5}
            for rate in rates
            for name in attacks.ATTACKS
        ]
    )


def exposed_rows():
    return pd.DataFrame(
        [
            {"epsilon": 4.0, "sampling_rate": 1.0, "kind": kind, "candidate_set": i}
            | {"prior_size": 10, "n_runs": 100, "n_correct": 20 + i, "bound": 0.36}
            | {"success": 0.1, "mean_mass": 0.2 + i / 100, "mass_error": 0.01}
            | {"mean_mass_choice": 0.9 if (kind, i) == ("mislabelled", 0) else 0.2 + i / 100}
            for kind in attacks.KINDS
            for i in range(3)
        ]
    )


def tables(**changes):
    made = {
        "idealised": attack_rows(0.31, rates=(0.01, 0.1, 0.99, 1.0)),
        "network": attack_rows(0.30, alone=(300, 200)),
        "network_second": attack_rows(0.25, rates=(0.1,)),
        "exposed": exposed_rows(),
        "figure_5": pd.DataFrame(
            {"epsilon": 4.0, "steps": 100, "prior_size": 10}
            | {"sampling_rate": [0.01, 0.5, 0.99], "bound": [0.19, 0.34, 0.36]}
        ),
    }
    return made | changes


def verdict(made, start):
    (found,) = [row for row in attacks.verdicts(made) if row["claim"].startswith(start)]
    return found["verdict"]


def test_verdicts_follow_from_the_intervals():
    made = tables()
    assert verdict(made, "top-qT attack at ε = 4, q = 0.99") == "agrees"
    assert verdict(made, "top-qT attack at ε = 4, q = 0.01") == "differs: higher"
    assert verdict(made, "MAP less top qT, first") == "MAP is better"
    assert verdict(made, "MAP less top qT, second") == "not distinguishable"
    assert verdict(made, "success lost by the gradients, first dataset, ε = 4, q = 1") == (
        "at most 0.02"
    )
    assert verdict(made, "success lost by the gradients, second") == "above 0.02"
    worse = tables(network=attack_rows(0.30, alone=(200, 300)))
    assert verdict(worse, "MAP less top qT, first") == "differs: top qT is better"


def test_most_exposed_set_is_chosen_without_looking_at_its_count():
    summary = attacks.exposed_summary(tables())
    chosen = dict(zip(summary["candidates"], summary["chosen set"], strict=True))
    assert chosen == pytest.approx(
        {kind: 0.2 if kind == "mislabelled" else 0.22 for kind in attacks.KINDS}
    )
    (row,) = [row for row in attacks.verdicts(tables()) if row["claim"].startswith("most exposed")]
    assert row["ours"] == pytest.approx(0.2 / 0.36)
    assert row["high"] == pytest.approx((0.2 + 1.96 * 0.01) / 0.36, abs=1e-4)
    assert row["verdict"] == "agrees"


@pytest.mark.parametrize(
    ("mass", "verdict"),
    [(0.2, "agrees"), (0.35, "not distinguishable"), (0.5, "differs: above the bound")],
)
def test_exposed_set_agrees_only_if_its_interval_is_below_the_bound(mass, verdict):
    made = tables(exposed=exposed_rows().assign(mean_mass=mass))
    (row,) = [row for row in attacks.verdicts(made) if row["claim"].startswith("most exposed")]
    assert row["verdict"] == verdict


def test_one_number_of_candidates_is_drawn_too(tmp_path):
    figures.save(attacks.draw_prior_sizes(tables()), tmp_path / "one")


@pytest.mark.parametrize("name", attacks.FIGURES)
def test_figures_show_what_the_tables_hold(name, tmp_path):
    first = tables()
    first["idealised"] = pd.concat(
        [first["idealised"], first["idealised"].assign(prior_size=2, success=0.6)]
    )
    changed = {key: frame.copy() for key, frame in first.items()}
    for key in ("idealised", "network", "exposed"):
        changed[key]["success"] += 0.01
        changed[key]["mean_mass"] += 0.01
    drawn = [
        figures.save(attacks.FIGURES[name].draw(made), tmp_path / f"{i}")[0].read_bytes()
        for i, made in enumerate((first, first, changed))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
