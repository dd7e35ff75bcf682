"""Intervals around a few runs: hand cases and coverage."""

import numpy as np
import pytest
from scipy import stats

from lib import intervals

COVERAGE_RUNS = 4000


def test_by_hand():
    # Standard deviation 1, t quantile of two degrees of freedom 4.3026527.
    values, scatter = np.array([5.0, 5.0]), np.array([1.0, 2.0, 3.0])
    half = 4.3026527 / 2**0.5
    assert intervals.mean_interval(values, scatter) == pytest.approx((5, 5 - half, 5 + half))
    half = 4.3026527 * 1.5**0.5
    assert intervals.prediction_interval(values, scatter) == pytest.approx((5, 5 - half, 5 + half))
    assert intervals.normal_interval(1.0, 4.0) == pytest.approx((1, 1 - 3.919928, 1 + 3.919928))


def test_difference_by_hand():
    # Variances 1 and 4 of three values each: standard error √(5/3), 2.9412 degrees of freedom.
    difference, low, high = intervals.difference_interval([4, 5, 6], [0, 2, 4])
    half = stats.t.ppf(0.975, (5 / 3) ** 2 / (1 / 18 + 16 / 18)) * np.sqrt(5 / 3)
    assert (difference, low, high) == pytest.approx((3, 3 - half, 3 + half))
    assert intervals.difference_interval([2, 2], [1, 1, 1]) == (1, 1, 1)
    # A constant side adds nothing: Student's interval of the other.
    alone = intervals.mean_interval([0, 2, 4], [0, 2, 4])
    ours = intervals.difference_interval([0, 2, 4], [0.1 + 0.2, 0.3])
    assert ours == pytest.approx(tuple(each - 0.3 for each in alone))


def test_permutations_by_hand():
    # Of the ten ways to choose two of five, one is as far from the others as this.
    p = intervals.permutation_p_value([0.0, 0.0], [1.0, 1.0, 1.0])
    assert abs(p - 0.1) < 4 * np.sqrt(0.1 * 0.9 / 9_999)
    assert intervals.permutation_p_value([1, 1], [1, 1, 1]) == 1
    assert intervals.permutation_p_value(np.zeros(20), np.ones(20)) == 1e-4


def test_permutations_reject_no_more_than_they_may_where_most_values_are_zero():
    """Bounds of weak audits: 1,000 pairs of samples, within four standard errors of 5 %."""
    rng = np.random.default_rng(0)
    samples = rng.exponential(size=(1000, 40)) * (rng.random((1000, 40)) < 0.2)
    rejected = [intervals.permutation_p_value(x[:20], x[20:]) <= 0.05 for x in samples]
    assert np.mean(rejected) <= 0.05 + 4 * np.sqrt(0.05 * 0.95 / 1000)


def test_coverage():
    rng = np.random.default_rng(0)
    covered = np.zeros(4)
    for _ in range(COVERAGE_RUNS):
        values, scatter = rng.standard_normal(5), rng.standard_normal(9)
        _, low, high = intervals.mean_interval(values, scatter)
        covered[0] += low <= 0 <= high
        _, low, high = intervals.prediction_interval(values, scatter)
        covered[1] += low <= rng.standard_normal() <= high
        _, low, high = intervals.normal_interval(rng.standard_normal(), 1.0)
        covered[2] += low <= 0 <= high
        first, second = rng.standard_normal(5), 1 + 3 * rng.standard_normal(6)
        _, low, high = intervals.difference_interval(first, second)
        covered[3] += low <= -1 <= high
    # 95 % within four standard errors.
    assert np.abs(covered / COVERAGE_RUNS - 0.95).max() < 4 * np.sqrt(0.95 * 0.05 / COVERAGE_RUNS)


@pytest.mark.parametrize(("k", "n"), [(0, 20), (1, 20), (13, 100), (20, 20)])
def test_rate_interval_is_that_of_clopper_and_pearson(k, n):
    theirs = stats.binomtest(k, n).proportion_ci(0.95, method="exact")
    np.testing.assert_allclose(intervals.rate_interval(k, n), (theirs.low, theirs.high), atol=1e-9)
