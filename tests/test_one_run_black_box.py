"""Study 01's black-box audits: their points, one cell, verdicts and figure."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib import canaries, data, figures, intervals, sweep
from lib import one_run_black_box as black_box
from lib.errors import WorkbookError

PARAMETERS = SimpleNamespace(
    dataset="mnist5k",
    black_box_n_canaries=[50, 200],
    black_box_n_train=[0, 100],
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
    "network": "small_cnn",
    "clip_norm": 1.0,
    "learning_rate": 1.0,
    "device": "cpu",
}


def audits(seed=0, **changes):
    cell = CELL | changes
    rows = black_box.black_box(cell, sweep.Streams(seed, cell), data.load("mnist5k"))
    return {row["score"]: row for row in rows}


def test_points_vary_one_thing_at_a_time():
    points = black_box.points(PARAMETERS)
    assert len(points) == 6
    base = {"n_canaries": 100, "n_train": 0, "epsilon": 8.0, "steps": 10}
    for point in points:
        varied = black_box.VARIED[point["setting"]]
        assert all(point[name] == value for name, value in base.items() if name != varied)


@pytest.mark.parametrize(("m", "share", "half"), [(100, 0.1, 5), (20, 0.01, 1), (21, 1.0, 10)])
def test_share_of_the_canaries_is_guessed(m, share, half):
    assert black_box._half(m, share) == half


def test_more_images_than_there_are():
    session = SimpleNamespace(
        p=SimpleNamespace(**vars(PARAMETERS) | {"black_box_n_train": [0, 3901]}),
        dataset=data.load("mnist5k"),
    )
    with pytest.raises(WorkbookError, match="needs 4001 images; allowed: at most 4000"):
        black_box.plan_cells(session)


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
    rows, again, other = (audits(seed, kind="blank", **few) for seed in (0, 0, 1))
    assert rows == again
    assert rows != other
    assert rows["against_reference"]["area"] != rows["against_initial"]["area"]


def test_divisor_is_public():
    """Half of the canaries and all ordinary images, whatever the coins came to."""
    found = {
        (row["n_included"], row["expected_batch_size"])
        for seed in range(3)
        for row in audits(seed, n_canaries=20, n_positive=1, n_negative=1, steps=1).values()
    }
    assert len({included for included, _ in found}) > 1
    assert {size for _, size in found} == {10.0}


# ---------------------------------------------------------------------------------- verdicts


def tables(area, bound, *, scatter=0.02, n_runs=10, seed=0):
    """Audits whose areas and bounds are functions of m, images and ε, with a ceiling of 1.6."""
    rng = np.random.default_rng(seed)
    rows, simulated = [], []
    for point in black_box.points(PARAMETERS):
        common = point | {"sampling_rate": 1.0, "n_guesses": 10, "n_included": 50, "n_others": 50}
        common |= {f"n_{kind}_at_{name}": 1 for kind in ("true", "false") for name in ROC}
        at = point["n_canaries"], point["n_train"], point["epsilon"]
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


def test_verdicts_follow_from_the_intervals():
    like_the_paper = tables(
        lambda m, n, e: 0.7 - m / 1000 - n / 1000, lambda m, n, e: 0.6 - m / 1000 - n / 1000
    )
    area, bound = (
        f"black-box {what} with blank canaries, with a reference" for what in ("AUC", "bound")
    )
    alone = "black-box AUC with blank canaries, loss alone"
    assert verdict(like_the_paper, f"{area}, 50 to 200 canaries") == "falls"
    assert verdict(like_the_paper, f"{bound}, 100 to 200 canaries") == "agrees"
    assert verdict(like_the_paper, f"{area}, 0 to 100 ordinary images") == "agrees"
    assert verdict(like_the_paper, f"{bound}, 0 to 100 ordinary images") == "agrees"
    assert verdict(like_the_paper, f"{alone}, 0 to 100 ordinary images") == "agrees"
    over_ceiling = "black-box bound with blank canaries over the white-box ceiling"
    assert verdict(like_the_paper, over_ceiling) == "agrees"
    unlike = tables(lambda m, n, e: 0.5 + m / 1000 + n / 1000, lambda m, n, e: 1.0 + m / 200)
    assert verdict(unlike, f"{area}, 50 to 200 canaries") == "grows"
    assert verdict(unlike, f"{bound}, 100 to 200 canaries") == "differs: grows"
    assert verdict(unlike, f"{area}, 0 to 100 ordinary images") == "differs: grows"
    nothing = tables(lambda m, n, e: 0.5, lambda m, n, e: 0.0, scatter=0.0)
    assert verdict(nothing, f"{area}, 50 to 200 canaries") == "not distinguishable"
    assert verdict(nothing, f"{bound}, 0 to 100 ordinary images") == "not distinguishable"


def test_summary_has_means_with_their_intervals_over_runs():
    made = tables(lambda m, n, e: 0.6, lambda m, n, e: 0.3)
    summary = black_box.summary(made)
    assert len(summary) == 2 * len(black_box.points(PARAMETERS))
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
        tables(lambda m, n, e, top=top: top - m / 1000, lambda m, n, e: 0.5) for top in (0.6, 0.7)
    )
    drawn = [
        figures.save(black_box.draw_black_box(made), tmp_path / f"{i}")[0].read_bytes()
        for i, made in enumerate((first, first, second))
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
