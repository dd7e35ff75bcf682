"""Study 02's reconstructed images: their cells, thresholds, verdicts and figures."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from lib import accounting, data, figures, intervals, reconstruction, sweep
from lib import reconstruction_images as images
from lib import tables as csv
from lib.errors import WorkbookError

PARAMETERS = SimpleNamespace(
    dataset="mnist5k",
    second_dataset="cifar10",
    delta=1e-5,
    image_epsilons=[1.0, 1e6],
    image_targets=5,
    image_shadow_models=40,
    image_known=10,
    image_steps=2,
)
SESSION = SimpleNamespace(p=PARAMETERS)


def small_dataset(*, n_train=60, n_test=6, shape=(6, 5, 3)):
    """Random images under a known name."""
    rng = np.random.default_rng(3)
    made = {}
    for split, n in (("train", n_train), ("test", n_test)):
        made[f"{split}_images"] = rng.integers(256, size=(n, *shape), dtype=np.uint8)
        made[f"{split}_labels"] = rng.integers(3, size=n)
    provenance = {"sha256": "made up"}
    return data.Dataset("mnist5k", **made, class_names=("a", "b", "c"), provenance=provenance)


def rows_of(function, cell, seed=0):
    return function(cell, sweep.Streams(seed, cell), small_dataset())


# ------------------------------------------------------------------------------------- cells


def test_cells_hold_noise_for_each_epsilon_also_where_it_protects_nothing():
    for name, cells in (
        ("mnist5k", images.reconstruction_cells(SESSION)),
        ("cifar10", images.second_reconstruction_cells(SESSION)),
    ):
        assert [cell["epsilon"] for cell in cells] == PARAMETERS.image_epsilons
        assert {cell["dataset"] for cell in cells} == {name}
        for cell in cells:
            found = accounting.gaussian_epsilon_of_rows(
                noise_multiplier=[cell["noise_multiplier"]], delta=[1e-5], steps=[2]
            )
            assert found == pytest.approx(cell["theoretical_epsilon"], rel=1e-9, abs=1e-6)
            assert 0.999 * cell["epsilon"] < cell["theoretical_epsilon"] <= cell["epsilon"]


def test_rows_fit_their_tables_and_repeat():
    cell = images.reconstruction_cells(SESSION)[1]
    rows = rows_of(images.reconstruct, cell)
    assert rows == rows_of(images.reconstruct, cell)
    assert rows != rows_of(images.reconstruct, cell, seed=1)
    others = rows_of(images.references, images.reference_cells(SESSION)[0])
    for name, made in (("image_reconstructions", rows), ("image_references", others)):
        content = csv.write(made, images.TABLES[name])
        frame, problems = csv.read(content, csv.schema(images.TABLES[name]))
        assert problems == []
        assert len(frame) == len(made)
    assert len(rows) == 2 * 5
    assert len(others) == 5
    # Nearly no noise: the gradients give every image away, and shown pixels are the original's.
    errors = {row["target"]: row["mean_squared_error"] for row in rows[:5]}
    assert max(errors.values()) < 0.01
    for row, original in zip(rows[: images.SHOWN], others, strict=False):
        found, truth = (
            images._from_text(each["pixels"], (6, 5, 3)).astype(float) for each in (row, original)
        )
        assert np.mean((found - truth) ** 2) / 255**2 == pytest.approx(
            row["mean_squared_error"], abs=1e-3
        )
    assert all((row["pixels"] is None) == (row["target"] >= images.SHOWN) for row in rows)


def test_errors_are_numbers_where_noise_drowns_everything():
    """Weights so large that gradients are exactly 0 made the search step by NaN."""
    (cell,) = images.reconstruction_cells(
        SimpleNamespace(
            p=SimpleNamespace(**vars(PARAMETERS) | {"image_epsilons": [0.01], "image_steps": 10})
        )
    )
    errors = [row["mean_squared_error"] for row in rows_of(images.reconstruct, cell)]
    assert np.isfinite(errors).all()


def test_targets_are_test_images_and_never_trained_on_elsewhere():
    cell, dataset = images.reconstruction_cells(SESSION)[0], small_dataset()
    inputs, labels, shadows, targets = images._points(cell, sweep.Streams(0, cell), dataset)
    expected = dataset.test_images[:5].reshape(5, -1) / 255
    assert inputs[targets] == pytest.approx(expected)
    assert inputs.dtype == np.float32
    assert (labels[targets] == dataset.test_labels[:5]).all()
    assert len(shadows) == 40
    assert len(inputs) == 10 + 40 + 5
    assert len(np.unique(inputs, axis=0)) == len(inputs)


def test_references_by_hand():
    dataset = small_dataset()
    row = rows_of(images.references, images.reference_cells(SESSION)[0])[2]
    target = dataset.test_images[2].ravel() / 255
    others = dataset.train_images.reshape(60, -1) / 255
    distances = ((others - target) ** 2).mean(axis=1)
    assert row["nearest_image"] == pytest.approx(distances.min())
    assert row["random_image"] == pytest.approx(distances.mean())
    uniform = np.random.default_rng(0).random((2, 100_000))
    assert row["random_vectors"] == pytest.approx(np.mean((uniform[0] - uniform[1]) ** 2), abs=2e-3)
    assert row["mean_image"] == pytest.approx(((others.mean(axis=0) - target) ** 2).mean())
    assert (row["height"], row["width"], row["channels"]) == (6, 5, 3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_targets": 7}, "image_targets = 7; allowed: at most 6"),
        ({"n_known": 21}, "image_known = 21 with image_shadow_models = 40; allowed: together"),
    ],
)
def test_more_images_than_there_are_is_refused(change, words):
    for cell, function in (
        (images.reconstruction_cells(SESSION)[0], images.reconstruct),
        (images.reference_cells(SESSION)[0], images.references),
    ):
        with pytest.raises(WorkbookError, match=words):
            rows_of(function, cell | change)


def test_pixels_survive_as_text():
    image = np.arange(12).reshape(2, 2, 3) / 11
    back = images._from_text(images._to_text(image.ravel()), (2, 2, 3))
    assert back == pytest.approx(image * 255, abs=0.5)
    grey = images._from_text(images._to_text(np.array([0, 0.5, 1, 1])), (2, 2, 1))
    assert grey.tolist() == [[0, 128], [255, 255]]


# ------------------------------------------------------------------------- noise and lower bound


def test_noise_by_formula_is_the_accountants_where_that_reaches():
    for epsilon in (1.0, 8.0):
        exact = accounting.gaussian_noise_multiplier(epsilon=epsilon, delta=1e-5, steps=4)
        rounded = accounting.noise_multiplier(
            epsilon=epsilon, delta=1e-5, sampling_rate=1.0, steps=4
        )
        assert exact == pytest.approx(rounded, rel=2e-4)
        assert exact <= rounded
    with pytest.raises(WorkbookError, match="epsilon = 0; allowed"):
        accounting.gaussian_noise_multiplier(epsilon=0, delta=1e-5, steps=4)
    with pytest.raises(WorkbookError, match="delta = 0; allowed"):
        accounting.gaussian_noise_multiplier(epsilon=1, delta=0, steps=4)


def test_lower_bound_by_hand():
    assert reconstruction.squared_error_bound(epsilon=np.log(2)) == pytest.approx(1 / 4)
    bounds = reconstruction.squared_error_bound(epsilon=np.array([np.log(5), 1e5]), diameter=2)
    assert bounds == pytest.approx([1 / 4, 0])
    with pytest.raises(WorkbookError, match="epsilon = 0"):
        reconstruction.squared_error_bound(epsilon=0.0)


# ---------------------------------------------------------------------------------- verdicts


def tables(
    from_gradients,
    from_model,
    *,
    epsilons=(1.0, 100.0, 1e4),
    scatter=0.1,
    n=12,
    second=None,
    seed=0,
):
    """Errors that are given functions of ε, scattered; the nearest image at 0.03."""
    rng = np.random.default_rng(seed)
    found, others = [], []
    for target in range(n):
        pixels = "00" * 4 if target < images.SHOWN else None
        row = {"dataset": "mnist", "target": target, "pixels": pixels}
        others.append(
            row
            | {"nearest_image": 0.03, "random_image": 0.14, "mean_image": 0.07}
            | {"random_vectors": 1 / 6}
            | {"height": 2, "width": 2, "channels": 1}
        )
        found += [
            row
            | {
                "epsilon": epsilon,
                "attack": attack,
                "error_bound": float(reconstruction.squared_error_bound(epsilon=epsilon)),
                "mean_squared_error": error(epsilon) * np.exp(scatter * rng.standard_normal()),
            }
            for epsilon in epsilons
            for attack, error in zip(images.ATTACKS, (from_gradients, from_model), strict=True)
        ]
    made = {"image_reconstructions": pd.DataFrame(found), "image_references": pd.DataFrame(others)}
    made |= {name + images.SECOND: frame.copy() for name, frame in made.items()}
    if second:
        for name in ("image_reconstructions", "image_references"):
            made[name + images.SECOND]["dataset"] = second
    return made


def verdict(made, start):
    (found,) = [row for row in images.verdicts(made) if row["claim"].startswith(start)]
    return found


NEAREST = "smallest ε at which an image is closer than the nearest"


def power(scale, exponent):
    return lambda epsilon: scale * epsilon**exponent


def test_verdicts_follow_from_the_intervals():
    """As the paper says: 0.5, 0.05, 0.005 from the gradients, the mean image from the model."""
    made = tables(power(0.5, -0.5), power(0.07, 0.0))
    trend = verdict(made, "error of images from the gradients")
    assert trend["verdict"] == "agrees"
    assert trend["low"] < -0.5 < trend["high"]
    assert verdict(made, "error of images from the final")["verdict"] == "not distinguishable"
    smallest = verdict(made, "error from the gradients over error from the model, ε = 1,")
    assert smallest["verdict"] == "larger"
    assert smallest["paper"] == "none given"
    largest = verdict(made, "error from the gradients over error from the model, ε = 10000")
    assert largest["ours"] == pytest.approx(0.005 / 0.07, rel=0.15)
    assert largest["verdict"] == "agrees"
    near = verdict(made, NEAREST)
    assert (near["ours"], near["verdict"]) == (1e4, "agrees")  # after 100: may be below 1,000
    begins = verdict(made, "smallest ε at which an image is closer than the mean")
    assert (begins["ours"], begins["verdict"]) == (100, "by gradients")
    assert verdict(made, "error from the model over that of the mean")["verdict"] == "agrees"
    # At ε = 1 the bound is 0.145: above the mean image's error, below that from the gradients.
    assert verdict(made, "mean errors below")["verdict"] == "differs: model at ε = 1"


def test_a_threshold_is_crossed_only_beyond_what_the_best_of_many_tries_would_do_by_chance():
    """Errors scattered about the mean image's: few runs may say that any ε beats it."""
    wrong = 0
    for seed in range(200):
        made = tables(power(0.07, 0), power(0.07, 0), scatter=0.3, seed=seed)
        begins = verdict(made, "smallest ε at which an image is closer than the mean")
        wrong += begins["verdict"] != "never"
    assert wrong <= 12  # 2.5 % are allowed, since one side counts; 12 are exceeded once in 1,000


