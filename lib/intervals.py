"""Intervals around what a few independent runs gave, and of rates.

How much one run scatters is taken from many simulated ones: two or five values of a discrete
statistic can be equal by chance, and their own standard deviation would then claim certainty.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats


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


def difference_interval(
    first: np.ndarray, second: np.ndarray, *, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Difference of two means of independent values, with its interval (Welch).

    Args:
        first, second: at least two values each.
        confidence: of the interval, in (0, 1).

    Returns:
        Mean of ``first`` less that of ``second``, lower and upper end. Values without any scatter
        give the difference alone.
    """
    difference = float(np.mean(first) - np.mean(second))
    if np.ptp(first) == np.ptp(second) == 0:
        return difference, difference, difference
    # scipy's own warns where one side is constant, as bounds of 0 are.
    sizes = np.array([np.size(first), np.size(second)])
    variances = np.array([np.var(first, ddof=1), np.var(second, ddof=1)]) / sizes
    freedom = variances.sum() ** 2 / np.sum(variances**2 / (sizes - 1))
    half = float(stats.t.ppf((1 + confidence) / 2, freedom) * np.sqrt(variances.sum()))
    return difference, difference - half, difference + half


def permutation_p_value(first: np.ndarray, second: np.ndarray) -> float:
    """Two-sided p-value that two samples are of one distribution, by their difference of means.

    From 9,999 random permutations of fixed seed, the observed one counted in: at most α with
    probability at most α, whatever the distribution, many equal values included (Phipson and
    Smyth, 2010).
    """
    n = np.size(first)
    pooled = np.concatenate([first, second])
    # The sum of the first sample decides: that of all values does not change. Half a rounding
    # error must not tell equal ones apart.
    deviations = pooled - pooled.mean()
    rng = np.random.default_rng(0)
    sums = rng.permuted(np.tile(deviations, (9_999, 1)), axis=1)[:, :n].sum(axis=1)
    observed = abs(deviations[:n].sum())
    return float(1 + np.sum(np.abs(sums) >= observed - 1e-9)) / 10_000


def t_lower(*, mean, standard_error, n_values, significance=0.05) -> np.ndarray:
    """Lower end of Student's interval of a mean; numbers or arrays, as in :func:`t_upper`."""
    return 2 * np.asarray(mean) - t_upper(
        mean=mean, standard_error=standard_error, n_values=n_values, significance=significance
    )


def t_upper(*, mean, standard_error, n_values, significance=0.05) -> np.ndarray:
    """Upper end of Student's interval of a mean.

    Args:
        mean: of the values. All arguments broadcast against each other.
        standard_error: of the mean.
        n_values: independent values behind it, at least 2.
        significance: chance that the two-sided interval misses.
    """
    quantile = stats.t.ppf(1 - np.asarray(significance) / 2, np.subtract(n_values, 1))
    return np.asarray(mean) + quantile * np.asarray(standard_error)


def rate_interval(
    n_successes: int, n_trials: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    """Clopper and Pearson's two-sided interval of a rate: never narrower than its confidence."""
    counts = {"n_successes": n_successes, "n_trials": n_trials, "confidence": confidence}
    return float(rate_lower(**counts)), float(rate_upper(**counts))


def rate(*, n_successes, n_trials) -> np.ndarray:
    """Share of successes; numbers or arrays."""
    return np.divide(n_successes, n_trials)


def rate_at_least(*, n_successes, n_trials, significance=0.025) -> np.ndarray:
    """One-sided lower limit of a rate by Clopper and Pearson: above it with ``significance``."""
    return rate_lower(
        n_successes=n_successes, n_trials=n_trials, confidence=1 - 2 * np.asarray(significance)
    )


def rate_lower(*, n_successes, n_trials, confidence=0.95) -> np.ndarray:
    """Lower end of :func:`rate_interval`; numbers or arrays, as in :func:`rate_upper`."""
    return 1 - rate_upper(
        n_successes=np.subtract(n_trials, n_successes), n_trials=n_trials, confidence=confidence
    )


def rate_upper(*, n_successes, n_trials, confidence=0.95) -> np.ndarray:
    """Upper end of :func:`rate_interval`.

    Args:
        n_successes: k, 0 ≤ k ≤ n. All arguments broadcast against each other.
        n_trials: n ≥ 1.
        confidence: of the two-sided interval; each end errs with half of the rest.
    """
    k, n, confidence = np.broadcast_arrays(n_successes, n_trials, confidence)
    limit = special.betaincinv(k + 1.0, np.maximum(n - k, 1), (1 + confidence) / 2)
    return np.where(k == n, 1.0, limit)[()]


def _around_mean(values, scatter, confidence: float, share: float) -> tuple[float, float, float]:
    mean = float(np.mean(values))
    quantile = float(stats.t.ppf((1 + confidence) / 2, np.size(scatter) - 1))
    half = quantile * float(np.std(scatter, ddof=1)) * math.sqrt(share)
    return mean, mean - half, mean + half
