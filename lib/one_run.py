"""From the guesses of one training run to a lower bound on epsilon.

Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, arXiv:2305.08846. Each of m
canaries is in the training set or not by its own fair coin; the auditor sees the training's output,
guesses r of the m coins and gets v right. Under (ε, δ)-differential privacy v is hardly larger than
a Binomial(r, e^ε/(e^ε + 1)) variable, so a large v refutes the claim.

The numbers of guesses must be fixed before the scores are seen. Choosing them afterwards, from the
outcome, makes the bound exceed the truth far more often than its significance allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special, stats
from scipy.optimize import elementwise

from lib.errors import WorkbookError

METHODS = ("steinke",)
Counts = int | np.ndarray
Values = float | np.ndarray


@dataclass(frozen=True)
class Audit:
    """One audit: what was guessed, how much of it was right, and what follows."""

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

    @property
    def n_guesses(self) -> int:
        """Guesses made; the auditor abstains on the other canaries."""
        return self.n_positive + self.n_negative

    @property
    def n_correct(self) -> int:
        """Guesses that agree with the coin."""
        return self.n_correct_positive + self.n_correct_negative


def p_value(
    *, n_canaries: Counts, n_guesses: Counts, n_correct: Counts, epsilon: Values, delta: Values
) -> Values:
    """Probability of at least ``n_correct`` right guesses if training were (ε, δ)-DP, from above.

    P[X ≥ v] + 2·m·δ·α with X ~ Binomial(r, e^ε/(1 + e^ε)) and α = max over 1 ≤ i ≤ v of
    P[v − i ≤ X < v]/i, capped at 1 (arXiv:2305.08846, Theorem 5.2 as in Appendix D). All m canaries
    count in the second term, abstentions included. Holds for a number of guesses fixed beforehand
    and coins that are fair and independent.

    Args:
        n_canaries: m, canaries with a coin. All arguments broadcast against each other.
        n_guesses: r, guesses made, 0 ≤ r ≤ m.
        n_correct: v, guesses that were right, 0 ≤ v ≤ r.
        epsilon: hypothesis, ε ≥ 0.
        delta: hypothesis, 0 ≤ δ ≤ 1.

    Returns:
        A float, or an array of the broadcast shape.

    Raises:
        WorkbookError: for counts, ε or δ out of range.
    """
    _check_counts(n_canaries, n_guesses, n_correct)
    _check("epsilon", epsilon, np.asarray(epsilon) >= 0, "a number of at least 0")
    _check_delta(delta)
    return _scalar_or_array(_p_value(n_canaries, n_guesses, n_correct, epsilon, delta))


def epsilon_lower_bound(
    *,
    n_canaries: Counts,
    n_guesses: Counts,
    n_correct: Counts,
    delta: Values,
    significance: Values = 0.05,
    method: str = "steinke",
) -> Values:
    """Largest ε refuted at ``significance``; 0 if none is.

    If training is (ε, δ)-DP, the bound exceeds ε with probability at most ``significance``, given
    that the number of guesses did not depend on the outcome (arXiv:2305.08846, Section 4 and
    Appendix D). Accurate to 1e-9, rounded towards 0.

    Args:
        n_canaries: m. This and the other numbers broadcast against each other.
        n_guesses: r, 0 ≤ r ≤ m.
        n_correct: v, 0 ≤ v ≤ r.
        delta: δ of the claim that is tested; compare the bound only with an ε for the same δ.
        significance: allowed probability of a false bound, in (0, 0.5].
        method: ``"steinke"``.

    Returns:
        A float, or an array of the broadcast shape.

    Raises:
        WorkbookError: for counts, δ, significance or method out of range.
    """
    _check_counts(n_canaries, n_guesses, n_correct)
    _check_delta(delta)
    _check_significance(significance)
    _check_method(method)
    m, r, v, delta, significance = np.broadcast_arrays(
        n_canaries, n_guesses, n_correct, delta, significance
    )
    bound = np.zeros(m.shape)
    refutable = _p_value(m, r, v, 0.0, delta) < significance
    if refutable.any():
        m, r, v, delta, significance = (
            values[refutable] for values in (m, r, v, delta, significance)
        )
        # Without delta the bound is Clopper-Pearson's, in closed form; delta only lowers it.
        probability = special.betaincinv(v, r - v + 1, significance)
        upper = special.logit(probability) * (1 + 1e-9) + 1e-9
        found = elementwise.find_root(
            lambda epsilon, m, r, v, delta, significance: (
                _p_value(m, r, v, epsilon, delta) - significance
            ),
            (np.zeros_like(upper), upper),
            args=(m, r, v, delta, significance),
            tolerances={"xatol": 1e-10, "xrtol": 0, "fatol": 0, "frtol": 0},
            maxiter=200,
        )
        # The left end of the last bracket is refuted for certain, the root itself perhaps not.
        bound[refutable] = found.bracket[0]
    return _scalar_or_array(bound)


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
    scores = np.asarray(scores, dtype=float)
    if scores.ndim != 1:
        raise WorkbookError(f"scores has shape {scores.shape}; allowed: one score a canary, (m,)")
    if np.isnan(scores).any():
        raise WorkbookError(
            f"scores holds NaN (first at canary {int(np.isnan(scores).argmax())}); "
            "allowed: numbers, or ±inf"
        )
    check_guesses(n_canaries=scores.size, n_positive=n_positive, n_negative=n_negative)
    order = np.lexsort((rng.random(scores.size), scores))
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
    rng: np.random.Generator,
) -> Audit:
    """Audit one training run from its canaries' scores and coins.

    Args:
        scores: (m,) as in :func:`guess`.
        included: (m,) booleans, the coins: True where the canary was in the training set.
        n_positive, n_negative, rng: as in :func:`guess`.
        delta, significance, method: as in :func:`epsilon_lower_bound`.

    Returns:
        The counts and the bound.

    Raises:
        WorkbookError: as :func:`guess` and :func:`epsilon_lower_bound` do, and for coins that are
            not booleans, one a score.
    """
    included = np.asarray(included)
    if included.dtype != bool or included.shape != np.shape(scores):
        raise WorkbookError(
            f"included is {included.dtype} of shape {included.shape}; "
            f"allowed: one boolean a score, shape {np.shape(scores)}"
        )
    guesses = guess(scores, n_positive=n_positive, n_negative=n_negative, rng=rng)
    n_correct_positive = int(np.count_nonzero(included[guesses > 0]))
    n_correct_negative = int(np.count_nonzero(~included[guesses < 0]))
    return Audit(
        n_canaries=included.size,
        n_included=int(np.count_nonzero(included)),
        n_positive=n_positive,
        n_negative=n_negative,
        n_correct_positive=n_correct_positive,
        n_correct_negative=n_correct_negative,
        delta=delta,
        significance=significance,
        method=method,
        epsilon_lower_bound=epsilon_lower_bound(
            n_canaries=included.size,
            n_guesses=n_positive + n_negative,
            n_correct=n_correct_positive + n_correct_negative,
            delta=delta,
            significance=significance,
            method=method,
        ),
    )


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


def _p_value(m, r, v, epsilon, delta) -> np.ndarray:
    """:func:`p_value` without its checks, on broadcast arrays."""
    m, r, v, epsilon, delta = np.broadcast_arrays(m, r, v, epsilon, delta)
    accuracy = special.expit(epsilon)
    tail = _at_least(v, r, accuracy)
    with_delta = (delta > 0) & (v > 0)
    excess = np.zeros(tail.shape)
    if with_delta.any():
        excess[with_delta] = (
            2
            * m[with_delta]
            * delta[with_delta]
            * _largest_mean_mass(v[with_delta], r[with_delta], accuracy[with_delta])
        )
    return np.minimum(tail + excess, 1.0)


def _at_least(k, n, p) -> np.ndarray:
    """P[Binomial(n, p) ≥ k], exact in both tails (``scipy.special.bdtrc`` wants k ≥ 0)."""
    inside = special.betainc(np.clip(k, 1, None), np.clip(n - k + 1, 1, None), p)
    return np.where(k <= 0, 1.0, np.where(k > n, 0.0, inside))


def _less_than(k, n, p) -> np.ndarray:
    """P[Binomial(n, p) < k]."""
    inside = special.betaincc(np.clip(k, 1, None), np.clip(n - k + 1, 1, None), p)
    return np.where(k <= 0, 0.0, np.where(k > n, 1.0, inside))


def _largest_mean_mass(v, r, p) -> np.ndarray:
    """Maximum over 1 ≤ i ≤ v of P[v − i ≤ Binomial(r, p) < v]/i, for 1-d arrays with v ≥ 1.

    The mass at v − 1, v − 2, … rises to the mode and falls after it, so the mean of the first i
    rises for as long as the next mass exceeds it: the maximum is found by bisection on i.
    """
    upper_tail = v > r * p  # take differences in the tail where they do not cancel

    def mean_mass(i):
        above = _at_least(v - i, r, p) - _at_least(v, r, p)
        below = _less_than(v, r, p) - _less_than(v - i, r, p)
        return np.where(upper_tail, above, below) / i

    low, high = np.ones_like(v), v.copy()
    while (low < high).any():
        i = (low + high) // 2
        still_rising = stats.binom.pmf(v - 1 - i, r, p) > mean_mass(i)
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


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise WorkbookError(f"method = {method!r}; allowed: {', '.join(METHODS)}")