def test_verdicts_say_where_the_paper_is_not_confirmed():
    rising = tables(power(0.001, 0.25), power(0.001, 0.0))
    assert verdict(rising, "error of images from the gradients")["verdict"] == "differs: grows"
    assert verdict(rising, NEAREST)["verdict"] == "differs: from a smaller ε on"
    largest = "error from the gradients over error from the model, ε = 10000"
    assert verdict(rising, largest)["verdict"] == "differs: larger"
    assert verdict(rising, "error from the model over that")["verdict"].startswith("differs: smal")
    never = tables(power(0.2, 0.0), power(0.3, 0.0))
    begins = verdict(never, "smallest ε at which an image is closer than the mean")
    assert (begins["ours"], begins["verdict"]) == (1e4, "never")
    assert verdict(never, NEAREST)["verdict"] == "differs: not up to ε = 10000"
    assert verdict(never, largest)["verdict"] == "differs: smaller; not surely by ten times"
    assert verdict(never, "mean errors below")["verdict"] == "agrees"


def test_second_dataset_counts_only_if_it_is_another_one():
    same, other = (
        tables(power(0.5, -0.5), power(0.07, 0), second=name) for name in (None, "cifar10")
    )
    assert len(images.verdicts(other)) == 2 * len(images.verdicts(same))
    assert len(images.summary(other)) == 2 * len(images.summary(same)) == 2 * 6
    claims = [row["claim"] for row in images.verdicts(other)]
    assert len(set(claims)) == len(claims)


