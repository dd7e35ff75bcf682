"""How often any reconstruction attack on DP-SGD can succeed at most: γ, and its rivals.

An attacker knows all training points but one and sees every noisy gradient. The unknown point z is
drawn from a prior, and κ is how often the best guess without looking is right (1/n for a uniform
prior over n candidates). Hayes, Mahloujifar and Balle (arXiv:2302.07225, Theorem 2 and Corollary
3) bound the success of any attack by the power of the best test of size κ between

    μ = the T released coordinates with the target in: N(b_t, σ²), b_t = 1 with chance q, and
    ν = the same with the target out: N(0, σ²),

    γ(κ) = sup { μ[E] : ν[E] ≤ κ }  =  min over all real ε of  κ·e^ε + δ(ε),

where δ(ε) is the hockey-stick divergence of μ from ν, in that order only (the other order is that
of hiding a point, and smaller here). The second form is the duality of tests and divergences; the
minimum runs over negative ε too. Methods, for :func:`success_bound`:

- ``pld`` (default): δ(ε) from the discretised distribution of log μ/ν; from above, with its error;
- ``gaussian``: closed form for q = 1;
- ``monte_carlo``: the paper's Algorithm 1, samples of ν reweighted, with the paper's interval;
- ``target_side``: samples of both sides, with an interval that holds for any noise;
- ``renyi``: Balle, Cherubin and Hayes 2022 (arXiv:2201.04845), from Rényi divergences;
- ``epsilon_delta``: κ·e^ε + δ of one (ε, δ) guarantee;
- ``fano``, ``renyi_fano``: Guo, Sablayrolles and Sanjabi 2022 (arXiv:2210.13662), from mutual
  information, and its form for Rényi divergences of the best order.

:func:`prior_mass` estimates κ where the prior is not uniform or a near miss counts. No torch here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy import fft, special, stats

from lib import accounting, intervals
from lib.errors import WorkbookError

ACCURACY = 2e-4  # of γ by default, absolute
LARGEST_GRID = 2**22  # cells of a discretised distribution; beyond, a coarser grid is taken
FEWEST_CELLS = 2000  # of one step's distribution
TAIL = 1e-12  # probability left out of it, counted as an infinite loss
ROUNDING = 1e-9  # more than floating-point numbers lose in any of this, added to γ
SMALLEST_NOISE = 1e-3  # below, γ is that of no noise
CHUNK = 2**18  # numbers drawn at a time: they stay in a processor's cache
LARGEST_QUADRATURE = 2**15  # nodes
ORDERS = 1 + np.logspace(-2.5, 3.5, 241)  # of Rényi divergences; each gives a valid bound


@dataclass(frozen=True)
class Mechanism:
    """DP-SGD as the bounds see it.

    Attributes:
        noise_multiplier: σ ≥ 0, the noise's standard deviation over the clip norm.
        steps: T ≥ 1.
        sampling_rate: q in (0, 1], the chance of each point to be in each batch.
    """

    noise_multiplier: float
    steps: int
    sampling_rate: float

    def __post_init__(self):
        """Refuse what is no mechanism.

        Raises:
            WorkbookError: for a value out of range.
        """
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier >= 0):
            raise WorkbookError(
                f"noise_multiplier = {self.noise_multiplier}; allowed: a finite number of at "
                "least 0"
            )
        if isinstance(self.steps, bool) or int(self.steps) != self.steps or self.steps < 1:
            raise WorkbookError(f"steps = {self.steps}; allowed: a whole number of at least 1")
        object.__setattr__(self, "steps", int(self.steps))
        if not 0 < self.sampling_rate <= 1:
            raise WorkbookError(
                f"sampling_rate = {self.sampling_rate}; allowed: a number in (0, 1]"
            )


@dataclass(frozen=True)
class Estimate:
    """A value with what is known about it; floats, or arrays of one shape.

    Attributes:
        value: the estimate. For ``pld`` and the rivals itself an upper bound.
        lower, upper: ends of the interval. What they promise, each method says.
    """

    value: float | np.ndarray
    lower: float | np.ndarray
    upper: float | np.ndarray


def success_bound(**arguments) -> float | np.ndarray:
    """Upper bound γ on the success of any attack: the value of :func:`success_interval`.

    Args:
        arguments: those of :func:`success_interval`.

    Returns:
        γ, κ ≤ γ ≤ 1: a float, or an array shaped as κ. From above, but for the two methods that
        sample: their limit from above is the interval's ``upper``.

    Raises:
        WorkbookError: as :func:`success_interval` does.
    """
    return success_interval(**arguments).value


def success_interval(
    *,
    kappa: float | np.ndarray | None = None,
    log_kappa: float | np.ndarray | None = None,
    noise_multiplier: float,
    steps: int,
    sampling_rate: float,
    method: str = "pld",
    accuracy: float = ACCURACY,
    n_samples: int = 1_000_000,
    confidence: float = 0.95,
    rng: np.random.Generator | None = None,
    delta: float = 1e-5,
) -> Estimate:
    """γ by any method, with its interval; everything within [κ, 1].

    Args:
        kappa: chance(s) in (0, 1] of guessing right without looking.
        log_kappa: natural logarithm of κ instead, for κ below the smallest float.
        noise_multiplier, steps, sampling_rate: as in :class:`Mechanism`.
        method: see the top of this module.
        accuracy: for ``pld``; the largest discretisation error wanted.
        n_samples, confidence, rng: for the methods that sample. One interval holds for one κ.
        delta: δ of the guarantee, for ``epsilon_delta``.

    Returns:
        Estimate and interval, shaped as κ.

    Raises:
        WorkbookError: for a value out of range, an unknown method, or one that does not apply.
    """
    if method not in METHODS:
        raise WorkbookError(f"method = {method!r}; allowed: {', '.join(METHODS)}")
    given = _log_kappa(kappa, log_kappa)
    blind = np.exp(given) if kappa is None else np.asarray(kappa, dtype=float)
    mechanism = Mechanism(float(noise_multiplier), steps, float(sampling_rate))
    sampling = {"n_samples": n_samples, "confidence": confidence, "rng": rng}
    options = {
        "pld": {"accuracy": accuracy},
        "monte_carlo": sampling,
        "target_side": sampling,
        "epsilon_delta": {"delta": delta},
    }.get(method, {})
    estimate = METHODS[method](given.ravel(), mechanism, **options)
    ends = (
        np.clip(end.reshape(given.shape), blind, 1.0)
        for end in (estimate.value, estimate.lower, estimate.upper)
    )
    return Estimate(*(float(end) if given.ndim == 0 else end for end in ends))


def log_success_bound(
    *, log_kappa: float, noise_multiplier: float, steps: int, sampling_rate: float
) -> float:
    """log γ from above where γ is too small for ``pld``, or for a floating-point number.

    The closed form for full batches, else the best Rényi order, as in :func:`renyi`.

    Args:
        log_kappa: log κ ≤ 0.
        noise_multiplier, steps, sampling_rate: as in :class:`Mechanism`; 0 without noise.

    Returns:
        Natural logarithm of the bound, at least log κ and at most 0.

    Raises:
        WorkbookError: for a value out of range.
    """
    given = _log_kappa(None, log_kappa)
    mechanism = Mechanism(float(noise_multiplier), steps, float(sampling_rate))
    if mechanism.noise_multiplier == 0:
        return 0.0
    if mechanism.sampling_rate == 1:
        shift = math.sqrt(mechanism.steps) / mechanism.noise_multiplier
        found = float(special.log_ndtr(special.ndtri_exp(given) + shift))
    else:
        found = float(((given + _divergences(mechanism)) * (1 - 1 / ORDERS)).min())
    return min(max(found, float(given)), 0.0)


def log_success_bound_of_rows(
    *,
    log_kappa: np.ndarray,
    noise_multiplier: np.ndarray,
    steps: np.ndarray,
    sampling_rate: np.ndarray,
) -> np.ndarray:
    """:func:`log_success_bound` for each row of a table, (rows,) floats."""
    rows = zip(log_kappa, noise_multiplier, steps, sampling_rate, strict=True)
    return np.array(
        [
            log_success_bound(
                log_kappa=log_k, noise_multiplier=sigma, steps=int(t), sampling_rate=rate
            )
            for log_k, sigma, t, rate in rows
        ]
    )


def success_bound_of_rows(
    *,
    prior_size: np.ndarray | None = None,
    kappa: np.ndarray | None = None,
    noise_multiplier: np.ndarray,
    steps: np.ndarray,
    sampling_rate: np.ndarray,
    method: str = "pld",
    accuracy: float = ACCURACY,
) -> np.ndarray:
    """:func:`success_bound` for each row of a table; one distribution a mechanism.

    Args:
        prior_size: (rows,) n, candidates of a uniform prior: κ = 1/n.
        kappa: (rows,) κ instead.
        noise_multiplier, steps, sampling_rate: (rows,) arrays.
        method: one that does not sample.
        accuracy: for ``pld``.

    Returns:
        (rows,) floats.
    """
    columns = np.broadcast_arrays(noise_multiplier, steps, sampling_rate)
    mechanisms = np.column_stack([np.ravel(column) for column in columns])
    distinct, inverse = np.unique(mechanisms, axis=0, return_inverse=True)
    kappa = 1 / np.asarray(prior_size, float) if kappa is None else np.asarray(kappa)
    kappa = np.broadcast_to(kappa, (len(mechanisms),))
    bounds = np.empty(len(mechanisms))
    for number, (sigma, t, rate) in enumerate(distinct.tolist()):
        rows = np.ravel(inverse) == number
        bounds[rows] = success_bound(
            kappa=kappa[rows],
            noise_multiplier=sigma,
            steps=int(t),
            sampling_rate=rate,
            method=method,
            accuracy=accuracy,
        )
    return bounds


def pld(log_kappa: np.ndarray, mechanism: Mechanism, *, accuracy: float = ACCURACY) -> Estimate:
    """γ from the distribution of the log ratio of μ to ν, discretised from above.

    Each step's log ratio is moved to the two neighbouring points of a grid of width h, so that
    both μ's and ν's mass are kept. This only spreads the ratio, so γ rises: it stays a bound. By
    how much: the ratio of T steps is multiplied by a random factor Ξ of mean 1 and variance at
    most cosh(h/2)^(2T) − 1, and any test gains at most E|Ξ − 1|/2 by it. Hence the error is at most
    half the standard deviation, about h·√T/4; it shrinks as h², much faster, in practice.

    Args:
        log_kappa: (k,) log κ; all from one distribution.
        mechanism: σ, T and q. σ = 0 gives the limit 1 − (1 − κ)(1 − q)^T.
        accuracy: largest error wanted; h follows. A grid that would be too large is made coarser,
            and the interval says so.

    Returns:
        (k,) value = upper: never below γ. ``lower``: never above it. Values below about 1e-9 are
        not resolved from above.

    Raises:
        WorkbookError: for an accuracy out of range.
    """
    if not 0 < accuracy < 1:
        raise WorkbookError(f"accuracy = {accuracy}; allowed: a number in (0, 1)")
    kappa = np.exp(log_kappa)
    noiseless = _without_noise(kappa, mechanism)
    # Without noise one sees which gradients hold the target. Guessing "in" where a release is
    # above 1/2 comes this near to that, if κ pays for its false alarms.
    sigma, steps = mechanism.noise_multiplier, mechanism.steps
    log_alarms = math.log(steps) + (special.log_ndtr(-0.5 / sigma) if sigma > 0 else -math.inf)
    lower = np.where(log_kappa >= log_alarms, noiseless - 3 * math.exp(log_alarms), kappa)
    if sigma < SMALLEST_NOISE or (noiseless - lower <= accuracy).all():
        return Estimate(noiseless, lower, noiseless)
    log_slopes, log_tails, powers, error = _power_curve(mechanism, float(accuracy))
    # The best ε is where ν's tail falls to κ; being off by rounding costs sharpness, not validity.
    crossing = np.searchsorted(-log_tails, -log_kappa)
    values = np.ones_like(log_kappa)
    for knot in (crossing - 1, crossing, crossing + 1):
        i = np.clip(knot, 0, log_slopes.size - 1)
        divergence = powers[i] - np.exp(log_slopes[i] + log_tails[i])
        with np.errstate(over="ignore"):
            values = np.minimum(values, np.exp(log_kappa + log_slopes[i]) + divergence)
    values = np.minimum(values, noiseless)
    # The error covers all κ that ν's masses, as floating-point numbers, can tell from 0.
    resolved = (log_kappa > -600) | (sigma > 1 / 28)
    return Estimate(values, np.where(resolved, np.maximum(lower, values - error), lower), values)


def gaussian(log_kappa: np.ndarray, mechanism: Mechanism) -> Estimate:
    """γ = Φ(Φ⁻¹(κ) + √T/σ), exact, for full batches: T releases say what their mean says.

    Args:
        log_kappa: (k,) log κ.
        mechanism: with q = 1; σ = 0 gives 1.

    Raises:
        WorkbookError: for q < 1.
    """
    if mechanism.sampling_rate != 1:
        raise WorkbookError(
            f"sampling_rate = {mechanism.sampling_rate}; allowed: 1 for method 'gaussian', or "
            "method 'pld'"
        )
    if mechanism.noise_multiplier == 0:
        return _exactly(np.ones_like(log_kappa))
    shift = math.sqrt(mechanism.steps) / mechanism.noise_multiplier
    return _exactly(special.ndtr(special.ndtri_exp(log_kappa) + shift))


def monte_carlo(
    log_kappa: np.ndarray,
    mechanism: Mechanism,
    *,
    n_samples: int,
    confidence: float = 0.95,
    rng: np.random.Generator,
) -> Estimate:
    """Algorithm 1 of arXiv:2302.07225: the κN largest ratios of N samples of ν, over N.

    The interval is the paper's: κ moved by the inequality of Dvoretzky, Kiefer and Wolfowitz, then
    Bennett's inequality for the mean. That one needs bounded ratios, and these have no bound; the
    largest ratio and the variance *seen* stand in. So where leakage is strong (q = 1, σ = 0.2),
    estimate and interval can both be far below γ or above 1: use ``pld`` or ``target_side``.

    Args:
        log_kappa: (k,) log κ, with κN ≥ 1.
        mechanism: σ > 0, T and q.
        n_samples: N.
        confidence: what the paper's inequalities would give together.
        rng: source of randomness.

    Returns:
        (k,) estimates and ends as they come, not cut to [κ, 1].

    Raises:
        WorkbookError: for κN < 1, σ = 0, or a value out of range.
    """
    n_kept = _n_kept(log_kappa, mechanism, n_samples, confidence, rng)
    losses = -np.sort(-_losses(mechanism, n_samples, rng, target_in=False))
    largest = losses[0]
    share = np.exp(losses - largest)  # ratios over the largest one: these cannot overflow
    sums, squares = np.append(0.0, np.cumsum(share)), np.append(0.0, np.cumsum(share**2))
    alpha = (1 - confidence) / 4  # two ends each for the quantile and the mean
    moved = n_samples * math.sqrt(math.log(1 / alpha) / (2 * n_samples))
    fewer = np.floor(np.maximum(n_kept - moved, 0)).astype(int)
    more = np.ceil(np.minimum(n_kept + moved, n_samples)).astype(int)

    def mean(kept):
        return sums[kept] / n_samples

    def half_width(kept):
        variance = np.maximum(squares[kept] / n_samples - mean(kept) ** 2, 1e-300)
        rate = math.log(1 / alpha) / (n_samples * variance)
        # Bennett: h(u) = (1 + u)·log(1 + u) − u = rate, solved with Lambert's W.
        u = np.expm1(1 + special.lambertw((rate - 1) / math.e).real)
        return variance * np.maximum(u, 0)

    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (mean(n_kept), mean(fewer) - half_width(fewer), mean(more) + half_width(more))
        value, lower, upper = (np.nan_to_num(np.exp(largest) * end) for end in scaled)
    return Estimate(value, np.maximum(lower, 0.0), upper)


def target_side(
    log_kappa: np.ndarray,
    mechanism: Mechanism,
    *,
    n_samples: int,
    confidence: float = 0.95,
    rng: np.random.Generator,
) -> Estimate:
    """γ from N samples of ν, which place the threshold, and N of μ, which count above it.

    The power of the best test is how often μ's log ratio exceeds its κ-quantile under ν. Order
    statistics of ν's samples enclose that quantile whatever the distribution, and Clopper and
    Pearson's interval encloses the two rates under μ. No ratio is averaged, so nothing has to be
    bounded, and the number of samples needed does not grow as the noise shrinks.

    Args:
        log_kappa: (k,) log κ, with κN ≥ 1.
        mechanism: σ > 0, T and q.
        n_samples: N, of each side.
        confidence: of each κ's interval: it encloses γ at least this often.
        rng: source of randomness.

    Raises:
        WorkbookError: for κN < 1, σ = 0, or a value out of range.
    """
    n_kept = _n_kept(log_kappa, mechanism, n_samples, confidence, rng)
    out = np.sort(_losses(mechanism, n_samples, rng, target_in=False))
    inside = np.sort(_losses(mechanism, n_samples, rng, target_in=True))
    # Index k of this is the k-th largest; index 0 is above and the last below everything.
    thresholds = np.concatenate([[-np.inf], out, [np.inf]])[::-1]

    def n_above(k):
        # Ties have probability 0, except where thresholds are infinite.
        return n_samples - np.searchsorted(inside, thresholds[k], side="left")

    # ν exceeds its k-th largest sample with a Beta(k, N − k + 1) chance: at most κ as often as a
    # binomial (N, κ) count reaches k. Four things can go wrong, each with a quarter of the rest.
    alpha, kappa = (1 - confidence) / 4, np.exp(log_kappa)
    high = stats.binom.ppf(alpha, n_samples, kappa).astype(int)
    low = np.minimum(stats.binom.ppf(1 - alpha, n_samples, kappa).astype(int), n_samples) + 1
    counts = {"n_trials": n_samples, "confidence": 1 - 2 * alpha}
    return Estimate(
        n_above(n_kept) / n_samples,
        np.maximum(intervals.rate_lower(n_successes=n_above(high), **counts), kappa),
        intervals.rate_upper(n_successes=n_above(low), **counts),
    )


def renyi(log_kappa: np.ndarray, mechanism: Mechanism) -> Estimate:
    """γ ≤ (κ·e^{ε_α})^{(α − 1)/α} with the best order α of :data:`ORDERS` (arXiv:2201.04845).

    ε_α is the exact Rényi divergence of μ from ν, not a bound of it: the rival at its best.

    Args:
        log_kappa: (k,) log κ.
        mechanism: σ, T and q; σ = 0 gives 1.
    """
    divergences = _divergences(mechanism)
    exponents = (log_kappa[:, None] + divergences) * (1 - 1 / ORDERS)
    return _exactly(np.exp(np.minimum(exponents.min(axis=1), 0.0)))


def epsilon_delta(log_kappa: np.ndarray, mechanism: Mechanism, *, delta: float = 1e-5) -> Estimate:
    """γ ≤ κ·e^ε + δ for the (ε, δ) that DP-SGD is usually reported with.

    Args:
        log_kappa: (k,) log κ.
        mechanism: σ, T and q; σ = 0 gives 1.
        delta: δ, as in :func:`lib.accounting.epsilon`.
    """
    if mechanism.noise_multiplier < SMALLEST_NOISE:
        return _exactly(np.ones_like(log_kappa))
    full = {"noise_multiplier": mechanism.noise_multiplier, "steps": mechanism.steps}
    if mechanism.sampling_rate == 1:
        # Its distribution of losses would take long where little noise makes ε large.
        epsilon = float(
            accounting.gaussian_epsilon_of_rows(
                **{name: [value] for name, value in full.items()}, delta=[delta]
            )[0]
        )
    else:
        epsilon = accounting.epsilon(**full, delta=delta, sampling_rate=mechanism.sampling_rate)
    return _exactly(np.minimum(np.exp(np.minimum(log_kappa + epsilon, 0.0)) + delta, 1.0))


def fano(log_kappa: np.ndarray, mechanism: Mechanism) -> Estimate:
    """Fano's inequality: the largest γ with KL(γ ‖ κ) ≤ KL(μ ‖ ν) (arXiv:2210.13662).

    The releases tell about the target no more than KL(μ ‖ ν). For a uniform prior over n points
    KL(γ ‖ 1/n) is log n − h(γ) − (1 − γ)·log(n − 1), the usual form.

    Args:
        log_kappa: (k,) log κ.
        mechanism: σ, T and q; σ = 0 gives 1.
    """
    divergence = _divergence_of_order_one(mechanism)
    return _exactly(_largest_success(log_kappa, np.ones(1), np.array([divergence])))


def renyi_fano(log_kappa: np.ndarray, mechanism: Mechanism) -> Estimate:
    """The largest γ with D_α(γ ‖ κ) ≤ D_α(μ ‖ ν) for all α of :data:`ORDERS` and α = 1.

    Fano's inequality for Rényi divergences (arXiv:2210.13662). Dropping a term of D_α(γ ‖ κ) gives
    :func:`renyi`, which is therefore never below this.

    Args:
        log_kappa: (k,) log κ.
        mechanism: σ, T and q; σ = 0 gives 1.
    """
    orders = np.append(1.0, ORDERS)
    divergences = np.append(_divergence_of_order_one(mechanism), _divergences(mechanism))
    return _exactly(_largest_success(log_kappa, orders, divergences))


METHODS = {
    "pld": pld,
    "gaussian": gaussian,
    "monte_carlo": monte_carlo,
    "target_side": target_side,
    "renyi": renyi,
    "epsilon_delta": epsilon_delta,
    "fano": fano,
    "renyi_fano": renyi_fano,
}


def squared_error_bound(*, epsilon, diameter: float = 1.0) -> np.ndarray:
    """Lower bound of Guo et al. 2022 (arXiv:2201.12383) on a reconstruction's mean squared error.

    diameter²/(4(e^ε − 1)) a coordinate, the diameter being the range of a pixel. It is a statement
    about *unbiased* attacks, at the worst point, and its ε is that of Rényi divergence of order 2.
    Hayes et al. (arXiv:2302.07225) put the ε of (ε, δ) in its place, as is done here to compare.
    An attack that knows that pixels are in [0, 1], or what images look like, is not unbiased:
    always answering with one image has an error that no ε changes.

    Args:
        epsilon: ε > 0; numbers or arrays.
        diameter: of a coordinate's range.

    Returns:
        Lower bounds; 0 where they are too small for a float.
    """
    epsilon = np.asarray(epsilon, dtype=float)
    if not (epsilon > 0).all():
        raise WorkbookError(f"epsilon = {epsilon}; allowed: numbers greater than 0")
    return diameter**2 * np.exp(-epsilon) / (-4 * np.expm1(-epsilon))


def prior_mass(samples: np.ndarray, *, radius: float, confidence: float = 0.95) -> Estimate:
    """κ from samples of the prior: the largest chance of any ball of this ℓ₂ radius.

    The value is the mass of the best ball that was found, which may be far below κ; the interval
    is what holds. It follows from the counts of :func:`ball_counts`.

    κ = sup over all points c of P[‖z − c‖ ≤ η], what an attacker gets right, to within η, without
    looking (arXiv:2302.07225, Appendix L, estimates it from samples too). Here with an interval
    that holds for any prior and dimension:

    From below: the first half of the samples proposes a centre, and the second half, which did not
    choose it, says how much mass its ball has. The centre need not be a sample: in many dimensions
    the ball around the mean can hold half of the prior where one around a sample holds nothing.

    From above: of N samples a ball of mass κ holds a binomial (N, κ) number, m. Their squared
    distances from their mean are at most η² on average, so those between two of them at most 2η²,
    and at least one of the m has m samples (itself with them) at a mean squared distance of at
    most 2η², none beyond 2η. So the largest m for which some sample has such neighbours is at
    least the ball's count, wherever its centre is.

    Args:
        samples: (n, …) independent draws from the prior, n ≥ 2, flattened to vectors.
        radius: η ≥ 0, in the samples' unit; 0 means exact match.
        confidence: of the interval; each end errs with half of the rest.

    Returns:
        Estimate (rate of the second half) and interval for κ.

    Raises:
        WorkbookError: for a radius, a confidence or a number of samples out of range.
    """
    _check_confidence(confidence)
    counts = ball_counts(samples, radius=radius)
    tested = {"n_successes": counts.n_near, "n_trials": counts.n_tested}
    crowd = {"n_successes": counts.n_crowd, "n_trials": counts.n_samples}
    return Estimate(
        counts.n_near / counts.n_tested,
        float(intervals.rate_lower(**tested, confidence=confidence)),
        float(intervals.rate_upper(**crowd, confidence=confidence)),
    )


@dataclass(frozen=True)
class BallCounts:
    """What :func:`prior_mass` is made of."""

    n_near: int  # samples of the second half in the ball that the first half proposed
    n_tested: int  # of as many
    n_crowd: int  # samples that could be in one ball, wherever its centre
    n_samples: int  # of as many


def ball_counts(samples: np.ndarray, *, radius: float) -> BallCounts:
    """The counts behind :func:`prior_mass`.

    Args:
        samples, radius: as there.

    Raises:
        WorkbookError: for a radius or a number of samples out of range.
    """
    points = np.asarray(samples, dtype=float).reshape(len(samples), -1)
    if len(points) < 2 or not np.isfinite(points).all():
        raise WorkbookError(f"samples of shape {points.shape}; allowed: at least 2, all finite")
    if not (math.isfinite(radius) and radius >= 0):
        raise WorkbookError(f"radius = {radius}; allowed: a finite number of at least 0")
    half = len(points) // 2
    if radius == 0:
        _, labels, numbers = np.unique(points, axis=0, return_inverse=True, return_counts=True)
        labels = np.ravel(labels)
        favourite = np.argmax(np.bincount(labels[:half]))
        n_near, n_crowd = int(np.sum(labels[half:] == favourite)), int(numbers.max())
    else:
        n_crowd = int(_crowds(points, radius)[1].max())
        distances = np.linalg.norm(points[half:] - _centre(points[:half], radius), axis=1)
        n_near = int(np.sum(distances <= radius))
    return BallCounts(n_near, len(points) - half, n_crowd, len(points))


def _exactly(value: np.ndarray) -> Estimate:
    return Estimate(value, value, value)


def _log_kappa(kappa, log_kappa) -> np.ndarray:
    if (kappa is None) == (log_kappa is None):
        raise WorkbookError(
            f"kappa = {kappa}, log_kappa = {log_kappa}; allowed: exactly one of the two"
        )
    if kappa is not None:
        values = np.asarray(kappa, dtype=float)
        if values.size == 0 or not ((values > 0) & (values <= 1)).all():
            raise WorkbookError(f"kappa = {kappa}; allowed: numbers in (0, 1]")
        return np.log(values)
    values = np.asarray(log_kappa, dtype=float)
    if values.size == 0 or not (np.isfinite(values) & (values <= 0)).all():
        raise WorkbookError(f"log_kappa = {log_kappa}; allowed: finite numbers of at most 0")
    return values


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise WorkbookError(f"confidence = {confidence}; allowed: a number in (0, 1)")


def _n_kept(log_kappa, mechanism: Mechanism, n_samples: int, confidence: float, rng) -> np.ndarray:
    """⌊κN⌋, 1 where rounding makes it 0.999…; refuses what cannot be sampled."""
    if isinstance(n_samples, bool) or int(n_samples) != n_samples or n_samples < 1:
        raise WorkbookError(f"n_samples = {n_samples}; allowed: a whole number of at least 1")
    _check_confidence(confidence)
    if not isinstance(rng, np.random.Generator):
        raise WorkbookError(f"rng = {rng!r}; allowed: a numpy.random.Generator")
    if mechanism.noise_multiplier < SMALLEST_NOISE:
        raise WorkbookError(
            f"noise_multiplier = {mechanism.noise_multiplier}; allowed: at least "
            f"{SMALLEST_NOISE} to sample, or method 'pld'"
        )
    kept = n_samples * np.exp(log_kappa) * (1 + 1e-12)
    if (kept < 1).any():
        raise WorkbookError(
            f"n_samples = {n_samples} with log_kappa = {log_kappa.min():.6g} keeps no sample; "
            "allowed: n_samples of at least 1/kappa"
        )
    return np.minimum(np.floor(kept), n_samples).astype(int)


def _without_noise(kappa: np.ndarray, mechanism: Mechanism) -> np.ndarray:
    """γ if the batches were public: right once the target was drawn, else a blind guess.

    Noise only hides, so this is an upper bound for every σ.
    """
    rate = mechanism.sampling_rate
    never = (1 - rate) ** mechanism.steps if rate < 1 else 0.0
    return 1 - never * (1 - kappa)


# The grid is a few megabytes; a sweep over prior sizes, or a table's rows, asks again at once.
@functools.lru_cache(maxsize=2)
def _power_curve(
    mechanism: Mechanism, accuracy: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """For each ε of a grid: ε, log of ν's mass and μ's mass where the log ratio is at least ε.

    Also how far any γ computed from them can be above the truth.
    """
    lowest, highest = (_loss(release, mechanism) for release in _release_range(mechanism))
    # What the accuracy needs, or finer where so few cells are cheap (narrow for small q).
    interval = min(3.99 * accuracy / math.sqrt(mechanism.steps), (highest - lowest) / FEWEST_CELLS)
    composed = None
    while composed is None:
        composed = _composed_losses(mechanism, interval)
        interval *= 1 if composed else 2
    lowest, masses, infinite = composed
    losses = interval * (lowest + np.arange(masses.size))
    with np.errstate(divide="ignore"):
        log_masses = np.log(masses) - losses
    log_tails = np.logaddexp.accumulate(log_masses[::-1])[::-1]
    powers = np.cumsum(masses[::-1])[::-1] + infinite + ROUNDING
    spread = 2 * mechanism.steps * math.log(math.cosh(interval / 2)) if interval < 1 else 1.0
    error = min(1.0, math.sqrt(math.expm1(min(spread, 2.0))) / 2 + 3 * TAIL + 2 * ROUNDING)
    return losses, log_tails, powers, error


def _composed_losses(mechanism: Mechanism, interval: float) -> tuple[int, np.ndarray, float] | None:
    """μ's distribution of the log ratio of T steps, on multiples of ``interval``.

    Returns:
        Index of the first point, (n,) masses, and the mass counted as infinite; None if the grid
        would be too large.
    """
    step = _one_step_losses(mechanism, interval)
    if step is None:
        return None
    lowest, masses, infinite = step
    steps, first = mechanism.steps, mechanism.steps * lowest
    # Chernoff's bounds on where all but TAIL of the sum lies, at orders around a normal's best.
    position = np.arange(masses.size)
    total = masses.sum()
    # Sums rather than BLAS products: the same bits whatever the number of threads.
    mean = (masses * position).sum() / total
    variance = (masses * (position - mean) ** 2).sum() / total + 1.0
    effort = math.log(2 / TAIL)
    low, high = 0, steps * (masses.size - 1)
    for order in math.sqrt(2 * effort / (steps * variance)) * 2.0 ** np.arange(-3, 3):
        for sign in (-1, 1):
            exponents = sign * order * (position - mean)
            peak = exponents.max()
            log_moment = peak + math.log((masses * np.exp(exponents - peak)).sum())
            reach = math.ceil((steps * log_moment + effort) / order)
            if sign > 0:
                high = min(high, math.floor(steps * mean) + reach + 1)
            else:
                low = max(low, math.floor(steps * mean) - reach)
    if high - low >= LARGEST_GRID:
        return None
    # What lies outside wraps around: moved up it is harmless, moved down it counts as infinite.
    length = fft.next_fast_len(max(high - low + 1, masses.size), real=True)
    wrapped = fft.irfft(fft.rfft(masses, length) ** steps, length)
    together = np.maximum(np.roll(wrapped, -(low % length))[: high - low + 1], 0.0)
    infinite = -math.expm1(steps * math.log1p(-infinite)) + TAIL
    return first + low, together, infinite


def _one_step_losses(mechanism: Mechanism, interval: float) -> tuple[int, np.ndarray, float] | None:
    """The same for one step, μ's and ν's mass of each cell both kept (connect the dots).

    A cell [ε, ε + h] holding mass P of μ and Q of ν is split between its ends into masses of μ
    that add up to P and, divided by the ratios there, to Q (arXiv:2207.04380).
    """
    sigma, rate = mechanism.noise_multiplier, mechanism.sampling_rate
    ends = [float(_loss(release, mechanism)) for release in _release_range(mechanism)]
    lowest, highest = math.floor(ends[0] / interval), math.ceil(ends[1] / interval)
    if highest - lowest >= LARGEST_GRID:
        return None
    losses = interval * np.arange(lowest, highest + 1)
    releases = _release(losses, mechanism)
    out = _cell_masses(releases / sigma)
    inside = (1 - rate) * out + rate * _cell_masses((releases - 1) / sigma)
    # Where floating-point numbers cannot hold ν's mass, all goes to the upper end: still a bound.
    out = np.where(out > 1e-290, out, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        excess = -np.expm1(losses[:-1] + np.log(out) - np.log(inside))
    upward = inside * np.nan_to_num(np.clip(excess / -math.expm1(-interval), 0.0, 1.0), nan=1.0)
    masses = np.append(inside - upward, 0.0)
    masses[1:] += upward
    below, above = (
        (1 - rate) * special.ndtr(sign * releases[end] / sigma)
        + rate * special.ndtr(sign * (releases[end] - 1) / sigma)
        for sign, end in ((1, 0), (-1, -1))
    )
    masses[0] += below  # a smaller ratio taken for this one: from above, too
    return lowest, masses, float(above)


def _release_range(mechanism: Mechanism) -> tuple[float, float]:
    """Where all but TAIL of μ's releases lie, over all steps."""
    reach = -special.ndtri(TAIL / mechanism.steps) * mechanism.noise_multiplier
    return (0.0 if mechanism.sampling_rate < 1 else 1.0) - reach, 1 + reach


