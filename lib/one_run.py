"""From the guesses of one training run to a lower bound on epsilon.

Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, arXiv:2305.08846. Each of m
canaries is in the training set or not by its own fair coin; the auditor sees the training's output,
guesses r of the m coins and gets v right. Under (ε, δ)-differential privacy v is hardly larger than
a Binomial(r, e^ε/(e^ε + 1)) variable, so a large v refutes the claim.

How the numbers of guesses are chosen decides what may be said. Choosing the best of several by what
they give, uncorrected, makes the bound exceed the truth far more often than its significance
allows. What is allowed:

- numbers fixed before the scores are seen: :func:`audit`;
- numbers chosen from the scores alone, coins unseen: ``counts_chosen="from_scores"``, where the
  term in δ is m·δ;
- the best of a grid fixed beforehand, the significance shared: :func:`best_over_counts`;
- chosen on one half of the canaries, coins and all, bound on the other: :func:`split_audit`.

Beyond fair coins and whole guesses: :func:`p_value_biased` (biased coins), :func:`p_value_weighted`
(guesses with confidences in [−1, 1]), :func:`audit_pairs` (a training set of fixed size).

``method="fdp"`` holds the same guesses against a family of trade-off curves (Mahloujifar, Melis,
Chaudhuri, arXiv:2410.22235; :mod:`lib.trade_off`). It gives ε(δ) of the smallest unrefuted curve
*of that family*, and is no lower bound on the ε of any (ε, δ)-DP claim: a run can refute each
Gaussian of ε ≤ 1 and be 1-DP. Compare such figures within one family only.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy import fft, optimize, special, stats
from scipy.optimize import elementwise

from lib import intervals
from lib.errors import WorkbookError

if TYPE_CHECKING:
    from lib.trade_off import Curve, Family

METHODS = ("steinke", "fdp")
COUNTS_CHOSEN = ("beforehand", "from_scores")
# Confidences of guesses are rounded to multiples of 1/CONFIDENCE_LEVELS before they are audited.
CONFIDENCE_LEVELS = 64
# Width in ε of the last bracket of a search, whose end that is certainly refuted is the bound.
TOLERANCE = 1e-10
Counts = int | np.ndarray
Values = float | np.ndarray


@dataclass(frozen=True)
class Audit:
    """One audit: what was guessed, how much of it was right, and what follows.

    ``epsilon_lower_bound`` is tested at ``significance``/``n_tests``. With ``method="fdp"`` it is
    ε(δ) of the smallest unrefuted curve of ``family`` and says nothing about other mechanisms.
    """

    n_canaries: int
    n_included: int
    n_positive: int
    n_negative: int
    n_correct_positive: int
    n_correct_negative: int
    delta: float
    significance: float
    method: str
    epsilon_lower_bound: float
    family: str | None = None
    counts_chosen: str = "beforehand"
    inclusion_probability: float = 0.5
    n_tests: int = 1
    neighboring: str = "add_remove"

    @property
    def n_guesses(self) -> int:
        """Guesses made; the auditor abstains on the other canaries."""
        return self.n_positive + self.n_negative

    @property
    def n_correct(self) -> int:
        """Guesses that agree with the coin."""
        return self.n_correct_positive + self.n_correct_negative


def p_value(
    *,
    n_canaries: Counts,
    n_guesses: Counts,
    n_correct: Counts,
    epsilon: Values,
    delta: Values,
    counts_chosen: str = "beforehand",
) -> Values:
    """Probability of at least ``n_correct`` right guesses if training were (ε, δ)-DP, from above.

    P[X ≥ v] + 2·m·δ·α with X ~ Binomial(r, e^ε/(1 + e^ε)) and α = max over 1 ≤ i ≤ v of
    P[v − i ≤ X < v]/i, capped at 1 (arXiv:2305.08846, Theorem 5.2 as in Appendix D). All m canaries
    count in the second term, abstentions included. Holds for a number of guesses fixed beforehand
    and coins that are fair and independent. For a number chosen from the scores alone the first
    term stands, since it holds given the scores, and the second is m·δ (Section 5's extensions).

    Args:
        n_canaries: m, canaries with a coin. All arguments broadcast against each other.
        n_guesses: r, guesses made, 0 ≤ r ≤ m.
        n_correct: v, guesses that were right, 0 ≤ v ≤ r.
        epsilon: hypothesis, ε ≥ 0.
        delta: hypothesis, 0 ≤ δ ≤ 1.
        counts_chosen: ``"beforehand"``, or ``"from_scores"`` with the coins unseen.

    Returns:
        A float, or an array of the broadcast shape.

    Raises:
        WorkbookError: for counts, ε, δ or ``counts_chosen`` out of range.
    """
    _check_counts(n_canaries, n_guesses, n_correct)
    _check_epsilon(epsilon)
    _check_delta(delta)
    _check_counts_chosen(counts_chosen)
    return _scalar_or_array(
        _p_value(n_canaries, n_guesses, n_correct, epsilon, delta, counts_chosen)
    )


def epsilon_lower_bound(
    *,
    n_canaries: Counts,
    n_guesses: Counts,
    n_correct: Counts,
    delta: Values,
    significance: Values = 0.05,
    method: str = "steinke",
    counts_chosen: str = "beforehand",
    family: Family | None = None,
    guesses: str = "mixed",
) -> Values:
    """Largest ε refuted at ``significance``; 0 if none is.

    If training is (ε, δ)-DP, the bound exceeds ε with probability at most ``significance``, given
    that the number of guesses did not depend on the outcome (arXiv:2305.08846, Section 4 and
    Appendix D). Accurate to 1e-9, rounded towards 0.

    With ``method="fdp"`` it is ε(δ) of the smallest unrefuted member of ``family``
    (arXiv:2410.22235): if training has a trade-off curve of that family, it exceeds the curve's
    ε(δ) with probability at most ``significance``. For any other training it means nothing.
    Rounded down by at most the family's tolerance of the noise multiplier.

    Args:
        n_canaries: m. This and the other numbers broadcast against each other.
        n_guesses: r, 0 ≤ r ≤ m.
        n_correct: v, 0 ≤ v ≤ r.
        delta: δ of the claim that is tested; compare the bound only with an ε for the same δ.
            Greater than 0 with ``method="fdp"``, where Gaussians have no finite ε at 0.
        significance: allowed probability of a false bound, in (0, 0.5].
        method: ``"steinke"`` or ``"fdp"``.
        counts_chosen: as in :func:`p_value`; ``"beforehand"`` with ``method="fdp"``.
        family: with ``method="fdp"``, one of :mod:`lib.trade_off`'s; None otherwise.
        guesses: with ``method="fdp"``, ``"mixed"``, or ``"positive"`` or ``"negative"`` if all
            were to be of one kind before the scores were seen, which refutes more.

    Returns:
        A float, or an array of the broadcast shape.

    Raises:
        WorkbookError: for counts, δ, significance, method or family out of range.
    """
    _check_counts(n_canaries, n_guesses, n_correct)
    _check_delta(delta)
    _check_significance(significance)
    _check_method(method, family, counts_chosen, delta)
    m, r, v, delta, significance = np.broadcast_arrays(
        n_canaries, n_guesses, n_correct, delta, significance
    )
    if method == "fdp":
        bounds = [
            _epsilon_of_family(*row, family, guesses)
            for row in zip(
                *(x.ravel().tolist() for x in (m, r, v, delta, significance)), strict=True
            )
        ]
        return _scalar_or_array(np.reshape(bounds, m.shape))
    if counts_chosen == "from_scores":
        # There δ adds m·δ whatever ε is. The 1e-15 covers what the difference is rounded by.
        significance, delta = significance * (1 - 1e-15) - m * delta, np.zeros(delta.shape)
    upper = _bound_without_delta(r, v, significance)
    if not delta.any():
        return _scalar_or_array(_rounded_down(upper))
    if upper.size == 1:
        numbers = (x.item() for x in (m, r, v, delta, significance, upper))
        return _scalar_or_array(np.full(upper.shape, _bound_above(0.0, *numbers)))
    return _scalar_or_array(
        _largest_refuted(
            lambda epsilon, m, r, v, delta: _p_value(m, r, v, epsilon, delta),
            (m, r, v, delta),
            significance,
            upper * (1 + 1e-9) + 1e-9,
        )
    )


def p_value_biased(
    *,
    n_canaries: Counts,
    n_positive: Counts,
    n_negative: Counts,
    n_correct: Counts,
    inclusion_probability: Values,
    epsilon: Values,
    delta: Values,
) -> Values:
    """:func:`p_value` for coins that put a canary in with probability p, fair or not.

    P[X₊ + X₋ ≥ v] + m·δ, capped at 1, with X₊ ~ Binomial(r₊, p·e^ε/(p·e^ε + 1 − p)) and
    X₋ ~ Binomial(r₋, (1 − p)·e^ε/((1 − p)·e^ε + p)) independent: what an ε-DP release can raise the
    chance of a right "in" or "out" to (arXiv:2305.08846, the general proposition for inclusion
    probability p). The fair coin's formula is wrong here by far: with p = 0.1, saying "out" of
    everyone is right 90 % of the time and reveals nothing.

    Holds given the scores, so for numbers of guesses chosen from them as well; at p = 1/2 it is
    ``p_value(…, counts_chosen="from_scores")``. Theorem 5.2's smaller term in δ is proved for fair
    coins only.

    Args:
        n_canaries: m. All arguments broadcast against each other.
        n_positive: r₊, guesses of "in".
        n_negative: r₋, guesses of "out".
        n_correct: v, 0 ≤ v ≤ r₊ + r₋ ≤ m.
        inclusion_probability: p in (0, 1), the same for every canary.
        epsilon: hypothesis, ε ≥ 0.
        delta: hypothesis, 0 ≤ δ ≤ 1.

    Returns:
        A float, or an array of the broadcast shape.

    Raises:
        WorkbookError: for counts, p, ε or δ out of range.
    """
    _check_signed_counts(n_canaries, n_positive, n_negative, n_correct)
    _check_inclusion_probability(inclusion_probability)
    _check_epsilon(epsilon)
    _check_delta(delta)
    return _scalar_or_array(
        _p_value_biased(
            n_canaries, n_positive, n_negative, n_correct, inclusion_probability, epsilon, delta
        )
    )


def epsilon_lower_bound_biased(
    *,
    n_canaries: Counts,
    n_positive: Counts,
    n_negative: Counts,
    n_correct: Counts,
    inclusion_probability: Values,
    delta: Values,
    significance: Values = 0.05,
) -> Values:
    """Largest ε that :func:`p_value_biased` refutes at ``significance``; 0 if none is.

    Args:
        n_canaries, n_positive, n_negative, n_correct, inclusion_probability, delta: as there.
        significance: as in :func:`epsilon_lower_bound`.

    Returns:
        A float, or an array of the broadcast shape.

    Raises:
        WorkbookError: for counts, p, δ or significance out of range.
    """
    _check_signed_counts(n_canaries, n_positive, n_negative, n_correct)
    _check_inclusion_probability(inclusion_probability)
    _check_delta(delta)
    _check_significance(significance)
    *arguments, significance = np.broadcast_arrays(
        n_canaries, n_positive, n_negative, n_correct, inclusion_probability, delta, significance
    )
    return _scalar_or_array(
        _largest_refuted(
            lambda epsilon, m, positive, negative, v, p, delta: _p_value_biased(
                m, positive, negative, v, p, epsilon, delta
            ),
            tuple(arguments),
            significance,
        )
    )


def p_value_weighted(
    guesses: np.ndarray, included: np.ndarray, *, epsilon: float, delta: float
) -> float:
    """:func:`p_value` for guesses with confidences, from fair coins.

    Guess tᵢ in [−1, 1] scores |tᵢ| if its sign is right. Given the scores, the sum v is at most
    Σ|tᵢ|·Bernoulli(e^ε/(1 + e^ε)) in distribution, and δ adds m·δ (arXiv:2305.08846, Section 5):
    P[Σ|tᵢ|·Bᵢ ≥ v] + m·δ, capped at 1. Binomial(Σ|tᵢ|, q) lives on other points and has smaller
    tails at some of them: not valid. To have whole guesses instead, use :func:`round_guesses` once,
    and :func:`epsilon_lower_bound` with ``counts_chosen="from_scores"`` on their counts: equally
    valid, but noisier.

    Confidences are first rounded to multiples of 1/64. The rounded guesses are what is audited, so
    rounding costs an auditor a little power, not validity. The distribution is a discrete Fourier
    transform's; 1e-12 on top of it covers its errors.

    Args:
        guesses: (m,) numbers in [−1, 1], chosen from the scores alone: positive for "in", negative
            for "out", 0 for no guess.
        included: (m,) booleans, the coins.
        epsilon: hypothesis, ε ≥ 0.
        delta: hypothesis, 0 ≤ δ ≤ 1.

    Raises:
        WorkbookError: for guesses outside [−1, 1], coins that do not match them, ε or δ out of
            range.
    """
    levels, n_right, m = _confidence_levels(guesses, included)
    _check_epsilon(epsilon)
    _check_delta(delta)
    return _p_value_weighted(levels, n_right, m, float(epsilon), float(delta))


def epsilon_lower_bound_weighted(
    guesses: np.ndarray, included: np.ndarray, *, delta: float, significance: float = 0.05
) -> float:
    """Largest ε that :func:`p_value_weighted` refutes at ``significance``; 0 if none is.

    Args:
        guesses, included, delta: as there.
        significance: as in :func:`epsilon_lower_bound`.

    Raises:
        WorkbookError: as :func:`p_value_weighted` does, and for a significance out of range.
    """
    levels, n_right, m = _confidence_levels(guesses, included)
    _check_delta(delta)
    _check_significance(significance)

    def excess(epsilon: float) -> float:
        return _p_value_weighted(levels, n_right, m, epsilon, float(delta)) - significance

    return _last_refuted(excess, 0.0, 1.0)


def round_guesses(guesses: np.ndarray, *, rng: np.random.Generator) -> np.ndarray:
    """Whole guesses from confidences: sign(tᵢ) with probability |tᵢ|, else no guess.

    Keeps each guess's mean (arXiv:2305.08846, Appendix B). How many are left depends on the scores:
    audit their counts with ``counts_chosen="from_scores"``.

    Args:
        guesses: (m,) numbers in [−1, 1].
        rng: rounds. Once: rounding again until the outcome pleases is no audit.

    Returns:
        (m,) int8 of +1, −1 and 0.

    Raises:
        WorkbookError: for guesses outside [−1, 1].
    """
    guesses = _checked_confidences(guesses)
    kept = rng.random(guesses.size) < np.abs(guesses)
    return np.where(kept, np.sign(guesses), 0).astype(np.int8)


def p_value_fdp(*, n_canaries: int, n_guesses: int, n_correct: int, curve: Curve) -> float:
    """Probability of at least ``n_correct`` right guesses under a trade-off curve, from above.

    The smallest probability that the curve does not allow (arXiv:2410.22235). Say N of r guesses
    are right, and pick one of m canaries at random. Where N = i, its guess is right with
    probability i/m and wrong with (r − i)/m; turning its coin over makes a right guess wrong and N
    one less. So for every i the chances R of "right, N ≥ i" and W of "wrong, N ≥ i − 1" are tied by
    the curve: W ≥ curve(R). Starting from P[N = v] = p and going down, each i forces some more
    probability on N = i − 1; when more than 1 is needed, p is impossible. A larger P[N ≥ v], or
    values above v, force at least as much (by induction), so the search over p is monotone.

    Holds for a number of guesses fixed beforehand and coins that are fair and independent.

    Args:
        n_canaries: m.
        n_guesses: r, 0 ≤ r ≤ m.
        n_correct: v, 0 ≤ v ≤ r.
        curve: of :mod:`lib.trade_off`, for the kind of guesses made.

    Returns:
        The p-value, accurate to 1e-9 relative and rounded up.

    Raises:
        WorkbookError: for counts out of range.
    """
    _check_counts(n_canaries, n_guesses, n_correct)

    def allowed(minus_log_p: float) -> bool:
        return not _refuted_by_curve(
            curve, n_canaries, n_guesses, n_correct, float(np.exp(-minus_log_p))
        )

    # Going down from p = 1, the last refuted p.
    if allowed(0.0):
        return 1.0
    return float(np.exp(-_last_true(lambda x: not allowed(x), tolerance=1e-9, largest=700.0)))


def guess(
    scores: np.ndarray, *, n_positive: int, n_negative: int, rng: np.random.Generator
) -> np.ndarray:
    """Guess "in" for the highest scores and "out" for the lowest (arXiv:2305.08846, Algorithm 1).

    Args:
        scores: (m,) numbers, larger where the canary looks more like a member; ±inf is allowed.
        n_positive: guesses of "in", fixed before the scores were seen.
        n_negative: guesses of "out", likewise.
        rng: breaks ties, so that equal scores are guessed in random order.

    Returns:
        (m,) int8: +1 for "in", −1 for "out", 0 for no guess.

    Raises:
        WorkbookError: for a NaN score, or more guesses than canaries.
    """
    scores = _checked_scores(scores)
    check_guesses(n_canaries=scores.size, n_positive=n_positive, n_negative=n_negative)
    order = _ascending(scores, rng)
    guesses = np.zeros(scores.size, dtype=np.int8)
    guesses[order[:n_negative]] = -1
    guesses[order[scores.size - n_positive :]] = 1
    return guesses


def audit(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    n_positive: int,
    n_negative: int,
    delta: float,
    significance: float = 0.05,
    method: str = "steinke",
    family: Family | None = None,
    counts_chosen: str = "beforehand",
    inclusion_probability: float = 0.5,
    rng: np.random.Generator,
) -> Audit:
    """Audit one training run from its canaries' scores and coins.

    Args:
        scores: (m,) as in :func:`guess`.
        included: (m,) booleans, the coins: True where the canary was in the training set.
        n_positive, n_negative, rng: as in :func:`guess`.
        delta, significance, method, family, counts_chosen: as in :func:`epsilon_lower_bound`. With
            ``method="fdp"``, guesses of one kind only are audited as such.
        inclusion_probability: p of the coins; any but 1/2 means :func:`epsilon_lower_bound_biased`.

    Returns:
        The counts and the bound.

    Raises:
        WorkbookError: as :func:`guess` and :func:`epsilon_lower_bound` do, for coins that are
            not booleans, one a score, and for biased coins with ``method="fdp"``.
    """
    included = _checked_coins(included, np.shape(scores))
    guesses = guess(scores, n_positive=n_positive, n_negative=n_negative, rng=rng)
    counts = Audit(
        n_canaries=included.size,
        n_included=int(np.count_nonzero(included)),
        n_positive=n_positive,
        n_negative=n_negative,
        n_correct_positive=int(np.count_nonzero(included[guesses > 0])),
        n_correct_negative=int(np.count_nonzero(~included[guesses < 0])),
        delta=delta,
        significance=significance,
        method=method,
        epsilon_lower_bound=0.0,
        family=None if family is None else family.name,
        counts_chosen=counts_chosen,
        inclusion_probability=inclusion_probability,
    )
    return replace(counts, epsilon_lower_bound=_bound(counts, family))


def best_over_counts(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    counts: Sequence[tuple[int, int]] | None = None,
    delta: float,
    significance: float = 0.05,
    method: str = "steinke",
    family: Family | None = None,
    rng: np.random.Generator,
) -> Audit:
    """Best bound over a grid of numbers of guesses, with Bonferroni's correction.

    Each pair of numbers is tested at ``significance`` divided by how many there are, so the largest
    bound is false with probability at most ``significance``, whatever the scores and coins. The
    grid itself must be fixed before the scores are seen.

    Args:
        scores, included, delta, significance, method, family: as in :func:`audit`.
        counts: pairs (n_positive, n_negative); by default every threshold, (1, 0) … (m, 0).
        rng: breaks ties, once for all pairs.

    Returns:
        The audit of the best pair (the first of equals), ``n_tests`` being the size of the grid.

    Raises:
        WorkbookError: as :func:`audit` does, and for an empty grid.
    """
    included = _checked_coins(included, np.shape(scores))
    m = included.size
    grid = _every_threshold(m) if counts is None else _grid(counts)
    correct = _correct_by_count(scores, included, grid, rng)
    each = significance / len(grid)
    _check_significance(each)
    if method == "steinke":
        _check_method(method, family, "beforehand", delta)
        _check_delta(delta)
        best, bound = _largest_bound(m, grid.sum(1), correct.sum(1), delta, each)
    else:
        bounds = [
            epsilon_lower_bound(
                n_canaries=m,
                n_guesses=int(positive + negative),
                n_correct=int(right),
                delta=delta,
                significance=each,
                method=method,
                family=family,
                guesses=_guess_kind(positive, negative),
            )
            for (positive, negative), right in zip(grid, correct.sum(1), strict=True)
        ]
        best = int(np.argmax(bounds))
        bound = bounds[best]
    return Audit(
        n_canaries=m,
        n_included=int(np.count_nonzero(included)),
        n_positive=int(grid[best, 0]),
        n_negative=int(grid[best, 1]),
        n_correct_positive=int(correct[best, 0]),
        n_correct_negative=int(correct[best, 1]),
        delta=delta,
        significance=significance,
        method=method,
        epsilon_lower_bound=bound,
        family=None if family is None else family.name,
        n_tests=len(grid),
    )


def split_audit(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    counts: Sequence[tuple[int, int]],
    delta: float,
    significance: float = 0.05,
    rng: np.random.Generator,
) -> Audit:
    """Choose the numbers of guesses on one random half of the canaries, bound on the other.

    On the first half, coins are looked at and the pair with the largest bound is taken (if none
    gives one, that with the smallest p-value at ε = 0). Given that half's coins, training is as
    private in the other half's, and the numbers depend on the release alone: m·δ with half the
    canaries, as in ``counts_chosen="from_scores"``. At δ > 0 Bonferroni usually gives more.

    Args:
        scores, included, delta, significance: as in :func:`audit`.
        counts: pairs (n_positive, n_negative) to choose from, guesses within a half.
        rng: splits the canaries, and breaks ties.

    Returns:
        The audit of the second half, its canaries only.

    Raises:
        WorkbookError: as :func:`best_over_counts` does; counts must fit into either half.
    """
    included = _checked_coins(included, np.shape(scores))
    scores = np.asarray(scores, dtype=float)
    grid = _grid(counts)
    order = rng.permutation(included.size)
    first, second = order[: included.size // 2], order[included.size // 2 :]
    right = _correct_by_count(scores[first], included[first], grid, rng).sum(1)
    tested = {"n_canaries": first.size, "n_guesses": grid.sum(1), "n_correct": right}
    bounds = epsilon_lower_bound(**tested, delta=delta, significance=significance)
    best = int(np.argmax(bounds))
    if bounds[best] == 0:
        best = int(np.argmin(p_value(**tested, epsilon=0.0, delta=delta)))
    return audit(
        scores[second],
        included[second],
        n_positive=int(grid[best, 0]),
        n_negative=int(grid[best, 1]),
        delta=delta,
        significance=significance,
        counts_chosen="from_scores",
        rng=rng,
    )


def audit_pairs(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    n_guesses: int,
    delta: float,
    significance: float = 0.05,
    method: str = "steinke",
    family: Family | None = None,
    rng: np.random.Generator,
) -> Audit:
    """Audit a training set of fixed size: a fair coin puts one canary of each pair in.

    The guess says which of the two is in, by the larger score, for the pairs whose scores differ
    most (arXiv:2305.08846, Appendix A). Turning a coin over replaces one example by another, so the
    bound is on the ε of *replace-one* privacy: hold it against an ε accounted as such, and a family
    with ``neighboring="replace_one"``. White-box, the strongest pair is +C and −C along one
    coordinate.

    Args:
        scores: (n, 2) numbers, larger where the canary looks more like a member; a pair must not
            hold the same infinity twice.
        included: (n, 2) booleans, one True in each row.
        n_guesses: pairs guessed, fixed before the scores were seen; the rest is left alone.
        delta, significance, method, family: as in :func:`audit`.
        rng: breaks ties.

    Returns:
        The audit, ``n_canaries`` being the pairs, positive guesses those of the first of a pair.

    Raises:
        WorkbookError: for scores or coins of another form, and as :func:`audit` does.
    """
    scores, included = np.asarray(scores, dtype=float), np.asarray(included)
    if scores.ndim != 2 or scores.shape[1] != 2:
        raise WorkbookError(f"scores has shape {scores.shape}; allowed: two scores a pair, (n, 2)")
    _checked_coins(included, scores.shape)
    if (included.sum(1) != 1).any():
        raise WorkbookError(
            f"included has {included.sum(1)[included.sum(1) != 1][0]} of a pair in; allowed: one"
        )
    difference = scores[:, 0] - scores[:, 1]
    if np.isnan(difference).any():
        raise WorkbookError("scores holds NaN, or the same infinity twice in a pair")
    n = difference.size
    check_guesses(n_canaries=n, n_positive=n_guesses, n_negative=0)
    guessed = _ascending(-np.abs(difference), rng)[:n_guesses]
    says_first = np.where(difference == 0, rng.random(n) < 0.5, difference > 0)
    says_first, first_in = says_first[guessed], included[guessed, 0]
    counts = Audit(
        n_canaries=n,
        n_included=n,
        n_positive=int(np.count_nonzero(says_first)),
        n_negative=int(np.count_nonzero(~says_first)),
        n_correct_positive=int(np.count_nonzero(says_first & first_in)),
        n_correct_negative=int(np.count_nonzero(~says_first & ~first_in)),
        delta=delta,
        significance=significance,
        method=method,
        epsilon_lower_bound=0.0,
        family=None if family is None else family.name,
        neighboring="replace_one",
    )
    return replace(counts, epsilon_lower_bound=_bound(counts, family))


def epsilon_lower_bound_from_runs(
    *,
    n_first: Counts,
    n_wrong_first: Counts,
    n_second: Counts,
    n_wrong_second: Counts,
    delta: Values,
    significance: Values = 0.05,
) -> Values:
    """Lower bound on ε from independent runs on two neighbouring training sets.

    The audit that one run is to replace. Under (ε, δ)-DP both e^ε·α + β ≥ 1 − δ and
    α + e^ε·β ≥ 1 − δ for the error rates α and β of any guess which set it was (Kairouz, Oh,
    Viswanath, arXiv:1311.0776). Clopper and Pearson's upper limits of α and β get half of
    ``significance`` each; both orders follow from the same two limits, so taking the larger bound
    costs nothing more (as in arXiv:2101.04535).

    Args:
        n_first: runs on the first set. All arguments broadcast against each other.
        n_wrong_first: of these, guessed to be of the second; the rule was fixed beforehand.
        n_second, n_wrong_second: likewise for the second set.
        delta: δ of the claim, in [0, 1].
        significance: allowed probability of a bound above the truth.

    Returns:
        ε ≥ 0: a float, or an array of the broadcast shape.

    Raises:
        WorkbookError: for more wrong guesses than runs, δ or significance out of range.
    """
    _check_delta(delta)
    _check_significance(significance)
    limits = []
    for counts in ((n_wrong_first, n_first), (n_wrong_second, n_second)):
        n_wrong, n = np.broadcast_arrays(*counts)
        bad = (n_wrong < 0) | (n_wrong > n) | (n < 1)
        if bad.any():
            raise WorkbookError(
                f"{n_wrong[bad][0]} wrong guesses in {n[bad][0]} runs; allowed: 0 to {n[bad][0]}, "
                "of at least 1"
            )
        # One-sided at half the significance each is two-sided at all of it.
        limits.append(
            intervals.rate_upper(
                n_successes=n_wrong, n_trials=n, confidence=np.subtract(1, significance)
            )
        )
    alpha, beta = limits
    ratio = np.maximum((1 - delta - beta) / alpha, (1 - delta - alpha) / beta)
    return _scalar_or_array(np.log(np.maximum(ratio, 1.0)))


def index_of_largest_bound(
    *,
    n_canaries: int,
    n_guesses: np.ndarray,
    n_correct: np.ndarray,
    delta: float,
    significance: float,
) -> int:
    """Which of (n,) counts gives the largest :func:`epsilon_lower_bound`; 0 if none gives any.

    Of equal counts it is the first; of others whose bounds are within 1e-9, either.

    Args:
        n_canaries, delta, significance: as there, one of each.
        n_guesses, n_correct: (n,).

    Raises:
        WorkbookError: for counts, δ or significance out of range.
    """
    _check_counts(n_canaries, n_guesses, n_correct)
    _check_delta(delta)
    _check_significance(significance)
    r, v = (np.asarray(x, dtype=np.int64) for x in (n_guesses, n_correct))
    return _largest_bound(n_canaries, r, v, delta, significance)[0]


def check_guesses(*, n_canaries: int, n_positive: int, n_negative: int) -> None:
    """Refuse numbers of guesses that are negative or together exceed the canaries.

    Raises:
        WorkbookError: naming the numbers.
    """
    for name, value in (("n_positive", n_positive), ("n_negative", n_negative)):
        _check(name, value, _is_integer(value) and value >= 0, "a whole number of at least 0")
    if n_positive + n_negative > n_canaries:
        raise WorkbookError(
            f"n_positive = {n_positive} and n_negative = {n_negative} make more guesses than "
            f"n_canaries = {n_canaries}; allowed: n_positive + n_negative ≤ n_canaries"
        )


def _bound(audit: Audit, family: Family | None) -> float:
    """The bound that an audit's counts give."""
    shared = {"delta": audit.delta, "significance": audit.significance / audit.n_tests}
    if audit.inclusion_probability != 0.5:
        _check_significance(audit.significance)
        if audit.method != "steinke":
            raise WorkbookError(
                f"method = {audit.method!r} with inclusion_probability = "
                f"{audit.inclusion_probability}; allowed with biased coins: steinke"
            )
        _check_method(audit.method, family, audit.counts_chosen, audit.delta)
        return epsilon_lower_bound_biased(
            n_canaries=audit.n_canaries,
            n_positive=audit.n_positive,
            n_negative=audit.n_negative,
            n_correct=audit.n_correct,
            inclusion_probability=audit.inclusion_probability,
            **shared,
        )
    # Which of a pair is named follows from the scores, so pairs are never guesses of one kind.
    one_kind = audit.neighboring == "add_remove"
    return epsilon_lower_bound(
        n_canaries=audit.n_canaries,
        n_guesses=audit.n_guesses,
        n_correct=audit.n_correct,
        method=audit.method,
        counts_chosen=audit.counts_chosen,
        family=family,
        guesses=_guess_kind(audit.n_positive, audit.n_negative) if one_kind else "mixed",
        **shared,
    )


def _guess_kind(n_positive: int, n_negative: int) -> str:
    if n_positive and n_negative:
        return "mixed"
    return "negative" if n_negative else "positive"


def _every_threshold(m: int) -> np.ndarray:
    """(m, 2) numbers of guesses (1, 0) … (m, 0)."""
    if m == 0:
        return _grid([])
    return np.array([np.arange(1, m + 1), np.zeros(m, dtype=int)]).T


def _grid(counts: Sequence[tuple[int, int]]) -> np.ndarray:
    """(n, 2) different numbers of guesses: a repeated one would cost significance for nothing."""
    grid = np.asarray(list(dict.fromkeys(tuple(pair) for pair in counts)))
    if grid.ndim != 2 or grid.shape[1] != 2:
        raise WorkbookError(
            f"counts has shape {grid.shape}; allowed: one pair (n_positive, n_negative) or more"
        )
    return grid


def _correct_by_count(scores, included, grid, rng) -> np.ndarray:
    """(n, 2) right guesses of "in" and "out" for each of (n, 2) numbers of guesses."""
    for n_positive, n_negative in (grid.min(0), grid[np.argmax(grid.sum(1))]):
        check_guesses(n_canaries=included.size, n_positive=n_positive, n_negative=n_negative)
    scores = _checked_scores(scores)
    in_order = included[_ascending(scores, rng)]
    from_top = np.concatenate([[0], np.cumsum(in_order[::-1])])
    from_bottom = np.concatenate([[0], np.cumsum(~in_order)])
    return np.array([from_top[grid[:, 0]], from_bottom[grid[:, 1]]]).T


def _ascending(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Indices in rising order, those of equal scores in random order."""
    tie_breaker = rng.random(scores.size)  # drawn in any case: what comes after stays the same
    order = np.argsort(scores)
    in_order = scores[order]
    if (in_order[1:] == in_order[:-1]).any():
        return np.lexsort((tie_breaker, scores))
    return order


def _largest_bound(m: int, r, v, delta: float, significance: float) -> tuple[int, float]:
    """Index and value of the largest bound of (n,) counts; (0, 0.0) if none gives any.

    Only the maximum is wanted, and where it is can be guessed: so far always at a vertex of the
    upper hull of the points (r, v), few in number. Nobody has proved that it must be there, so all
    other counts are held against the largest bound of the vertices, most of them by p-values from
    below, and those it does not rule out have their turn.
    """

    def climb(places, best, largest):
        """Best and largest after these counts, those first that δ = 0 would give most."""
        upper = _bound_without_delta(r[places], v[places], np.full(places.size, significance))
        for j in np.argsort(-upper, kind="stable"):
            if upper[j] <= largest:
                break  # δ only lowers bounds
            numbers = (x.item() for x in (r[places[j]], v[places[j]]))
            bound = _bound_above(largest, m, *numbers, delta, significance, upper[j].item())
            if bound > largest:
                best, largest = int(places[j]), bound
        return best, largest

    # The first of equal counts; r rises, and where it does not v falls.
    left = np.unique(r * (m + 1) - v, return_index=True)[1]
    # α is at least its mean over i = v, P[X < v]/v. So p is at least the mean of 1 and 2·m·δ/v with
    # weights P[X ≥ v] and P[X < v], and never less than the smaller of the two.
    left = left[2 * m * delta < significance * v[left]]
    if left.size == 0:
        return 0, 0.0
    largest_v = left[np.diff(r[left], prepend=-1) > 0]
    vertices = largest_v[_upper_hull(r[largest_v], v[largest_v])]
    best, largest = climb(vertices, 0, 0.0)

    left = np.setdiff1d(left, vertices, assume_unique=True)
    # A v that is 1 below the mean is at most the median, and p at least 1/2.
    left = left[v[left] + 1 > r[left] * special.expit(largest)]
    for p_value_at in (_p_value_far_below, _p_value_below, _p_value):
        left = left[p_value_at(m, r[left], v[left], largest, delta) < significance]
    return climb(left, best, largest)


def _upper_hull(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Indices of the vertices of the points' upper hull, ``x`` rising."""
    left = np.arange(x.size)
    while left.size > 2:
        dx, dy = np.diff(x[left]), np.diff(y[left])
        above = dy[:-1] * dx[1:] > dy[1:] * dx[:-1]  # the line from one neighbour to the other
        if above.all():
            break
        left = left[np.concatenate([[True], above, [True]])]
    return left


def _p_value_below(m, r, v, epsilon, delta) -> np.ndarray:
    """At most :func:`_p_value`, for v ≥ 1: the mean mass of one i, not the largest."""
    accuracy = special.expit(epsilon)
    k = _two_deviations_below(r, accuracy)
    tail = _at_least(v, r, accuracy)
    mean_mass = np.maximum(_at_least(k, r, accuracy) - tail, 0) / np.maximum(v - k, 1)
    return np.minimum(tail + 2 * m * delta * mean_mass, 1.0)


def _p_value_far_below(m, r, v, epsilon, delta) -> np.ndarray:
    """At most :func:`_p_value`, and at most 1/2, for v ≥ 1: without incomplete beta functions.

    P[X ≥ v] ≥ P[X = v]. The binomial coefficient is at least
    (r/v)ᵛ·(r/(r − v))ʳ⁻ᵛ/√(8·v·(r − v)/r) for v < r (Ash, *Information Theory*, Lemma 4.7.1), the
    root being 1 or more, and 1 for v = r. By Cantelli's inequality P[X ≥ k] ≥ 4/5, for the k of
    :func:`_p_value_below`. What it sums is linear in P[X ≥ v], between the bound from below and
    P[X ≥ k], and p ≥ 4/5 at the upper end.
    """
    right, wrong = special.expit(epsilon), special.expit(-epsilon)
    log_mass = special.xlogy(v, r * right / v)
    log_mass += special.xlogy(r - v, r * wrong / np.maximum(r - v, 1))
    root = np.sqrt(np.maximum(8 * v * ((r - v) / r), 1))
    tail = np.exp(log_mass) / root * (1 - 1e-6)  # more than rounding adds
    k = _two_deviations_below(r, right)
    mean_mass = np.maximum(0.8 - tail, 0) / np.maximum(v - k, 1)
    return np.minimum(tail + 2 * m * delta * mean_mass, 0.5)


def _two_deviations_below(n, p) -> np.ndarray:
    """A whole number two standard deviations below the mean of Binomial(n, p), or 0."""
    return np.floor(np.maximum(n * p - 2 * np.sqrt(n * p * (1 - p)), 0)).astype(int)


def _bound_without_delta(r, v, significance) -> np.ndarray:
    """Largest ε ≥ 0 with P[X ≥ v] ≤ ``significance``: the limit of Clopper and Pearson.

    P[X ≥ v] is the integral up to ε of a density in proportion to e^(v·ε)/(1 + e^ε)^(r + 1), which
    is log-concave, and so is its integral: Newton's steps on log P[X ≥ v] reach the bound from
    below, whatever the start, here Wilson's limit. ``scipy.special.betaincinv`` is faster, but for
    10⁵ guesses and more now and then far off.
    """
    bound = np.zeros(np.shape(significance))
    refutable = (v > 0) & (_at_least(v, r, 0.5) < significance)
    r, v, significance = (x[refutable] for x in np.broadcast_arrays(r, v, significance))
    if r.size == 0:
        return bound
    deviation = special.ndtri(significance)
    spread = deviation * np.sqrt(v * ((r - v) / r) + deviation**2 / 4)
    epsilon = special.logit((v + deviation**2 / 2 + spread) / (r + deviation**2))
    epsilon = np.clip(epsilon, 0.0, np.log(2 * r))  # all right at 0.5 gives no more than this
    log_mass = -special.betaln(v, r - v + 1)
    for _ in range(30):
        log_tail = np.log(np.maximum(_at_least(v, r, special.expit(epsilon)), 1e-300))
        log_slope = v * special.log_expit(epsilon) + (r - v + 1) * special.log_expit(-epsilon)
        step = (np.log(significance) - log_tail) * np.exp(log_tail - log_slope - log_mass)
        epsilon = np.maximum(epsilon + step, 0.0)
        if np.abs(step).max() < TOLERANCE / 100:
            break
    bound[refutable] = epsilon
    return bound


def _bound_above(
    low: float, m: int, r: int, v: int, delta: float, significance: float, upper: float
) -> float:
    """One :func:`epsilon_lower_bound` if it exceeds ``low``, else ``low``.

    ``upper`` is :func:`_bound_without_delta`.
    """
    if upper <= low:
        return low
    if delta == 0:
        return max(low, _rounded_down(upper).item())
    return _last_refuted(
        lambda epsilon: _p_value_of_one(m, r, v, epsilon, delta) - significance,
        low,
        upper * (1 + 1e-9) + 1e-9,
    )


def _last_refuted(excess: Callable, low: float, high: float) -> float:
    """Where a rising function reaches 0, rounded down; ``low`` if it does so before.

    ``high`` is where to look first; it is doubled for as long as it is too low.
    """
    excess = functools.cache(excess)
    if excess(low) >= 0:
        return low
    while excess(high) < 0:
        low, high = high, 2 * high
    root = optimize.brentq(excess, low, high, xtol=TOLERANCE, rtol=1e-15)
    return max(low, _rounded_down(root).item())


def _rounded_down(root: Values) -> np.ndarray:
    """A bound that is certainly refuted, from a root that is known up to ``TOLERANCE``."""
    return np.maximum(np.subtract(root, 2 * TOLERANCE), 0.0)


def _largest_refuted(p_value_at: Callable, arguments, significance, upper=None) -> np.ndarray:
    """Largest ε ≥ 0 with p-value below ``significance``, rounded towards 0; 0 where p(0) is not.

    Args:
        p_value_at: (ε, *arguments) → p-values, rising in ε; broadcasts.
        arguments: arrays of one shape.
        significance: array of that shape.
        upper: ε from which on nothing is refuted, or a guess: it is doubled until that is true.
    """
    bound = np.zeros(significance.shape)
    refutable = p_value_at(np.zeros(bound.shape), *arguments) < significance
    if not refutable.any():
        return bound
    arguments = tuple(values[refutable] for values in arguments)
    significance = significance[refutable]

    def excess(epsilon, *arguments):
        return p_value_at(epsilon, *arguments[:-1]) - arguments[-1]

    upper = np.ones(significance.shape) if upper is None else upper[refutable]
    while (low := excess(upper, *arguments, significance) < 0).any():
        upper = np.where(low, 2 * upper, upper)
    found = elementwise.find_root(
        excess,
        (np.zeros_like(upper), upper),
        args=(*arguments, significance),
        tolerances={"xatol": TOLERANCE, "xrtol": 0, "fatol": 0, "frtol": 0},
        maxiter=200,
    )
    # The left end of the last bracket is refuted, unless its p-value is the significance itself.
    bound[refutable] = _rounded_down(found.bracket[0])
    return bound


def _last_true(predicate: Callable, *, tolerance: float, largest: float = np.inf) -> float:
    """Last x at which a predicate holds that is true at 0 and, from some x on, false."""
    low, high = 0.0, 1.0
    while predicate(high):
        low, high = high, 2 * high
        if high > largest:
            return low
    while high - low > tolerance * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if predicate(middle) else (low, middle)
    return low


def _refuted_by_curve(curve: Curve, m: int, r: int, v: int, significance: float) -> bool:
    """Whether P[N ≥ v] = ``significance`` is impossible; see :func:`p_value_fdp`.

    ``right`` and ``wrong`` are R and W of the docstring there, from N ≥ v down to N ≥ 0.
    """
    right, wrong = significance * v / m, significance * (r - v) / m
    for i in range(v - 1, -1, -1):
        forced = curve(right)
        if forced <= wrong:
            return False  # nothing is forced here, so nothing changes further down either
        if right + forced > r / m:
            return True  # before the next line: a curve may give infinity
        right += i / (r - i) * (forced - wrong)
        wrong = forced
    return right + wrong > r / m


def _epsilon_of_family(
    m: int, r: int, v: int, delta: float, significance: float, family: Family, guesses: str
) -> float:
    """ε(δ) of the noisiest members refuted: the last one before the smallest unrefuted."""

    def refuted(log_noise: float) -> bool:
        noise_multiplier = float(np.exp(log_noise))
        curve = family.curve(noise_multiplier, guesses)
        return _refuted_by_curve(curve, m, r, v, significance)

    # Perfect privacy, the limit of much noise, has the diagonal as its curve.
    if not _refuted_by_curve(lambda right: right, m, r, v, significance):
        return 0.0
    start, step = float(np.log(family.first_noise_multiplier)), 0.25
    if refuted(start):
        noisy, quiet = start, start - step
        while refuted(quiet):
            noisy, quiet, step = quiet, quiet - 1.5 * step, 1.5 * step
    else:
        quiet, noisy = start, start + step
        while not refuted(noisy):
            quiet, noisy, step = noisy, noisy + 1.5 * step, 1.5 * step
            if noisy > start + 12:  # privacy so good that its ε is 0 for any δ of use
                return 0.0
    while noisy - quiet > family.tolerance:
        middle = (noisy + quiet) / 2
        noisy, quiet = (middle, quiet) if refuted(middle) else (noisy, middle)
    return family.epsilon(float(np.exp(noisy)), delta)


def _p_value(m, r, v, epsilon, delta, counts_chosen="beforehand") -> np.ndarray:
    """:func:`p_value` without its checks, on broadcast arrays."""
    m, r, v, epsilon, delta = np.broadcast_arrays(m, r, v, epsilon, delta)
    tail = _at_least(v, r, special.expit(epsilon))
    if counts_chosen == "from_scores":
        return np.minimum(tail + m * delta, 1.0)
    with_delta = (delta > 0) & (v > 0)
    excess = np.zeros(tail.shape)
    if with_delta.any():
        excess[with_delta] = (
            2
            * m[with_delta]
            * delta[with_delta]
            * _largest_mean_mass(v[with_delta], r[with_delta], epsilon[with_delta])
        )
    return np.minimum(tail + excess, 1.0)


def _p_value_of_one(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """:func:`_p_value` of one v ≥ 1, on plain numbers: of one row, arrays cost many times more.

    For α see :func:`_largest_mean_mass`.
    """
    right, wrong = 1 / (1 + math.exp(-epsilon)), 1 / (1 + math.exp(epsilon))
    tail = float(special.betainc(v, r - v + 1, right))
    upper_tail = v > r * right
    at_v = tail if upper_tail else float(special.betainc(r - v + 1, v, wrong))
    log_right, log_wrong, log_all = math.log(right), math.log(wrong), math.lgamma(r + 1)

    def mean_mass(i):
        k = v - i
        if upper_tail:
            return ((float(special.betainc(k, r - k + 1, right)) if k else 1.0) - at_v) / i
        return (at_v - (float(special.betainc(r - k + 1, k, wrong)) if k else 0.0)) / i

    def falling(i):
        k = v - 1 - i
        log_choices = log_all - math.lgamma(k + 1) - math.lgamma(r - k + 1)
        return math.exp(log_choices + k * log_right + (r - k) * log_wrong) <= mean_mass(i)

    first = min(max(v - 1 - int((r + 1) * right), 1), v)
    best = first + bisect.bisect_left(range(first, v), True, key=falling)
    return min(1.0, tail + 2 * m * delta * mean_mass(best))


def _p_value_biased(m, positive, negative, v, p, epsilon, delta) -> np.ndarray:
    """:func:`p_value_biased` without its checks."""
    prior = special.logit(p)
    right_in, right_out = special.expit(epsilon + prior), special.expit(epsilon - prior)
    tail = _sum_at_least(v, positive, right_in, negative, right_out)
    return np.minimum(tail + np.multiply(m, delta), 1.0)


def _sum_at_least(k, n, p, other_n, other_p) -> np.ndarray:
    """P[Binomial(n, p) + Binomial(other_n, other_p) ≥ k], a sum of positive terms."""
    k, n, p, other_n, other_p = np.broadcast_arrays(k, n, p, other_n, other_p)
    n, p, other_n, other_p = (
        np.where(n < other_n, first, second)
        for first, second in ((n, other_n), (p, other_p), (other_n, n), (other_p, p))
    )
    tail = _at_least(k, other_n, other_p)  # where one of the two makes no guess
    for where in np.argwhere(n > 0):
        one = tuple(where)
        i = np.arange(n[one] + 1)
        mass = stats.binom.pmf(i, n[one], p[one])
        tail[one] = np.dot(mass, _at_least(k[one] - i, other_n[one], other_p[one]))
    return np.minimum(tail, 1.0)


def _confidence_levels(guesses, included) -> tuple[np.ndarray, int, int]:
    """Confidences on the lattice: (64,) guesses at each level from 1, the levels got right, m."""
    guesses = _checked_confidences(guesses)
    included = _checked_coins(included, guesses.shape)
    levels = np.rint(guesses * CONFIDENCE_LEVELS).astype(int)
    right = (levels > 0) == included
    counts = np.bincount(np.abs(levels), minlength=CONFIDENCE_LEVELS + 1)[1:]
    return counts, int(np.abs(levels)[right].sum()), guesses.size


def _p_value_weighted(
    counts: np.ndarray, n_right: int, m: int, epsilon: float, delta: float
) -> float:
    """:func:`p_value_weighted` of the lattice's counts."""
    accuracy = float(special.expit(epsilon))
    return min(1.0, _weighted_at_least(n_right, counts, accuracy) + m * delta)


def _weighted_at_least(k: int, counts: np.ndarray, p: float) -> float:
    """P[Σ over levels i of i·Binomial(counts[i − 1], p) ≥ k], from above by about 1e-12."""
    if k <= 0:
        return 1.0
    level = np.arange(1, counts.size + 1)
    total = int(level @ counts)
    # The transform is periodic. Hoeffding: outside a window of 12·√Σi² around the mean there is
    # less than 2·e⁻⁷², so what wraps around is nothing, however many guesses there are.
    window = int(12 * np.sqrt(level**2 @ counts)) + 2
    size = fft.next_fast_len(min(total + 1, window), real=True)
    start = 0 if size > total else int(p * total) - size // 2
    if k >= start + size:
        return 1e-12
    spectrum = np.ones(size // 2 + 1, dtype=complex)
    for i in np.flatnonzero(counts):
        right = np.arange(counts[i] + 1)
        mass = stats.binom.pmf(right, counts[i], p)
        spectrum *= fft.rfft(np.bincount(level[i] * right % size, mass, minlength=size))
    mass = np.roll(fft.irfft(spectrum, size), -(start % size))
    return float(min(1.0, np.maximum(mass[max(k - start, 0) :], 0).sum() + 1e-12))


def _at_least(k, n, p) -> np.ndarray:
    """P[Binomial(n, p) ≥ k], exact in both tails (``scipy.special.bdtrc`` wants k ≥ 0)."""
    inside = special.betainc(np.clip(k, 1, None), np.clip(n - k + 1, 1, None), p)
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, inside))


def _largest_mean_mass(v, r, epsilon) -> np.ndarray:
    """Maximum over 1 ≤ i ≤ v of P[v − i ≤ X < v]/i, for 1-d arrays with v ≥ 1.

    The mass at v − 1, v − 2, … rises to the mode and falls after it, so the mean of the first i
    rises for as long as the next mass exceeds it: the maximum is found by bisection on i.
    """
    right, wrong = special.expit(epsilon), special.expit(-epsilon)
    upper_tail = v > r * right  # take differences in the tail where they do not cancel
    p = np.where(upper_tail, right, wrong)
    log_right, log_wrong = special.log_expit(epsilon), special.log_expit(-epsilon)
    log_all = special.gammaln(r + 1)

    def tail(k):
        """P[X ≥ k] or, below the mean, P[X < k]."""
        inside = np.maximum(k, 1), r - k + 1
        inside = special.betainc(
            np.where(upper_tail, *inside), np.where(upper_tail, *inside[::-1]), p
        )
        return np.where(k > 0, inside, upper_tail)

    tail_at_v = tail(v)

    def mean_mass(i):
        return np.abs(tail(v - i) - tail_at_v) / i

    def mass(k):
        log_choices = log_all - special.gammaln(k + 1) - special.gammaln(r - k + 1)
        return np.exp(log_choices + k * log_right + (r - k) * log_wrong)

    # Up to the mode the mean surely rises, and far above it masses and means underflow to equal 0.
    mode = np.floor((r + 1) * right).astype(int)
    low, high = np.clip(v - 1 - mode, 1, v), v.copy()
    while (low < high).any():
        i = (low + high) // 2
        still_rising = mass(np.maximum(v - 1 - i, 0)) > mean_mass(i)  # at i = v all is found
        low = np.where(still_rising & (low < high), i + 1, low)
        high = np.where(still_rising, high, i)
    return mean_mass(low)


def _scalar_or_array(values: np.ndarray) -> Values:
    return float(values) if np.ndim(values) == 0 else values


def _is_integer(value) -> bool:
    return np.issubdtype(np.asarray(value).dtype, np.integer)


def _check(name: str, value, allowed, description: str) -> None:
    if not np.all(allowed):
        values = np.broadcast_to(value, np.shape(allowed))
        bad = value if np.ndim(values) == 0 else values[~np.asarray(allowed)][0]
        raise WorkbookError(f"{name} = {bad}; allowed: {description}")


def _check_counts(n_canaries, n_guesses, n_correct) -> None:
    counts = {"n_canaries": n_canaries, "n_guesses": n_guesses, "n_correct": n_correct}
    for name, value in counts.items():
        if not _is_integer(value):
            raise WorkbookError(f"{name} = {value}; allowed: whole numbers")
    n_canaries, n_guesses, n_correct = (np.asarray(value) for value in counts.values())
    _check("n_correct", n_correct, n_correct >= 0, "at least 0")
    if np.any(n_correct > n_guesses):
        raise WorkbookError(
            f"n_correct = {n_correct} exceeds n_guesses = {n_guesses}; "
            "allowed: n_correct ≤ n_guesses"
        )
    if np.any(n_guesses > n_canaries):
        raise WorkbookError(
            f"n_guesses = {n_guesses} exceeds n_canaries = {n_canaries}; "
            "allowed: n_guesses ≤ n_canaries"
        )


def _check_signed_counts(n_canaries, n_positive, n_negative, n_correct) -> None:
    for name, value in (("n_positive", n_positive), ("n_negative", n_negative)):
        if not _is_integer(value):
            raise WorkbookError(f"{name} = {value}; allowed: whole numbers")
        _check(name, value, np.asarray(value) >= 0, "at least 0")
    _check_counts(n_canaries, np.add(n_positive, n_negative), n_correct)


def _checked_scores(scores) -> np.ndarray:
    scores = np.asarray(scores, dtype=float)
    if scores.ndim != 1:
        raise WorkbookError(f"scores has shape {scores.shape}; allowed: one score a canary, (m,)")
    if np.isnan(scores).any():
        raise WorkbookError(
            f"scores holds NaN (first at canary {int(np.isnan(scores).argmax())}); "
            "allowed: numbers, or ±inf"
        )
    return scores


def _checked_coins(included, shape) -> np.ndarray:
    included = np.asarray(included)
    if included.dtype != bool or included.shape != shape:
        raise WorkbookError(
            f"included is {included.dtype} of shape {included.shape}; "
            f"allowed: one boolean a score, shape {shape}"
        )
    return included


def _checked_confidences(guesses) -> np.ndarray:
    guesses = np.asarray(guesses, dtype=float)
    if guesses.ndim != 1:
        raise WorkbookError(f"guesses has shape {guesses.shape}; allowed: one a canary, (m,)")
    _check("guesses", guesses, np.abs(guesses) <= 1, "numbers in [−1, 1]")
    return guesses


def _check_epsilon(epsilon) -> None:
    _check("epsilon", epsilon, np.asarray(epsilon) >= 0, "a number of at least 0")


def _check_inclusion_probability(p) -> None:
    p = np.asarray(p)
    _check("inclusion_probability", p, (p > 0) & (p < 1), "a number in (0, 1)")


def _check_delta(delta) -> None:
    delta = np.asarray(delta)
    _check("delta", delta, (delta >= 0) & (delta <= 1), "a number in [0, 1]")


def _check_significance(significance) -> None:
    significance = np.asarray(significance)
    _check(
        "significance",
        significance,
        (significance > 0) & (significance <= 0.5),
        "a number in (0, 0.5]",
    )


def _check_counts_chosen(counts_chosen: str) -> None:
    if counts_chosen not in COUNTS_CHOSEN:
        raise WorkbookError(
            f"counts_chosen = {counts_chosen!r}; allowed: {', '.join(COUNTS_CHOSEN)}"
        )


def _check_method(method: str, family: Family | None, counts_chosen: str, delta) -> None:
    if method not in METHODS:
        raise WorkbookError(f"method = {method!r}; allowed: {', '.join(METHODS)}")
    _check_counts_chosen(counts_chosen)
    if method == "steinke":
        if family is not None:
            raise WorkbookError(f"family = {family}; allowed with method steinke: None")
        return
    if family is None:
        raise WorkbookError("family = None; allowed with method fdp: a family of lib.trade_off")
    if counts_chosen != "beforehand":
        raise WorkbookError(
            f"counts_chosen = {counts_chosen!r}; allowed with method fdp: beforehand"
        )
    delta = np.asarray(delta)
    _check("delta", delta, delta > 0, "with method fdp, a number in (0, 1]")