def test_ratio_by_hand_and_coverage():
    """Ratios 2 and 8: geometric mean 4; the interval is Student's on logarithms."""
    middle, low, high = images.ratio_interval(pd.Series([2.0, 8.0]), pd.Series([1.0, 1.0]))
    assert middle == pytest.approx(4)
    assert (low, high) == pytest.approx((4 / 2**12.706204736, 4 * 2**12.706204736), rel=1e-6)
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        ratios = np.exp(0.3 + rng.standard_normal(10))
        _, low, high = images.ratio_interval(ratios, np.ones(10))
        covered += low <= np.exp(0.3) <= high
    low, high = intervals.rate_interval(covered, 400, confidence=0.999)
    assert low <= 0.95 <= high


def test_summary_holds_means_intervals_and_thresholds():
    summary = images.summary(tables(power(0.5, -0.5), power(0.07, 0.0))).set_index(["ε", "attack"])
    row = summary.loc[(1e4, "from the gradients")]
    assert row["low"] < row["error"] < row["high"]
    assert row["error"] == pytest.approx(0.005, rel=0.2)
    assert row["nearest image"] == pytest.approx(0.03)
    assert (row["below nearest"], row["targets"]) == (12, 12)


@pytest.mark.parametrize("second", [None, "cifar10"])
@pytest.mark.parametrize("name", images.FIGURES)
def test_figures_hold_the_tables(name, second, tmp_path):
    first = tables(power(0.5, -0.5), power(0.07, 0.0), second=second)
    changed = tables(power(0.5, -0.4), power(0.07, 0.0), second=second)
    changed["image_reconstructions"].loc[0, "pixels"] = "ff" * 4
    drawn = [
        figures.save(images.FIGURES[name].draw(made), tmp_path / f"{i}")[0].read_bytes()
        for i, made in enumerate((first, first, changed))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
