"""Study 01's black-box audits: their points, one cell, verdicts and figure."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib import canaries, data, figures, intervals, sweep
from lib import one_run_black_box as black_box

PARAMETERS = SimpleNamespace(
    dataset="mnist5k",
    black_box_n_canaries=[50, 200],
    black_box_n_train=[100],
    black_box_epsilons=[2.0, 8.0],
    black_box_base=[100, 10],
    black_box_share=0.1,
)
CELL = {
    "kind": "mislabelled",
    "setting": "canaries",
    "run": 0,
    "epsilon": 8.0,
    "theoretical_epsilon": 8.0,
    "delta": 1e-5,
    "sampling_rate": 1.0,
    "steps": 15,
    "noise_multiplier": 0.2,
    "significance": 0.05,
    "n_canaries": 60,
    "n_positive": 3,
    "n_negative": 3,
    "n_train": 0,
    "expected_batch_size": 30.0,
    "network": "small_cnn",
    "clip_norm": 1.0,
    "learning_rate": 1.0,
    "device": "cpu",
}


def audits(seed=0, **changes):
    cell = CELL | changes
    rows = black_box.black_box(cell, sweep.Streams(seed, cell), data.load("mnist5k"))
    return {row["score"]: row for row in rows}


def test_points_vary_one_thing_at_a_time_and_the_divisor_with_it():
    points = black_box.points(PARAMETERS)
    names = ("setting", "n_canaries", "n_train", "epsilon", "expected_batch_size")
    assert [tuple(point[name] for name in names) for point in points] == [
        ("base", 100, 0, 8.0, 50.0),
        ("canaries", 50, 0, 8.0, 25.0),
        ("canaries", 200, 0, 8.0, 100.0),
        ("images", 100, 100, 8.0, 150.0),
        ("epsilons", 100, 0, 2.0, 50.0),
        ("divisor", 100, 0, 8.0, 25.0),
        ("divisor", 100, 0, 8.0, 100.0),
        ("divisor", 100, 0, 8.0, 150.0),
    ]


def test_base_is_one_point_whatever_is_tried():
    """It was run once for each sweep, and each verdict then looked at one of them."""
    p = SimpleNamespace(**vars(PARAMETERS) | {"black_box_n_canaries": [100, 200]})
    points = pd.DataFrame(black_box.points(p))
    assert not points.drop(columns="setting").duplicated().any()


@pytest.mark.parametrize(("m", "share", "half"), [(100, 0.1, 5), (20, 0.01, 1), (21, 1.0, 10)])
def test_share_of_the_canaries_is_guessed(m, share, half):
    assert black_box._half(m, share) == half


def test_members_are_known_by_their_losses():
    """With little noise members have lost more of their loss: five runs, by four errors."""
    runs = [audits(seed, noise_multiplier=0.05) for seed in range(5)]
    error = np.sqrt(61 / (12 * 30 * 30) / len(runs))
    assert np.mean([rows["loss"]["area"] for rows in runs]) > 0.5 + 4 * error
    rows = runs[0]
    assert list(rows) == list(black_box.SCORES)
    # Nothing else was trained on, so that the reference is the network before training.
    assert rows["against_reference"] == rows["against_initial"] | {"score": "against_reference"}
    for row in rows.values():
        n_pairs = row["n_included"] * row["n_others"]
        assert row["area"] == row["n_pairs_in_order"] / n_pairs
        assert row["n_included"] + row["n_others"] == CELL["n_canaries"]
        assert row["n_false_at_1_percent"] <= 0.01 * row["n_others"]


def test_scores_know_nothing_of_the_coins_where_training_does_not():
    """No learning, and the areas scatter around one half: 20 runs within four standard errors."""
    areas = [
        audits(seed, learning_rate=1e-9, steps=1, noise_multiplier=1.0)["loss"]["area"]
        for seed in range(20)
    ]
    # The variance of an area without information is (n + 1)/(12·n₁·n₂).
    error = np.sqrt(61 / (12 * 30 * 30) / 20)
    assert abs(np.mean(areas) - 0.5) < 4 * error


def test_same_seed_same_rows_and_a_reference_of_its_own():
    few = {"n_canaries": 20, "n_positive": 1, "n_negative": 1, "n_train": 30, "steps": 3}
    few["expected_batch_size"] = 40.0
    rows, again, other = (audits(seed, kind="blank", **few) for seed in (0, 0, 1))
    assert rows == again
    assert rows != other
    assert rows["against_reference"]["area"] != rows["against_initial"]["area"]


def test_divisor_is_public_and_makes_the_step():
    """What the cell says, whatever the coins came to; a hundredfold one leaves next to no trace."""
    few = {"n_canaries": 20, "n_positive": 1, "n_negative": 1, "steps": 1}
    runs = [audits(seed, **few)["loss"] for seed in range(3)]
    assert len({row["n_included"] for row in runs}) > 1
    assert {row["expected_batch_size"] for row in runs} == {30.0}
    clear = {"noise_multiplier": 0.05, "steps": 15}
    near, far = (
        np.mean([audits(seed, **clear | change)["loss"]["area"] for seed in range(5)])
        for change in ({}, {"expected_batch_size": 3000.0})
    )
    assert near > far


# ---------------------------------------------------------------------------------- verdicts


def tables(area, bound, *, scatter=0.02, n_runs=10, seed=0):
    """Audits whose areas and bounds are functions of m, images and divisor; a ceiling of 1.6."""
    rng = np.random.default_rng(seed)
    rows, simulated = [], []
    for point in black_box.points(PARAMETERS):
        common = point | {"sampling_rate": 1.0, "n_guesses": 10, "n_included": 50, "n_others": 50}
        common |= {f"n_{kind}_at_{name}": 1 for kind in ("true", "false") for name in ROC}
        at = tuple(point[name] for name in ("n_canaries", "n_train", "expected_batch_size"))
        for kind in canaries.IMAGE_KINDS:
            for score in black_box.SCORES:
                noise = scatter * rng.standard_normal((n_runs, 2))
                rows += [
                    common
                    | {"kind": kind, "score": score, "run": run}
                    | {"area": area(*at) + x, "epsilon_lower_bound": max(0, bound(*at) + y)}
                    for run, (x, y) in enumerate(noise)
                ]
        simulated += [common | {"epsilon_lower_bound": 1.6 + 0.2 * x} for x in (-1, 0, 1)]
    ceiling = pd.DataFrame(simulated).drop_duplicates(
        ["n_canaries", "epsilon", "epsilon_lower_bound"]
    )
    return {"black_box": pd.DataFrame(rows), "black_box_ceiling": ceiling}


ROC = black_box.LOW_RATES


def verdict(made, start):
    (found,) = [row for row in black_box.verdicts(made) if row["claim"].startswith(start)]
    return found["verdict"]


CANARIES = "200 against 100 canaries at one divisor"
IMAGES = "100 against 0 ordinary images at one divisor"
AREA, BOUND = (
    f"black-box {what} with blank canaries, with a reference" for what in ("AUC", "bound")
)
ALONE = "black-box AUC with blank canaries, loss alone"
OVER_CEILING = "black-box bound with blank canaries over the white-box ceiling"


def test_verdicts_follow_from_the_intervals():
    like_the_paper = tables(
        lambda m, n, d: 0.7 - m / 1000 - n / 1000, lambda m, n, d: 0.6 - m / 1000 - n / 1000
    )
    for claim in (f"{BOUND}: {CANARIES}", *(f"{each}: {IMAGES}" for each in (AREA, BOUND, ALONE))):
        assert verdict(like_the_paper, claim) == "agrees"
    assert verdict(like_the_paper, f"{AREA}: {CANARIES}") == "falls"
    assert verdict(like_the_paper, OVER_CEILING) == "agrees"
    unlike = tables(lambda m, n, d: 0.5 + m / 1000 + n / 1000, lambda m, n, d: 1.0 + m / 200)
    assert verdict(unlike, f"{AREA}: {CANARIES}") == "grows"
    assert verdict(unlike, f"{BOUND}: {CANARIES}") == "differs: grows"
    assert verdict(unlike, f"{AREA}: {IMAGES}") == "differs: grows"
    nothing = tables(lambda m, n, d: 0.5, lambda m, n, d: 0.0, scatter=0.0)
    assert verdict(nothing, f"{AREA}: {CANARIES}") == "not distinguishable"
    assert verdict(nothing, f"{BOUND}: {IMAGES}") == "not distinguishable"


def test_what_the_divisor_does_is_not_put_down_to_images_or_canaries():
    """The published verdict once was: a fall with the divisor alone "agreed" with the paper."""
    made = tables(lambda m, n, d: 0.9 - d / 500, lambda m, n, d: 1.0 - d / 500)
    for score in (AREA, BOUND, ALONE):
        assert verdict(made, f"{score}: {IMAGES}") == "not distinguishable"
        assert verdict(made, f"{score}: the divisor of 100 ordinary images alone") == "falls"
    assert verdict(made, f"{BOUND}: {CANARIES}") == "not distinguishable"
    assert verdict(made, f"{BOUND}: the divisor of 200 canaries alone") == "falls"


def test_share_of_the_ceiling_scatters_as_the_simulated_audits():
    """The text said so while the interval was made of the runs' own, smaller scatter."""
    made = tables(lambda m, n, d: 0.6, lambda m, n, d: 0.3)
    (row,) = [row for row in black_box.verdicts(made) if row["claim"].startswith(OVER_CEILING)]
    audits, ceiling = made["black_box"], made["black_box_ceiling"]
    runs = audits[
        (audits["kind"] == "blank")
        & (audits["setting"] == "base")
        & (audits["score"] == black_box.BEST_SCORE)
    ]
    at = (ceiling["n_canaries"] == 100) & (ceiling["epsilon"] == 8)
    simulated = ceiling.loc[at, "epsilon_lower_bound"]
    expected = intervals.mean_interval(runs["epsilon_lower_bound"], simulated)
    assert [row["ours"], row["low"], row["high"]] == pytest.approx(
        [each / simulated.mean() for each in expected]
    )


def test_summary_has_means_with_their_intervals_over_runs():
    made = tables(lambda m, n, d: 0.6, lambda m, n, d: 0.3)
    summary = black_box.summary(made)
    # The base is in each of the four sweeps.
    assert len(summary) == 2 * (len(black_box.points(PARAMETERS)) + 3)
    runs = made["black_box"]
    first = runs[
        (runs["kind"] == "mislabelled")
        & (runs["setting"] == "canaries")
        & (runs["n_canaries"] == 50)
        & (runs["score"] == black_box.BEST_SCORE)
    ]
    expected = intervals.mean_interval(first["area"], first["area"])
    assert summary.loc[0, ["AUC", "low", "high"]].tolist() == pytest.approx(list(expected))
    assert summary.loc[0, "TPR at FPR ≤ 1.0%"] == pytest.approx(1 / 50)


def test_figure_shows_what_the_tables_hold(tmp_path):
    first, second = (
        tables(lambda m, n, d, top=top: top - m / 1000, lambda m, n, d: 0.5) for top in (0.6, 0.7)
    )
    drawn = [
        figures.save(black_box.draw_black_box(made), tmp_path / f"{i}")[0].read_bytes()
        for i, made in enumerate((first, first, second))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
