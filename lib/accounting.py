"""What noise buys which (ε, δ): thin over dp-accounting's privacy-loss-distribution accountant.

One accountant everywhere, for the noise that is added and for the ε that is claimed: mixing it with
Rényi accounting shifts the line an audit is held against (at q = 0.01, σ = 0.6, T = 100, δ = 1e-5
Rényi says 4.83 where 3.82 is true). Distributions are rounded pessimistically, so ε is an upper
bound and calibrated noise is never too little.
"""

from __future__ import annotations

import functools
import math

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant
from scipy import optimize

from lib.errors import WorkbookError

NEIGHBORING = {
    "add_remove": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}
# The accountant's own rounding makes smaller δ come out as ε = ∞ or nonsense.
SMALLEST_DELTA = 1e-14
COARSE_INTERVAL, FINE_INTERVAL = 1e-3, 1e-4
LARGEST_EPSILON = 100  # beyond, distributions fill the memory and the claim says nothing
LARGEST_LOG_NOISE = 20.0
TOLERANCE = 1e-4  # of the noise multiplier, relative


def epsilon(
    *,
    noise_multiplier: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    neighboring: str = "add_remove",
) -> float:
    """ε of DP-SGD: ``steps`` Gaussian releases, each on a Poisson sample of the data.

    Args:
        noise_multiplier: σ ≥ 0, the noise's standard deviation over the clip norm.
        delta: δ in [1e-14, 1); smaller ones are below what the accountant resolves.
        sampling_rate: q in (0, 1], the chance of each example to be in each batch.
        steps: T ≥ 1.
        neighboring: ``"add_remove"`` (one example more or less) or ``"replace_one"``.

    Returns:
        ε from above; ``inf`` for σ = 0, which gives no guarantee.

    Raises:
        WorkbookError: for a value out of range, or a δ the accountant cannot resolve here.
    """
    _check(delta, sampling_rate, steps, neighboring)
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise WorkbookError(
            f"noise_multiplier = {noise_multiplier}; allowed: a finite number of at least 0"
        )
    if noise_multiplier == 0:
        return math.inf
    value = _epsilon(
        float(noise_multiplier), delta, sampling_rate, steps, neighboring, FINE_INTERVAL
    )
    if not math.isfinite(value):
        raise WorkbookError(
            f"delta = {delta} is below what the accountant resolves at noise_multiplier = "
            f"{noise_multiplier}, sampling_rate = {sampling_rate}, steps = {steps}; allowed: a "
            "larger delta"
        )
    return value


def delta(
    *,
    noise_multiplier: float,
    epsilon: float,
    sampling_rate: float,
    steps: int,
    neighboring: str = "add_remove",
) -> float:
    """δ of DP-SGD at an ε ≥ 0; at 0 the largest advantage of any membership attack.

    Args:
        noise_multiplier: σ ≥ 0; without noise nothing is promised, and δ is 1.
        epsilon: ε ≥ 0.
        sampling_rate, steps, neighboring: as in :func:`epsilon`.

    Returns:
        δ from above, in [0, 1].

    Raises:
        WorkbookError: for a value out of range.
    """
    _check(SMALLEST_DELTA, sampling_rate, steps, neighboring)
    for name, value in (("noise_multiplier", noise_multiplier), ("epsilon", epsilon)):
        if not (math.isfinite(value) and value >= 0):
            raise WorkbookError(f"{name} = {value}; allowed: a finite number of at least 0")
    if noise_multiplier == 0:
        return 1.0
    accountant = _accountant(
        float(noise_multiplier), sampling_rate, steps, neighboring, FINE_INTERVAL
    )
    return min(1.0, float(accountant.get_delta(epsilon)))


