"""Intervals of means: hand cases, coverage, and too few values."""

import math

import numpy as np
import pytest
from scipy import stats

from lib import intervals

COVERAGE_RUNS = 4000


def test_by_hand():
    # Mean 2, standard deviation 1, t quantile of two degrees of freedom 4.302653.
    mean, low, high = intervals.mean_interval(np.array([1.0, 2.0, 3.0]))
    assert (mean, low, high) == pytest.approx((2, 2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    interval = intervals.prediction_interval(np.array([5.0, 5.0]), np.array([1.0, 2.0, 3.0]))
    assert interval == pytest.approx((5, 5 - 4.3026527 * 1.5**0.5, 5 + 4.3026527 * 1.5**0.5))


def test_difference_is_welchs():
    rng = np.random.default_rng(1)
    first, second = rng.standard_normal(4), 3 * rng.standard_normal(6)
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.9)
    ours = intervals.difference_interval(first, second, confidence=0.9)
    assert ours[1:] == pytest.approx((welch.low, welch.high))
    assert intervals.difference_interval([2.0, 2.0], [1.0, 1.0]) == (1, 1, 1)


def test_one_value_says_nothing_about_spread():
    assert intervals.mean_interval(np.array([3.0])) == (3.0, -math.inf, math.inf)
    assert intervals.difference_interval([1.0], [1.0, 2.0])[1:] == (-math.inf, math.inf)


def test_coverage():
    rng = np.random.default_rng(0)
    covered = np.zeros(3)
    for _ in range(COVERAGE_RUNS):
        values, others = rng.standard_normal(5), 2 * rng.standard_normal(7)
        _, low, high = intervals.mean_interval(values)
        covered[0] += low <= 0 <= high
        _, low, high = intervals.prediction_interval(values, rng.standard_normal(9))
        covered[1] += low <= rng.standard_normal() <= high
        _, low, high = intervals.difference_interval(values, others)
        covered[2] += low <= 0 <= high
    # 95 % within four standard errors (1.4 %); Welch's interval is approximate, a little wider.
    assert np.abs(covered / COVERAGE_RUNS - 0.95).max() < 0.014 + 0.005
