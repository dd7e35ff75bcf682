"""Trade-off curves of named families of mechanisms, for audits of f-DP.

A trade-off curve says how well anything can tell two neighbouring training sets apart by what a
mechanism releases. An audit of f-DP (Mahloujifar, Melis, Chaudhuri, *Auditing f-Differential
Privacy in One Run*, arXiv:2410.22235) holds one run's guesses against a whole curve, not against
one (ε, δ): it says more, but of a family of curves only. A run that refutes a Gaussian curve of
ε = 1 need not violate (1, δ)-differential privacy; randomised response does so without fail.

The families here are ordered by their noise: more noise, less privacy loss. Each gives

- ``name``, which every figure taken from it has to carry;
- ``curve(noise_multiplier, guesses)``, see :data:`Curve`;
- ``epsilon(noise_multiplier, delta)``, the (ε, δ) of that member;
- ``first_noise_multiplier`` and ``tolerance``, where a search starts and how fine it is.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import dp_accounting
import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_mechanism
from scipy import special

from lib import accounting, one_run
from lib.errors import WorkbookError

# From the chance that a guess is right, over coin and release, to the least chance that it is
# wrong. "mixed" guesses are "in" for some canaries and "out" for others; with "positive" ones
# only, the chances cannot exceed the coin's 1/2 and a single order of the two training sets counts.
Curve = Callable[[float], float]
GUESSES = ("mixed", "positive", "negative")
INTERVAL = 2e-3  # of the discretised privacy losses; rounding errs towards no refutation
# Where hockey-stick divergences are taken. Any set of ε gives a valid curve, a fine one a good one.
GRID = np.linspace(-20.0, 40.0, 6001)
Adjacency = privacy_loss_mechanism.AdjacencyType


@dataclass(frozen=True)
class Gaussian:
    """One Gaussian release: f(x) = Φ(Φ⁻¹(1 − x) − 1/σ), with sensitivity 1 (arXiv:1905.02383).

    Also what ``steps`` full-batch releases are, together, with σ = noise multiplier/√steps.
    """

    name: ClassVar[str] = "gaussian"
    tolerance: ClassVar[float] = 1e-8  # of the noise multiplier, relative
    first_noise_multiplier: ClassVar[float] = 1.0

    def curve(self, noise_multiplier: float, guesses: str = "mixed") -> Curve:
        """Closed form of the curve at σ = ``noise_multiplier``; see :func:`from_divergence`.

        Raises:
            WorkbookError: for a noise multiplier or kind of guesses out of range.
        """
        _check_noise_multiplier(noise_multiplier)
        check_guess_kind(guesses)
        scale = 1.0 if guesses == "mixed" else 2.0
        shift = 1 / noise_multiplier

        def least_wrong(right: float) -> float:
            if scale * right > 1:
                return math.inf
            return float(special.ndtr(special.ndtri(scale * right) - shift)) / scale

        return least_wrong

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """ε at ``delta`` of the Gaussian mechanism, exact (arXiv:1805.06530, Theorem 8)."""
        _check_noise_multiplier(noise_multiplier)
        return float(dp_accounting.get_epsilon_gaussian(noise_multiplier, delta))


@dataclass(frozen=True)
class SubsampledGaussian:
    """DP-SGD's releases together: ``steps`` Gaussian ones, each on a Poisson sample.

    The exact curve up to a pessimistic discretisation, from privacy-loss distributions
    (arXiv:2207.04380). With positive guesses it is that of "target in" against "target out", which
    for q < 1 is not the same as the other way round.

    Attributes:
        sampling_rate: q in (0, 1].
        steps: T ≥ 1.
        neighboring: ``"add_remove"``, or ``"replace_one"`` for pairs of canaries.
    """

    sampling_rate: float
    steps: int
    neighboring: str = "add_remove"
    name: ClassVar[str] = "subsampled_gaussian"
    tolerance: ClassVar[float] = 2e-4  # of the noise multiplier, relative

    def __post_init__(self):
        """Refuse a family that does not exist.

        Raises:
            WorkbookError: for a sampling rate, steps or neighbouring relation out of range.
        """
        if not 0 < self.sampling_rate <= 1:
            raise WorkbookError(
                f"sampling_rate = {self.sampling_rate}; allowed: a number in (0, 1]"
            )
        if isinstance(self.steps, bool) or int(self.steps) != self.steps or self.steps < 1:
            raise WorkbookError(f"steps = {self.steps}; allowed: a whole number of at least 1")
        if self.neighboring not in accounting.NEIGHBORING:
            raise WorkbookError(
                f"neighboring = {self.neighboring!r}; allowed: {', '.join(accounting.NEIGHBORING)}"
            )

    @property
    def first_noise_multiplier(self) -> float:
        """A σ of moderate privacy loss; discretised losses of very small σ take long."""
        return max(1.0, self.sampling_rate * math.sqrt(self.steps))

    def curve(self, noise_multiplier: float, guesses: str = "mixed") -> Curve:
        """The curve at σ = ``noise_multiplier``; see :func:`from_divergence`.

        Raises:
            WorkbookError: for a noise multiplier or kind of guesses out of range.
        """
        _check_noise_multiplier(noise_multiplier)
        check_guess_kind(guesses)
        if self.neighboring == "replace_one":
            target_in = target_out = Adjacency.REPLACE
        else:
            target_in, target_out = Adjacency.REMOVE, Adjacency.ADD
        setting = (float(noise_multiplier), self.sampling_rate, self.steps)
        return from_divergence(
            None if guesses == "negative" else _divergence(*setting, target_in),
            None if guesses == "positive" else _divergence(*setting, target_out),
        )

    def epsilon(self, noise_multiplier: float, delta: float) -> float:
        """ε at ``delta``, as :func:`lib.accounting.epsilon` gives it."""
        return accounting.epsilon(
            noise_multiplier=noise_multiplier,
            delta=delta,
            sampling_rate=self.sampling_rate,
            steps=self.steps,
            neighboring=self.neighboring,
        )


Family = Gaussian | SubsampledGaussian


def family(
    name: str, *, sampling_rate: float = 1.0, steps: int = 1, neighboring: str = "add_remove"
) -> Family:
    """The family of that name; a Gaussian has neither sampling rate nor steps.

    Raises:
        WorkbookError: for an unknown name, and as :class:`SubsampledGaussian` does.
    """
    if name == Gaussian.name:
        return Gaussian()
    if name == SubsampledGaussian.name:
        return SubsampledGaussian(float(sampling_rate), int(steps), neighboring)
    raise WorkbookError(f"family = {name!r}; allowed: {Gaussian.name}, {SubsampledGaussian.name}")


def smallest_unrefuted_epsilon(
    *,
    n_canaries: one_run.Counts,
    n_guesses: one_run.Counts,
    n_correct: one_run.Counts,
    delta: one_run.Values,
    significance: one_run.Values = 0.05,
    family_name: str,
    guesses: str = "mixed",
    sampling_rate: one_run.Values = 1.0,
    steps: one_run.Counts = 1,
    neighboring: str = "add_remove",
) -> one_run.Values:
    """ε(δ) of the smallest unrefuted member of a family, from a table's columns.

    ``one_run.epsilon_lower_bound(…, method="fdp")`` with the family spelt out, so that rows of
    several settings are recomputed at once. No bound on the ε of mechanisms outside the family.

    Args:
        n_canaries, n_guesses, n_correct, delta, significance, guesses: as in
            :func:`lib.one_run.epsilon_lower_bound`; they broadcast against each other.
        family_name, sampling_rate, steps, neighboring: as in :func:`family`; rates and steps
            broadcast too.

    Returns:
        A float, or an array of the broadcast shape.

    Raises:
        WorkbookError: as :func:`lib.one_run.epsilon_lower_bound` and :func:`family` do.
    """
    columns = np.broadcast_arrays(
        n_canaries, n_guesses, n_correct, delta, significance, sampling_rate, steps
    )

    @functools.cache  # the same counts come again and again in a table
    def epsilon(m, r, v, delta, level, rate, t):
        return one_run.epsilon_lower_bound(
            n_canaries=m,
            n_guesses=r,
            n_correct=v,
            delta=delta,
            significance=level,
            method="fdp",
            family=family(family_name, sampling_rate=rate, steps=t, neighboring=neighboring),
            guesses=guesses,
        )

    rows = zip(*(column.ravel().tolist() for column in columns), strict=True)
    bounds = np.reshape([epsilon(*row) for row in rows], columns[0].shape)
    return bounds if bounds.shape else float(bounds)


def from_divergence(target_in: np.ndarray | None, target_out: np.ndarray | None) -> Curve:
    """Curve from hockey-stick divergences on :data:`GRID`.

    For a fair coin and a set S of releases on which "in" is guessed, P[right] = P_in[S]/2 and
    P[wrong] = P_out[S]/2, so P[right] ≤ e^ε·P[wrong] + δ₊(ε)/2 for every real ε; likewise for "out"
    with δ₋. Adding both, P[wrong] ≥ max over ε of e^−ε·(P[right] − δ₊(ε)/2 − δ₋(ε)/2). Without
    negative guesses the last term is not there. The sum of halves is never more than the larger
    of the two divergences, so this lies on or above what their convex lower envelope would give.

    Args:
        target_in: (n,) δ₊, divergence of "target in" from "target out"; None without positive
            guesses.
        target_out: (n,) δ₋, the other order; None without negative guesses.

    Returns:
        The curve. Divergences from above make it lie lower, which refutes less. They are taken to
        be convex in e^ε, as divergences are.
    """
    slopes = np.exp(-GRID)
    given = [divergence for divergence in (target_in, target_out) if divergence is not None]
    intercepts = slopes * sum(given) / 2
    # Where one ε takes over from the next. Each gives a valid value everywhere, so a breakpoint
    # that rounding misplaces costs a little power, not validity.
    breaks = (np.diff(intercepts) / np.diff(slopes))[::-1]
    breaks = np.maximum.accumulate(breaks).tolist()
    slopes, intercepts = slopes[::-1].tolist(), intercepts[::-1].tolist()

    def least_wrong(right: float) -> float:
        i = bisect.bisect_left(breaks, right)
        return max(0.0, slopes[i] * right - intercepts[i])

    return least_wrong


def check_guess_kind(guesses: str) -> None:
    """Refuse unknown kinds of guesses.

    Raises:
        WorkbookError: naming the allowed ones.
    """
    if guesses not in GUESSES:
        raise WorkbookError(f"guesses = {guesses!r}; allowed: {', '.join(GUESSES)}")


# A search halves the same steps from the same start each time, so many of its points come again.
@functools.lru_cache(maxsize=512)
def _divergence(
    noise_multiplier: float, sampling_rate: float, steps: int, adjacency: Adjacency
) -> np.ndarray:
    """Hockey-stick divergences on :data:`GRID` of the composed mechanism, from above."""
    loss = privacy_loss_mechanism.GaussianPrivacyLoss(
        noise_multiplier, sampling_prob=sampling_rate, adjacency_type=adjacency
    )
    bounds = loss.connect_dots_bounds()
    lower = math.floor(bounds.epsilon_lower / INTERVAL)
    upper = math.ceil(bounds.epsilon_upper / INTERVAL)
    one_step = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        INTERVAL,
        lower,
        upper,
        loss.get_delta_for_epsilon(np.arange(lower, upper + 1) * INTERVAL),
    )
    together = one_step.to_dense_pmf().self_compose(steps)
    return np.clip(together.get_delta_for_epsilon(GRID), 0.0, 1.0)


def _check_noise_multiplier(noise_multiplier: float) -> None:
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0):
        raise WorkbookError(
            f"noise_multiplier = {noise_multiplier}; allowed: a finite number greater than 0"
        )