def delta_at_zero_of_rows(
    *, noise_multiplier: np.ndarray, sampling_rate: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """:func:`delta` at ε = 0 for each row of a table, (n,) floats."""
    rows = np.column_stack([noise_multiplier, sampling_rate, steps]).tolist()
    return np.array(
        [
            delta(noise_multiplier=sigma, epsilon=0.0, sampling_rate=q, steps=int(steps))
            for sigma, q, steps in rows
        ]
    )


def renyi_noise_multiplier(
    *, epsilon: float, delta: float, sampling_rate: float, steps: int
) -> float:
    """σ by Rényi accounting: more noise than by :func:`noise_multiplier` for the same ε.

    What many implementations did before privacy-loss distributions; here to tell how much of a
    difference between two figures is the accountant's.

    Args:
        epsilon, delta, sampling_rate, steps: as in :func:`noise_multiplier`.
    """
    _check(delta, sampling_rate, steps, "add_remove")

    def event(sigma: float) -> dp_accounting.DpEvent:
        step = dp_accounting.GaussianDpEvent(sigma)
        if sampling_rate < 1:
            step = dp_accounting.PoissonSampledDpEvent(sampling_rate, step)
        return dp_accounting.SelfComposedDpEvent(step, steps)

    return float(
        dp_accounting.calibrate_dp_mechanism(
            dp_accounting.rdp.RdpAccountant, event, epsilon, delta, tol=1e-4
        )
    )


def epsilon_of_rows(
    *,
    noise_multiplier: np.ndarray,
    delta: np.ndarray,
    sampling_rate: np.ndarray,
    steps: np.ndarray,
    neighboring: str = "add_remove",
) -> np.ndarray:
    """:func:`epsilon` for each row of a table; equal rows are computed once.

    Args:
        noise_multiplier, delta, sampling_rate, steps: (n,) arrays.
        neighboring: of all rows.

    Returns:
        (n,) floats.
    """
    rows = np.column_stack([noise_multiplier, delta, sampling_rate, steps])
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    values = [
        epsilon(
            noise_multiplier=sigma,
            delta=delta,
            sampling_rate=q,
            steps=int(steps),
            neighboring=neighboring,
        )
        for sigma, delta, q, steps in distinct.tolist()
    ]
    return np.array(values)[inverse]


@functools.cache
def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    neighboring: str = "add_remove",
) -> float:
    """Smallest noise multiplier, to 1e-4 relative, whose ε at ``delta`` is at most ``epsilon``.

    Args:
        epsilon: target ε > 0.
        delta, sampling_rate, steps, neighboring: as in :func:`epsilon`.

    Returns:
        σ; :func:`epsilon` of it is at most the target.

    Raises:
        WorkbookError: for a value out of range.
    """
    _check(delta, sampling_rate, steps, neighboring)
    if not 0 < epsilon <= LARGEST_EPSILON:
        raise WorkbookError(
            f"epsilon = {epsilon}; allowed: a number greater than 0, at most {LARGEST_EPSILON}"
        )
    # Whoever is never sampled loses nothing: with that probability alone, no noise is needed.
    if -math.expm1(steps * math.log1p(-sampling_rate) if sampling_rate < 1 else -math.inf) <= delta:
        raise WorkbookError(
            f"delta = {delta} is met without any noise at sampling_rate = {sampling_rate}, "
            f"steps = {steps}; allowed: a delta below the chance of being sampled at all"
        )

    def excess(log_noise: float, interval: float) -> float:
        sigma = math.exp(log_noise)
        value = _epsilon(sigma, delta, sampling_rate, steps, neighboring, interval)
        return min(value, 1e6) - epsilon

    # Coarse distributions, ten times cheaper, give the neighbourhood and the slope there; Newton
    # steps on fine ones aim half the tolerance above the root, where ε is below its target.
    def coarse(x):
        return excess(x, COARSE_INTERVAL)

    log_noise = optimize.brentq(coarse, *_bracket(coarse), xtol=1e-3)
    slope = (coarse(log_noise + 0.01) - coarse(log_noise - 0.01)) / 0.02
    while not TOLERANCE * slope <= (value := excess(log_noise, FINE_INTERVAL)) <= 0:
        log_noise += TOLERANCE / 2 - value / slope
    return math.exp(log_noise)


def gaussian_noise_multiplier(*, epsilon: float, delta: float, steps: int) -> float:
    """Noise multiplier of full batches (q = 1) for any ε, by the exact formula.

    Together, T full-batch releases are one Gaussian release with σ/√T (arXiv:1805.06530, Theorem
    8). Where :func:`noise_multiplier` can answer too, both agree to its tolerance.

    Args:
        epsilon: target ε > 0; no upper limit.
        delta: δ in (0, 1).
        steps: T ≥ 1.

    Raises:
        WorkbookError: for a value out of range.
    """
    _check(delta, 1.0, steps, "add_remove")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise WorkbookError(f"epsilon = {epsilon}; allowed: a finite number greater than 0")
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * math.sqrt(steps)


def gaussian_epsilon_of_rows(
    *, noise_multiplier: np.ndarray, delta: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    """ε of full batches (q = 1) for each row of a table, by the exact formula.

    Args:
        noise_multiplier, delta, steps: (n,) arrays, as in :func:`gaussian_noise_multiplier`.

    Returns:
        (n,) floats.
    """
    rows = np.column_stack([noise_multiplier, delta, steps])
    distinct, inverse = np.unique(rows, axis=0, return_inverse=True)
    values = [
        float(dp_accounting.get_epsilon_gaussian(sigma / math.sqrt(steps), delta))
        for sigma, delta, steps in distinct.tolist()
    ]
    return np.array(values)[inverse]


@functools.cache
def _epsilon(sigma, delta, sampling_rate, steps, neighboring, interval) -> float:
    accountant = _accountant(sigma, sampling_rate, steps, neighboring, interval)
    return float(accountant.get_epsilon(delta))


def _accountant(sigma, sampling_rate, steps, neighboring, interval) -> PLDAccountant:
    event = dp_accounting.GaussianDpEvent(sigma)
    if sampling_rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(sampling_rate, event)
    accountant = PLDAccountant(NEIGHBORING[neighboring], value_discretization_interval=interval)
    return accountant.compose(dp_accounting.SelfComposedDpEvent(event, steps))


def _bracket(excess) -> tuple[float, float]:
    """Two points around the root of a decreasing function, found by doubling steps from 0."""
    low, high, width = -0.5, 0.5, 1.0
    while excess(high) > 0:
        low, high, width = high, high + width, 2 * width
        if high > LARGEST_LOG_NOISE:
            raise WorkbookError(
                f"no noise_multiplier up to {math.exp(LARGEST_LOG_NOISE):.3g} is enough; allowed: "
                "a larger epsilon or delta, fewer steps, or a smaller sampling_rate"
            )
    # A small step down each time: the cost of a distribution explodes as the noise vanishes.
    while excess(low) <= 0:
        low, high = low - 0.5, low
    return low, high


def _check(delta: float, sampling_rate: float, steps: int, neighboring: str) -> None:
    if not SMALLEST_DELTA <= delta < 1:
        raise WorkbookError(f"delta = {delta}; allowed: a number in [{SMALLEST_DELTA}, 1)")
    if not 0 < sampling_rate <= 1:
        raise WorkbookError(f"sampling_rate = {sampling_rate}; allowed: a number in (0, 1]")
    if isinstance(steps, bool) or int(steps) != steps or steps < 1:
        raise WorkbookError(f"steps = {steps}; allowed: a whole number of at least 1")
    if neighboring not in NEIGHBORING:
        raise WorkbookError(f"neighboring = {neighboring!r}; allowed: {', '.join(NEIGHBORING)}")
