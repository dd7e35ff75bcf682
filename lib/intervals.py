"""Intervals around the mean of a few independent runs."""

from __future__ import annotations

import math

import numpy as np
from scipy import stats


def mean_interval(values: np.ndarray, *, confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean of independent values and Student's confidence interval of it.

    Args:
        values: (n,) values, one a run.
        confidence: of the interval, in (0, 1).

    Returns:
        Mean, lower and upper end; both ends are infinite for fewer than two values, which say
        nothing about their spread.
    """
    values = np.asarray(values, dtype=float)
    n, mean = values.size, float(np.mean(values))
    if n < 2:
        return mean, -math.inf, math.inf
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1) * values.std(ddof=1) / math.sqrt(n))
    return mean, mean - half, mean + half


def prediction_interval(
    values: np.ndarray, scatter: np.ndarray, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean of independent values and the interval in which one more would fall.

    The right yardstick for a figure that somebody else read off a single run: it is as scattered
    as one of ours, not as their mean. How much one value scatters is taken from many others, since
    two or five of a discrete statistic can be equal by chance.

    Args:
        values: (n,) values, one a run, n ≥ 1.
        scatter: (m,) other independent values of the same spread, m ≥ 2.
        confidence: of the interval, in (0, 1).

    Returns:
        Mean of ``values``, lower and upper end.
    """
    mean, n, m = float(np.mean(values)), np.size(values), np.size(scatter)
    quantile = stats.t.ppf((1 + confidence) / 2, m - 1)
    half = float(quantile * np.std(scatter, ddof=1) * math.sqrt(1 + 1 / n))
    return mean, mean - half, mean + half


def difference_interval(
    first: np.ndarray, second: np.ndarray, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Difference of two means of independent values, with Welch's interval.

    Args:
        first: (n,) values, one a run.
        second: (m,) values of other runs.
        confidence: of the interval, in (0, 1).

    Returns:
        mean(first) − mean(second), lower and upper end; both ends are infinite if either has
        fewer than two values.
    """
    first, second = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    difference = float(first.mean() - second.mean())
    if min(first.size, second.size) < 2:
        return difference, -math.inf, math.inf
    squares = np.array([values.var(ddof=1) / values.size for values in (first, second)])
    if not squares.any():
        return difference, difference, difference
    freedom = squares.sum() ** 2 / (squares**2 / [first.size - 1, second.size - 1]).sum()
    half = float(stats.t.ppf((1 + confidence) / 2, freedom) * math.sqrt(squares.sum()))
    return difference, difference - half, difference + half
