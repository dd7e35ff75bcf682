"""Intervals around what a few independent runs gave.

How much one run scatters is taken from many simulated ones: two or five values of a discrete
statistic can be equal by chance, and their own standard deviation would then claim certainty.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats


def mean_interval(
    values: np.ndarray, scatter: np.ndarray, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean of independent values, and the confidence interval of what it estimates.

    Args:
        values: (n,) values, one a run, n ≥ 1.
        scatter: (m,) other independent values of the same spread, m ≥ 2.
        confidence: of the interval, in (0, 1).

    Returns:
        Mean of ``values``, lower and upper end.
    """
    return _around_mean(values, scatter, confidence, 1 / np.size(values))


def prediction_interval(
    values: np.ndarray, scatter: np.ndarray, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean of independent values, and the interval in which one more would fall.

    The right yardstick for a figure that somebody else read off a single run: it is as scattered
    as one of ours, not as their mean.

    Args:
        values, scatter, confidence: as in :func:`mean_interval`.

    Returns:
        Mean of ``values``, lower and upper end.
    """
    return _around_mean(values, scatter, confidence, 1 + 1 / np.size(values))


def normal_interval(
    estimate: float, variance: float, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """An estimate of known variance with its interval by the normal distribution."""
    half = float(stats.norm.ppf((1 + confidence) / 2)) * math.sqrt(variance)
    return estimate, estimate - half, estimate + half


def _around_mean(values, scatter, confidence: float, share: float) -> tuple[float, float, float]:
    mean = float(np.mean(values))
    quantile = float(stats.t.ppf((1 + confidence) / 2, np.size(scatter) - 1))
    half = quantile * float(np.std(scatter, ddof=1)) * math.sqrt(share)
    return mean, mean - half, mean + half
