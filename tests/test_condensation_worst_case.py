"""Study 03, the worst case: thresholds from pilots, bounds from counts, and the private score."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lib import audited_run, canaries, data, intervals, one_run, sweep
from lib import condensation_schemes as schemes
from lib import condensation_worst_case as worst
from lib.errors import WorkbookError

ORACLE = json.loads((Path(__file__).parent / "oracles" / "clopper_pearson.json").read_text())
CLAIM = {"delta": 1e-5, "significance": 0.05}


@pytest.fixture(scope="module")
def digits():
    return data.load("mnist5k")


def models(first, second, n_pilots=8):
    rows = [
        {"set": name, "pilot": i < n_pilots, "value": value, "score": worst.LOGIT}
        for name, values in ((worst.ONE, first), (worst.TWO, second))
        for i, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def test_threshold_lies_in_the_widest_gap_between_separate_pilots():
    assert worst.threshold_from_pilots([0.0, 1.0, 2.0], [7.0, 6.0, 9.0]) == (1, 4.0)
    assert worst.threshold_from_pilots([7.0, 6.0, 9.0], [0.0, 1.0, 2.0]) == (-1, -4.0)
    assert worst.threshold_from_pilots([3.0, 3.0], [3.0, 3.0]) == (1, 3.0)


def test_detection_of_separate_clouds_is_bounded_by_the_counts():
    """100 a side: 3.28, however far apart (B01: and the same with the sets swapped)."""
    rng = np.random.default_rng(0)
    low, high = rng.standard_normal(108), 50 + rng.standard_normal(108)
    for first, second in ((low, high), (high, low)):
        row = worst.detection(models(first, second), **CLAIM)
        assert row["detection_rate"] == 1
        assert row["epsilon_lower_bound"] == row["largest_bound"] == pytest.approx(3.28, abs=0.01)


def test_bounds_on_pure_noise_are_above_zero_seldom_enough():
    """400 audits of nothing at 5 %: more than 37 come once in 1,000 times."""
    rng = np.random.default_rng(0)
    above = sum(
        worst.detection(models(*rng.standard_normal((2, 208))), **CLAIM)["epsilon_lower_bound"] > 0
        for _ in range(400)
    )
    assert above <= 37


@pytest.mark.parametrize("row", ORACLE, ids=lambda row: f"{row['true_positives']}, {row['delta']}")
def test_bounds_from_counts_are_those_of_another_implementation(row):
    significance = 1 - row["confidence"]
    bound = one_run.epsilon_lower_bound_from_runs(
        n_first=row["n_nonmembers"],
        n_wrong_first=row["false_positives"],
        n_second=row["n_members"],
        n_wrong_second=row["n_members"] - row["true_positives"],
        delta=row["delta"],
        significance=significance,
    )
    assert bound == pytest.approx(row["epsilon_lower"], abs=1e-9)
    confidence = {"confidence": row["confidence"]}
    low = intervals.rate_lower(
        n_successes=row["true_positives"], n_trials=row["n_members"], **confidence
    )
    high = intervals.rate_upper(
        n_successes=row["false_positives"], n_trials=row["n_nonmembers"], **confidence
    )
    assert low == pytest.approx(row["tpr_lower"], abs=1e-9)
    assert high == pytest.approx(row["fpr_upper"], abs=1e-9)


@pytest.mark.parametrize(
    ("true_positives", "false_positives", "bound"), [(10, 1, 0.0), (100, 10, 1.488)]
)
def test_a_ratio_of_ten_is_worth_what_its_counts_are(true_positives, false_positives, bound):
    """B11: of 25,000 each, ln(TPR/FPR) is 2.303 in both; were trials independent, this holds."""
    found = one_run.epsilon_lower_bound_from_runs(
        n_first=25_000,
        n_wrong_first=false_positives,
        n_second=25_000,
        n_wrong_second=25_000 - true_positives,
        delta=0.0,
    )
    assert found == pytest.approx(bound, abs=5e-4)


def test_private_training_is_refuted_seldom_and_a_quarter_of_its_noise_always():
    """The cpu profile's mechanism and counts, releases drawn: 60 audits at 5 % refute a right
    claim of ε = 1 more than 8 times once in 400; with σ/4 the bound's mean is about 2.1.
    """
    mechanism = {"epsilon": 1.0, "sampling_rate": 0.01, "steps": 300} | CLAIM
    noise = audited_run.settle_noise(mechanism)
    rng = np.random.default_rng(0)
    for share, (fewest, most) in ((1.0, (0, 8)), (worst.QUARTER, (58, 60))):
        sigma = share * noise["noise_multiplier"]
        refuted = 0
        for _ in range(60):
            released = sigma * rng.standard_normal((2, 116, 300))
            released[1] += rng.random((116, 300)) < 0.01
            ratios = canaries.log_likelihood_ratio(
                released, noise_multiplier=sigma, sampling_rate=0.01
            )
            bound = worst.detection(models(*ratios.sum(2), n_pilots=16), **CLAIM)
            refuted += bound["epsilon_lower_bound"] > noise["theoretical_epsilon"]
        assert fewest <= refuted <= most


def test_a_small_pipeline_tells_d_from_d_prime_every_time(digits):
    """Six models a side, far apart: of equal ones they would be so once in 924 times. Two zeros
    look alike to a small network, so that the second image is the negative of one.
    """
    _, second = worst.neighbours(digits, 20)
    images = digits.train_images.copy()
    images[second] = 255 - images[second]
    changed = dataclasses.replace(digits, train_images=images)
    sizes = {"n_others": 20, "width": 8, "n_per_class": 3, "n_iterations": 40, "epochs": 40}
    scores = {
        name: [
            value(
                cell(scheme=schemes.DM_NOISE, set=name, number=n, real_batch=16, **sizes), changed
            )
            for n in range(6)
        ]
        for name in (worst.ONE, worst.TWO)
    }
    assert min(scores[worst.TWO]) > max(scores[worst.ONE]) + 0.5


def test_pilots_are_not_counted():
    rng = np.random.default_rng(0)
    values = rng.standard_normal((2, 30))
    row = worst.detection(models(*values), **CLAIM)
    assert (row["n_first"], row["n_second"], row["n_pilots"]) == (22, 22, 8)


def cell(**changes):
    made = {
        "scheme": schemes.SUBSET,
        "set": worst.TWO,
        "pilot": False,
        "number": 0,
        "n_others": 4,
        "width": 2,
        "n_per_class": 2,
        "epochs": 2,
        "learning_rate": 0.02,
        "n_test": 10,
        "device": "cpu",
        "n_iterations": 1,
        "real_batch": 4,
        "image_learning_rate": 1.0,
    }
    return made | changes


def private(noise, **changes):
    made = {
        "scheme": "DP-SGD",
        "noise_multiplier": noise,
        "clip_norm": 1.0,
        "sampling_rate": 0.5,
        "steps": 6,
        "private_learning_rate": 0.1,
        "expected_batch_size": 18.0,
    }
    return cell(**made, **changes)


def value(made, digits):
    (row,) = worst.model(made, sweep.Streams(0, made), digits)
    return row["value"]


@pytest.mark.parametrize("scheme", [schemes.NO_DEFENCE, *schemes.CONDENSED])
def test_models_are_made_alike_from_equal_cells_and_differ_between_numbers(digits, scheme):
    found = [value(cell(scheme=scheme, number=number), digits) for number in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_private_score_sees_the_second_image_where_noise_is_small(digits):
    """Each of six steps holds it with chance ½: unseen once in 64 models, and then ln 2 a step."""
    absent = [value(private(0.05, set=worst.ONE, number=n), digits) for n in range(4)]
    present = [value(private(0.05, number=n), digits) for n in range(4)]
    assert max(absent) == pytest.approx(-6 * np.log(2), abs=0.2)
    assert min(present) > 50


def test_d_and_d_prime_differ_in_one_image_of_class_0(digits):
    rows, second = worst.neighbours(digits, 4)
    labels = digits.train_labels[rows]
    assert np.bincount(labels).tolist() == [1, *[4] * 9]
    assert digits.train_labels[second] == 0
    assert second not in rows
    with pytest.raises(WorkbookError, match="worst_n_others = 401; allowed: at most 400"):
        worst.neighbours(digits, 401)


def test_subset_keeps_one_image_of_class_0():
    labels = np.array([0, 0, 1, 1, 1, 2, 2])
    chosen = worst._subset(labels, 2, np.random.default_rng(0))
    assert np.bincount(labels[chosen]).tolist() == [1, 2, 2]
    start = worst._start(np.array([0, 1, 1, 1]), 2, np.random.default_rng(0))
    assert np.array([0, 1, 1, 1])[start].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("bound", "truth", "largest", "words"),
    [
        (1.5, 4.0, 3.3, "claim refuted"),
        (0.5, 1.0, 3.3, "not refuted"),
        (0.5, 4.0, 3.3, "not refuted, though false"),
        (0.5, 1.0, 0.8, "too few models to refute"),
    ],
)
def test_verdicts_name_a_broken_claim(bound, truth, largest, words):
    row = {"scheme": "DP-SGD", "claimed_epsilon": 1.0, "significance": 0.05}
    row |= {"theoretical_epsilon": truth, "largest_bound": largest, "epsilon_lower_bound": bound}
    (verdict,) = worst.verdicts({"detections": pd.DataFrame([row])})
    assert verdict["verdict"] == words