def _loss(release, mechanism: Mechanism):
    """Log ratio of μ to ν for a released coordinate."""
    rate = mechanism.sampling_rate
    exponent = (release - 0.5) / mechanism.noise_multiplier**2
    if rate == 1:
        return exponent
    return np.logaddexp(math.log1p(-rate), math.log(rate) + exponent)


def _release(losses: np.ndarray, mechanism: Mechanism) -> np.ndarray:
    """The inverse of :func:`_loss`; −∞ below its range."""
    rate = mechanism.sampling_rate
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.log1p(np.maximum(np.expm1(losses) / rate, -1.0))
        large = losses - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-losses))
    return np.where(losses < 1, small, large) * mechanism.noise_multiplier**2 + 0.5


def _cell_masses(edges: np.ndarray) -> np.ndarray:
    """Mass of a standard normal between neighbouring edges, differences taken in the near tail."""
    left, right = special.ndtr(edges), special.ndtr(-edges)
    return np.where(edges[:-1] > 0, right[:-1] - right[1:], left[1:] - left[:-1])


def _losses(
    mechanism: Mechanism, n_samples: int, rng: np.random.Generator, *, target_in: bool
) -> np.ndarray:
    """(n,) log ratios of T releases together, drawn from μ (target in) or ν."""
    sigma, steps, rate = mechanism.noise_multiplier, mechanism.steps, mechanism.sampling_rate
    if rate == 1:  # the sum of the releases says all
        shift = math.sqrt(steps) / sigma
        return shift * (rng.standard_normal(n_samples) + (0.5 if target_in else -0.5) * shift)
    rows = max(1, CHUNK // steps)
    losses = np.empty(n_samples)
    for start in range(0, n_samples, rows):
        shape = (min(rows, n_samples - start), steps)
        # (release − 1/2)/σ², one array for all of it.
        exponents = rng.standard_normal(shape)
        exponents *= 1 / sigma
        exponents -= 0.5 / sigma**2
        if target_in:
            exponents += (rng.random(shape) < rate) / sigma**2
        # Beyond 80, the 1 − q beside q·e^x is lost in rounding anyway. So limited, eight ratios
        # can be multiplied before a logarithm is taken, which is what costs time.
        beyond = np.maximum(exponents - 80, 0.0).sum(axis=1)
        ratios = np.exp(np.minimum(exponents, 80, out=exponents), out=exponents)
        ratios *= rate
        ratios += 1 - rate
        products = np.multiply.reduceat(ratios, np.arange(0, steps, 8), axis=1)
        losses[start : start + shape[0]] = np.log(products).sum(axis=1) + beyond
    return losses


def _divergences(mechanism: Mechanism) -> np.ndarray:
    """Rényi divergences of μ from ν at :data:`ORDERS`, by quadrature where q < 1.

    The trapezoid rule converges exponentially for such integrands, here to about 1e-12.
    """
    sigma, rate = mechanism.noise_multiplier, mechanism.sampling_rate
    divergences = np.full(ORDERS.size, np.inf)
    if sigma < SMALLEST_NOISE:
        return divergences
    if rate == 1:
        return mechanism.steps * ORDERS / (2 * sigma**2)
    for number, order in enumerate(ORDERS):
        # Under ν, ratio^α times the density is a mixture of normals with means from 0 to α. Orders
        # that would take too many nodes are left out: they are high ones where σ is small, and
        # their divergences far too large to matter.
        releases, width = _nodes(sigma, order)
        if releases.size > LARGEST_QUADRATURE:
            break
        terms = order * _loss(releases, mechanism) - 0.5 * (releases / sigma) ** 2
        log_moment = special.logsumexp(terms) + math.log(width / (sigma * math.sqrt(2 * math.pi)))
        divergences[number] = max(0.0, mechanism.steps * float(log_moment) / (order - 1))
    return divergences


def _divergence_of_order_one(mechanism: Mechanism) -> float:
    """Kullback and Leibler's divergence of μ from ν."""
    sigma, rate = mechanism.noise_multiplier, mechanism.sampling_rate
    if sigma < SMALLEST_NOISE:
        return math.inf
    if rate == 1:
        return mechanism.steps / (2 * sigma**2)
    releases, width = _nodes(sigma, 1.0)
    out, inside = (stats.norm.pdf(releases, mean, sigma) for mean in (0, 1))
    density = (1 - rate) * out + rate * inside
    return mechanism.steps * width * float(np.sum(density * _loss(releases, mechanism)))


def _nodes(noise_multiplier: float, furthest: float) -> tuple[np.ndarray, float]:
    """Evenly spaced releases that carry all of normals with means 0 to ``furthest``, and width."""
    # The log ratio has singularities at a distance of π·σ² from the real line.
    width = min(noise_multiplier / 20, noise_multiplier**2 / 2)
    margin = 12 * noise_multiplier
    n_nodes = math.ceil((furthest + 2 * margin) / width) + 1
    return width * np.arange(n_nodes) - margin, width


def _largest_success(
    log_kappa: np.ndarray, orders: np.ndarray, divergences: np.ndarray
) -> np.ndarray:
    """Largest γ ≥ κ with D_α(γ ‖ κ) ≤ D_α for every order, by bisection from above."""
    low = np.repeat(log_kappa[:, None], orders.size, axis=1)
    high = np.zeros_like(low)
    for _ in range(60):
        middle = (low + high) / 2
        allowed = _binary_divergence(middle, log_kappa[:, None], orders) <= divergences
        low, high = np.where(allowed, middle, low), np.where(allowed, high, middle)
    return np.exp(high.min(axis=1))


def _binary_divergence(log_gamma, log_kappa, orders) -> np.ndarray:
    """Rényi divergence, of order α ≥ 1, of a coin of chance γ from one of chance κ ≤ γ."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log_wrong, log_wrong_blind = _log_complement(log_gamma), _log_complement(log_kappa)
        right, wrong = log_gamma - log_kappa, log_wrong - log_wrong_blind
        first = np.exp(log_gamma) * right + np.where(
            np.isneginf(log_wrong), 0.0, np.exp(log_wrong) * wrong
        )
        higher = np.logaddexp(
            log_gamma + (orders - 1) * right, log_wrong + (orders - 1) * wrong
        ) / (orders - 1)
    return np.where(orders == 1, first, higher)


def _log_complement(log_chance: np.ndarray) -> np.ndarray:
    """log(1 − e^x) without cancellation."""
    return np.log(-np.expm1(log_chance))


def _centre(points: np.ndarray, radius: float) -> np.ndarray:
    """A point whose ball holds many of the given ones: a sample, or a mean moved uphill."""
    n_inside, n_crowded = _crowds(points, radius)
    middle = np.argmax(n_crowded)
    distances = np.linalg.norm(points - points[middle], axis=1)
    crowd = np.argsort(distances, kind="stable")[: n_crowded[middle]]
    candidates = [points[np.argmax(n_inside)], points[crowd].mean(axis=0)]
    for _ in range(5):  # mean shift: usually settled by then, and any centre is allowed
        inside = np.linalg.norm(points - candidates[-1], axis=1) <= radius
        if not inside.any():
            break
        candidates.append(points[inside].mean(axis=0))
    numbers = [np.sum(np.linalg.norm(points - c, axis=1) <= radius) for c in candidates]
    return candidates[int(np.argmax(numbers))]


def _crowds(points: np.ndarray, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """For each point how many lie within the radius, and the crowd of :func:`prior_mass`.

    Returns:
        (n,) counts of points, itself included, within the radius; and (n,) the largest m for which
        the m nearest have a mean squared distance of at most 2·radius², all within 2·radius.
    """
    norms = np.einsum("ij,ij->i", points, points)
    slack = 1e-12 * float(norms.max())  # differences of large numbers; errs towards more
    numbers = np.arange(1, len(points) + 1)
    n_inside, n_crowded = np.empty((2, len(points)), dtype=int)
    block = max(1, 4 * CHUNK // len(points))
    for start in range(0, len(points), block):
        rows = slice(start, start + block)
        squares = np.sort(norms[rows, None] + norms - 2 * points[rows] @ points.T, axis=1)
        n_inside[rows] = np.sum(squares <= radius**2 + slack, axis=1)
        crowded = (np.cumsum(squares, axis=1) <= numbers * (2 * radius**2 + slack)) & (
            squares <= 4 * radius**2 + slack
        )
        n_crowded[rows] = np.sum(crowded, axis=1)
    return n_inside, n_crowded
