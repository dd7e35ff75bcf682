"""Noise and ε against closed forms and another implementation's values."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, stats

from lib import accounting
from lib.errors import WorkbookError

ORACLE = json.loads((Path(__file__).parent / "oracles" / "reconstruction.json").read_text())
SETTINGS = {
    (case["epsilon"], case["delta"], case["steps"], case["sampling_rate"]): case["noise_multiplier"]
    for case in ORACLE
}


def gaussian_epsilon(sigma, delta):
    """Closed form of the Gaussian mechanism (Balle and Wang, arXiv:1805.06530, Theorem 8)."""

    def excess(epsilon):
        low = stats.norm.cdf(0.5 / sigma - epsilon * sigma)
        high = stats.norm.cdf(-0.5 / sigma - epsilon * sigma)
        return low - math.exp(epsilon) * high - delta

    return optimize.brentq(excess, 0, 100)


@pytest.mark.parametrize("setting", sorted(SETTINGS)[::7], ids=str)  # a spread: seconds each
def test_noise_agrees_with_another_calibration(setting):
    target, delta, steps, sampling_rate = setting
    sigma = SETTINGS[setting]
    others = {"delta": delta, "steps": steps, "sampling_rate": sampling_rate}
    # The multiplier is right to 1e-3 exactly if ε crosses its target within that distance.
    assert accounting.epsilon(noise_multiplier=sigma * 1.001, **others) < target
    assert accounting.epsilon(noise_multiplier=sigma * 0.999, **others) > target


def test_full_batch_is_the_gaussian_mechanism():
    ours = accounting.epsilon(noise_multiplier=5.0, delta=1e-5, sampling_rate=1.0, steps=25)
    assert ours == pytest.approx(gaussian_epsilon(1.0, 1e-5), abs=1e-3)
    assert ours >= gaussian_epsilon(1.0, 1e-5)


def test_replacing_one_is_twice_the_sensitivity():
    ours = accounting.epsilon(
        noise_multiplier=2.0, delta=1e-5, sampling_rate=1.0, steps=1, neighboring="replace_one"
    )
    assert ours == pytest.approx(gaussian_epsilon(1.0, 1e-5), abs=1e-3)


def test_calibrated_noise_is_enough_and_no_more():
    others = {"delta": 1e-5, "sampling_rate": 0.25, "steps": 100}
    sigma = accounting.noise_multiplier(epsilon=4.0, **others)
    assert accounting.epsilon(noise_multiplier=sigma, **others) <= 4.0
    assert accounting.epsilon(noise_multiplier=sigma * (1 - 3e-4), **others) > 4.0


@pytest.mark.parametrize(
    ("sigma", "delta", "sampling_rate", "steps", "value", "within"),
    [
        (4.0, 1e-10, 0.00033, 10_000, 0.0496, 5e-3),
        # At the smallest δ the transform's rounding, which is the processor's, shows: 0.0630 too.
        (4.0, 1e-14, 0.00033, 10_000, 0.0634, 2e-2),
        (1.0, 1e-5, 0.2, 5000, 208.2, 5e-3),
        (0.6, 1e-5, 0.01, 100, 3.82, 5e-3),  # Rényi accounting says 4.83
    ],
)
def test_values_at_the_edge(sigma, delta, sampling_rate, steps, value, within):
    ours = accounting.epsilon(
        noise_multiplier=sigma, delta=delta, sampling_rate=sampling_rate, steps=steps
    )
    assert ours == pytest.approx(value, rel=within)


def test_no_noise_is_no_guarantee():
    none = accounting.epsilon(noise_multiplier=0.0, delta=1e-5, sampling_rate=0.5, steps=1)
    assert none == math.inf


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0}, "epsilon = 0; allowed: a number greater than 0, at most 100"),
        ({"epsilon": math.inf}, "epsilon = inf"),
        ({"epsilon": 1000.0}, "epsilon = 1000.0"),
        ({"delta": 1e-3, "sampling_rate": 1e-4, "steps": 1}, "met without any noise"),
        ({"delta": 0.0}, "delta = 0.0"),
        ({"delta": 1e-15}, "delta = 1e-15"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"sampling_rate": 0.0}, "sampling_rate = 0.0"),
        ({"sampling_rate": 1.1}, "sampling_rate = 1.1"),
        ({"steps": 0}, "steps = 0"),
        ({"steps": 1.5}, "steps = 1.5"),
        ({"neighboring": "swap"}, "neighboring = 'swap'; allowed: add_remove, replace_one"),
    ],
)
def test_refuses_by_name(change, words):
    arguments = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.5, "steps": 10} | change
    with pytest.raises(WorkbookError, match=words) as caught:
        accounting.noise_multiplier(**arguments)
    assert "\n" not in str(caught.value)


def test_rows_are_computed_as_if_alone():
    rows = {"noise_multiplier": [1.0, 5.0, 1.0], "delta": [1e-5, 1e-5, 1e-5]}
    rows |= {"sampling_rate": [0.5, 1.0, 0.5], "steps": [2, 25, 2]}
    values = accounting.epsilon_of_rows(**{name: np.array(row) for name, row in rows.items()})
    alone = [
        accounting.epsilon(**dict(zip(rows, row, strict=True)))
        for row in zip(*rows.values(), strict=True)
    ]
    assert values.tolist() == alone


def test_negative_noise_is_refused():
    with pytest.raises(WorkbookError, match="noise_multiplier = -1"):
        accounting.epsilon(noise_multiplier=-1.0, delta=1e-5, sampling_rate=0.5, steps=1)
