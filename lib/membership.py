"""Membership inference: protocol, attacks, thresholds, ROC curves, and what may be said after it.

The protocol is the five steps that Carlini, Feldman and Nasr (arXiv:2209.14987) recall: a universe
U; a training set T ⊂ U by a fair coin for each example; a model trained on T; a guess for **every**
example of U; the advantage, here TPR − FPR. Beyond them, models come in complementary pairs
(T, U∖T): models 2k and 2k + 1 are pair k, everywhere in this module. Every example then has as many
models with it as without, so none need ever be left out for being in too often or too rarely.

- **Coins.** T is drawn by independent coins (step 2), not with |T| = |U|/2 exactly: the one-run
  bound (:func:`claim_from_one_model`) holds for independent coins only, and TPR − FPR needs no
  equal sizes. At |T| = |U|/2 it is the paper's 2·(accuracy − 1/2).
- **Shadows.** Whatever is learnt about how to attack a model (its shadows, thresholds, the choice
  among attacks) comes from the other pairs alone. Were its complement a shadow, an example would
  have one shadow less on the side that the target is on, and that count tells the coin: fewer
  values fit worse, and on pure noise the attack reads less than nothing.
  Without the pair, turning the pair's coin of an example over changes neither score nor threshold,
  so that on pure noise the expected advantage is 0 exactly, for any number of models.
- **Unit.** Two models of a pair share their coins and are never counted as two: every interval is
  over pairs. Pairs share shadows, though, and are not quite independent: :func:`pair_interval`.
- **Thresholds.** A threshold says "member" of every score at or above it, so equal scores fall on
  one side together. Counts are kept, from which any rate follows.

Arrays of models have the shape (models, examples). "Members" are the examples of T. For the wrong
protocol alone (:func:`wrong_protocol_sample`) they are those of S, and ``attacked`` the sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats
from sklearn.metrics import confusion_matrix_at_thresholds

from lib import one_run
from lib.errors import WorkbookError

LOW_RATES = (0.001, 0.01)
ONLINE, ONE_SIDED, DENSITY = "online", "offline_one_sided", "offline_density"
FIXED = "_fixed_variance"
# The name of an attack: its kind, and whether all examples share one variance a side.
ATTACKS = {
    kind + suffix: (kind, bool(suffix))
    for kind in (ONLINE, ONE_SIDED, DENSITY)
    for suffix in ("", FIXED)
}
# An example's own variance is at least this share of the one pooled over all: a smaller one, of
# two or three shadows that agree by chance, would be rounding.
SMALLEST_VARIANCE = 1e-6
# What the members of the wrong protocol are compared with: T∖S, as published, or U∖T.
TRAINING_SET, OUTSIDE = "training_set", "outside"


# ------------------------------------------------------------------------------ ROC curves


@dataclass(frozen=True)
class Roc:
    """Every threshold's counts, from "nobody" to "everybody"; both rise."""

    true_positives: np.ndarray  # (k,) members called members
    false_positives: np.ndarray  # (k,) others called members
    thresholds: np.ndarray  # (k,) falling, the first infinite

    @property
    def n_members(self) -> int:
        """Members there are."""
        return int(self.true_positives[-1])

    @property
    def n_others(self) -> int:
        """Others there are."""
        return int(self.false_positives[-1])

    @property
    def n_pairs_in_order(self) -> float:
        """Pairs of member and other in which the member scores higher; equal ones count half."""
        return float(np.trapezoid(self.true_positives, self.false_positives))

    def at_most(self, false_positive_rate: float) -> tuple[int, int]:
        """Counts at the lowest threshold whose false-positive rate does not exceed a limit.

        Thresholds are plain: no guess is drawn between two of them, so that a block of equal
        scores that crosses the limit is left out whole.

        Returns:
            True and false positives.
        """
        last = self.index_at_most(false_positive_rate)
        return int(self.true_positives[last]), int(self.false_positives[last])

    def index_at_most(self, false_positive_rates: np.ndarray) -> np.ndarray:
        """Index of the threshold of :meth:`at_most`, for one limit or an array of them."""
        # In counts, so that 1 % of 100 is 1.
        allowed = np.floor(np.asarray(false_positive_rates) * self.n_others + 1e-9)
        return np.searchsorted(self.false_positives, allowed, side="right") - 1

    def index_of_largest_advantage(self) -> int:
        """Index of the largest TPR − FPR; of equal ones the highest threshold."""
        # Whole numbers, so that equal advantages compare equal.
        true, false = self.true_positives * self.n_others, self.false_positives * self.n_members
        return int(np.argmax(true - false))

    @property
    def largest_advantage(self) -> float:
        """Largest TPR − FPR: of the very examples it was looked for on."""
        at = self.index_of_largest_advantage()
        return float(
            self.true_positives[at] / self.n_members - self.false_positives[at] / self.n_others
        )


def roc(scores: np.ndarray, members: np.ndarray) -> Roc:
    """ROC curve of scores.

    Args:
        scores: (n,) finite numbers, larger for members.
        members: (n,) booleans, some of either.

    Raises:
        WorkbookError: for scores that are not finite, or members that are all or none.
    """
    scores, members = np.asarray(scores, dtype=float), np.asarray(members, dtype=bool)
    if scores.shape != members.shape or scores.ndim != 1:
        raise WorkbookError(
            f"scores of shape {scores.shape} and members of shape {members.shape}; allowed: one "
            "dimension, as many of both"
        )
    if not np.isfinite(scores).all():
        raise WorkbookError(
            f"scores hold {scores[~np.isfinite(scores)][0]}; allowed: finite numbers"
        )
    if members.all() or not members.any():
        raise WorkbookError(
            f"{members.sum()} of {members.size} are members; allowed: at least one, not all"
        )
    _, false_positives, _, true_positives, thresholds = confusion_matrix_at_thresholds(
        members, scores
    )
    return Roc(
        true_positives=np.concatenate([[0], true_positives]).astype(int),
        false_positives=np.concatenate([[0], false_positives]).astype(int),
        thresholds=np.concatenate([[np.inf], thresholds]),
    )


def curves(
    scores: np.ndarray, members: np.ndarray, *, attacked: np.ndarray | None = None
) -> list[Roc]:
    """Each model's own ROC curve, over the examples it is asked about.

    Args:
        scores, members: (models, examples).
        attacked: (models, examples) or (examples,) booleans, the scores that count; None for all.

    Raises:
        WorkbookError: for arrays that do not fit, and as :func:`roc` does.
    """
    scores, members = np.asarray(scores, dtype=float), np.asarray(members)
    _check_models(scores, members)
    attacked = _checked_attacked(attacked, members)
    return [roc(s[a], m[a]) for s, m, a in zip(scores, members, attacked, strict=True)]


def area(*, n_pairs_in_order, n_members, n_others) -> np.ndarray:
    """Area under the ROC curve: the chance that a member scores higher than another.

    Args:
        n_pairs_in_order: see :attr:`Roc.n_pairs_in_order`. All arguments broadcast.
        n_members, n_others: at least 1.
    """
    return np.asarray(n_pairs_in_order) / (np.asarray(n_members) * np.asarray(n_others))


# -------------------------------------------------------------------------------- protocol


def draw_memberships(*, n_pairs: int, n_examples: int, rng: np.random.Generator) -> np.ndarray:
    """Draw training sets by independent fair coins, each followed by its complement.

    Args:
        n_pairs: pairs of models, at least 1.
        n_examples: |U|, at least 1.
        rng: of the coins.

    Returns:
        (2·pairs, examples) booleans, True for an example of T.

    Raises:
        WorkbookError: for fewer than one pair or example.
    """
    for name, value in (("n_pairs", n_pairs), ("n_examples", n_examples)):
        if value < 1:
            raise WorkbookError(f"{name} = {value}; allowed: at least 1")
    coins = rng.random((n_pairs, n_examples)) < 0.5
    return np.stack([coins, ~coins], axis=1).reshape(2 * n_pairs, n_examples)


def check_complementary(members: np.ndarray) -> None:
    """Refuse memberships whose models 2k and 2k + 1 do not complement each other.

    Raises:
        WorkbookError: for the first pair that does not.
    """
    members = np.asarray(members)
    _check_rows(members)
    bad = np.flatnonzero((members[0::2] == members[1::2]).any(1))
    if bad.size:
        raise WorkbookError(
            f"pair {bad[0]}: models {2 * bad[0]} and {2 * bad[0] + 1} agree on an example; "
            "allowed: a training set followed by its complement"
        )


def rows_of(pairs: np.ndarray | int) -> np.ndarray:
    """Models of some pairs, in order: 2k and 2k + 1 for each k."""
    return (2 * np.atleast_1d(pairs)[:, None] + [0, 1]).ravel()


def shadows_of(pair: int, *, n_models: int) -> np.ndarray:
    """Models that may serve in attacks on a pair: all of the other pairs.

    Raises:
        WorkbookError: for a pair that is not there.
    """
    if not 0 <= pair < n_models // 2:
        raise WorkbookError(f"pair = {pair}; allowed: 0 to {n_models // 2 - 1}")
    return np.delete(np.arange(n_models), [2 * pair, 2 * pair + 1])


# --------------------------------------------------------------------------------- attacks


def label_logits(outputs: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Logit of each example's true class, log p_y − log(1 − p_y), from a model's outputs.

    z_y − log Σ_{j≠y} e^{z_j}, which neither overflows nor rounds 1 − p_y to 0 (LiRA,
    arXiv:2112.03570, Section VI). In double precision whatever the outputs are in.

    Args:
        outputs: (…, n, classes) finite outputs z before the softmax, at least two classes.
        labels: (n,) true classes.

    Returns:
        (…, n) finite numbers, larger for a surer model.

    Raises:
        WorkbookError: for outputs that are not finite, one class, or labels out of range.
    """
    outputs, labels = np.array(outputs, dtype=float), np.asarray(labels)
    if outputs.ndim < 2 or outputs.shape[-1] < 2 or labels.shape != outputs.shape[-2:-1]:
        raise WorkbookError(
            f"outputs of shape {outputs.shape} and labels of shape {labels.shape}; allowed: "
            "(…, n, classes), at least two classes, and (n,)"
        )
    _check_finite("outputs", outputs)
    n_classes = outputs.shape[-1]
    if not np.issubdtype(labels.dtype, np.integer) or ((labels < 0) | (labels >= n_classes)).any():
        raise WorkbookError(
            f"labels reach from {labels.min()} to {labels.max()} ({labels.dtype}); allowed: whole "
            f"numbers from 0 to {n_classes - 1}"
        )
    index = np.broadcast_to(labels[:, None], (*outputs.shape[:-1], 1))
    own = np.take_along_axis(outputs, index, axis=-1)[..., 0]
    np.put_along_axis(outputs, index, -np.inf, axis=-1)
    return own - special.logsumexp(outputs, axis=-1)


def lira(
    targets: np.ndarray, shadows: np.ndarray, shadow_members: np.ndarray, *, attack: str
) -> np.ndarray:
    """Scores of the likelihood-ratio attack (LiRA, arXiv:2112.03570, Algorithms 1 and 2).

    For each example the shadows' logits are two normal samples, with it ("in") and without ("out"),
    of means μ and unbiased variances σ² (n − 1 in the denominator). With φ the target's logit:

    - ``online``: log N(φ; μ_in, σ_in²) − log N(φ; μ_out, σ_out²).
    - ``offline_one_sided``: (φ − μ_out)/σ_out. Its normal distribution function is the paper's
      1 − Pr[Z > φ], in the same order; that itself would tie at 1 from 8.3 on, where FPR is low.
    - ``offline_density``: −log N(φ; μ_out, σ_out²), as the paper's code has it: a logit far below
      the others counts as much as one far above.

    With ``_fixed_variance`` after it, each side has one variance for all examples: squares about
    the examples' own means, over the sum of n − 1. That is the better one for few shadows.

    An example with one shadow on a side has no variance of its own and takes that pooled one; a
    side without any takes the other side's; without either it is 1, which leaves the order by
    (φ − μ)² as it is. An example without a shadow on a side that the attack needs looks neither
    (a deviation of 0, or an online ratio of 1). All of this is decided by the shadows and their
    coins alone, which know nothing of the target.

    Args:
        targets: (…, examples) logits of the models under attack.
        shadows: (shadows, examples) logits of models trained independently of them: not the
            targets, nor their complements.
        shadow_members: (shadows, examples) booleans, what each shadow was trained on.
        attack: one of :data:`ATTACKS`.

    Returns:
        (…, examples) finite scores, larger for members. Memory: a few arrays of that size and of
        the shadows'.

    Raises:
        WorkbookError: for arrays that do not fit, logits that are not finite, another attack.
    """
    _check_attack(attack)
    targets, shadows = np.asarray(targets, dtype=float), np.asarray(shadows, dtype=float)
    shadow_members = np.asarray(shadow_members)
    _check_models(shadows, shadow_members)
    if targets.ndim < 1 or targets.shape[-1:] != shadows.shape[1:] or not len(shadows):
        raise WorkbookError(
            f"targets of shape {targets.shape} and shadows of shape {shadows.shape}; allowed: "
            "(…, examples), and (shadows, examples) with at least one shadow"
        )
    _check_finite("targets", targets)
    # Scores depend on differences alone; large numbers would lose digits when squared.
    centre = shadows[0]
    return _scores(targets - centre, _moments(shadows - centre, shadow_members), attack)


def attack_scores(
    logits: np.ndarray, members: np.ndarray, *, attack: str, complementary: bool = True
) -> np.ndarray:
    """Scores of every model as a target, its shadows being all the other pairs.

    Args:
        logits: (models, examples) of :func:`label_logits`, models in pairs.
        members: (models, examples) booleans.
        attack: one of :data:`ATTACKS`, see :func:`lira`.
        complementary: False for the wrong protocol, whose members are not a training set. Others
            are refused if they are not complementary.

    Returns:
        (models, examples) finite scores, larger for members. Time and memory grow with their
        number alone: sums over all models are made once and each pair's taken off.

    Raises:
        WorkbookError: for fewer than two pairs, and as :func:`lira` and
            :func:`check_complementary` do.
    """
    _check_attack(attack)
    logits, members = _checked_pairs(logits, members, complementary, at_least=2)
    centred = logits - logits[0]
    everything = _moments(centred, members)
    scores = np.empty(logits.shape)
    for pair in range(len(logits) // 2):
        rows = rows_of(pair)
        others = everything.less(_moments(centred[rows], members[rows]))
        scores[rows] = _scores(centred[rows], others, attack)
    return scores


@dataclass(frozen=True)
class _Moments:
    """Number, sum and sum of squares of logits, each (2, examples): of models without, with."""

    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray

    def less(self, some: _Moments) -> _Moments:
        return _Moments(
            self.count - some.count, self.total - some.total, self.squares - some.squares
        )


def _moments(logits: np.ndarray, members: np.ndarray) -> _Moments:
    sides = (~members, members)
    return _Moments(
        count=np.array([side.sum(0) for side in sides]),
        total=np.array([np.einsum("mn,mn->n", logits, side) for side in sides]),
        squares=np.array([np.einsum("mn,mn,mn->n", logits, logits, side) for side in sides]),
    )


def _scores(targets: np.ndarray, shadows: _Moments, attack: str) -> np.ndarray:
    kind, fixed = ATTACKS[attack]
    variances = _variances(shadows, fixed)
    means = shadows.total / np.maximum(shadows.count, 1)
    missing = shadows.count == 0

    def deviations(side: int) -> np.ndarray:
        values = (targets - means[side]) / np.sqrt(variances[side])
        return np.where(missing[side], 0.0, values)

    def surprise(side: int) -> np.ndarray:
        return (deviations(side) ** 2 + np.log(2 * np.pi * variances[side])) / 2

    if kind == ONE_SIDED:
        return deviations(0)
    if kind == DENSITY:
        return surprise(0)
    return np.where(missing.any(0), 0.0, surprise(0) - surprise(1))


def _variances(shadows: _Moments, fixed: bool) -> np.ndarray:
    """Variances by side and example, (2, examples), all above 0."""
    freedom = np.maximum(shadows.count - 1, 0)
    squares = shadows.squares - shadows.total**2 / np.maximum(shadows.count, 1)
    squares = np.where(freedom > 0, np.maximum(squares, 0), 0)
    pooled = squares.sum(1, keepdims=True) / np.maximum(freedom.sum(1, keepdims=True), 1)
    pooled = np.where(pooled > 0, pooled, pooled[::-1])
    pooled = np.where(pooled > 0, pooled, 1.0)
    if fixed:
        return np.broadcast_to(pooled, squares.shape)
    own = np.where(freedom > 0, squares / np.maximum(freedom, 1), pooled)
    return np.maximum(own, SMALLEST_VARIANCE * pooled)


# --------------------------------------------------------------- thresholds and advantages


@dataclass(frozen=True)
class Choice:
    """What a pair's shadows, attacked in the same way, say about how to attack the pair.

    A threshold is infinite where the shadows say "nobody".
    """

    attack: str
    advantage: np.ndarray  # (pairs,) TPR − FPR of the shadows at ``threshold``: no result, peeked
    threshold: np.ndarray  # (pairs,) the one with the largest advantage on the shadows
    false_positive_rates: tuple[float, ...]
    low_thresholds: np.ndarray  # (pairs, rates) the lowest with at most that FPR on the shadows


@dataclass(frozen=True)
class Counts:
    """Guesses counted, in arrays of one shape, the first axis being models."""

    true_positives: np.ndarray
    n_members: np.ndarray
    false_positives: np.ndarray
    n_others: np.ndarray

    @property
    def true_positive_rate(self) -> np.ndarray:
        """Share of the members that were called members."""
        return self.true_positives / self.n_members

    @property
    def false_positive_rate(self) -> np.ndarray:
        """Share of the others that were called members."""
        return self.false_positives / self.n_others

    @property
    def advantage(self) -> np.ndarray:
        """TPR − FPR."""
        return self.true_positive_rate - self.false_positive_rate


def advantage(*, true_positives, n_members, false_positives, n_others) -> np.ndarray:
    """Attack advantage TPR − FPR from counts, which broadcast.

    With as many members as others it is the 2·(accuracy − 1/2) of arXiv:2209.14987; with others
    that is scattered by the size of T as well.
    """
    return np.divide(true_positives, n_members) - np.divide(false_positives, n_others)


def shadow_scores(
    logits: np.ndarray,
    members: np.ndarray,
    *,
    attack: str,
    pair: int,
    complementary: bool = True,
) -> np.ndarray:
    """Scores of a pair's shadows, each attacked by the others as if the pair did not exist.

    They have one pair of shadows less than the pair itself. Keeping it among their shadows would
    let its coins into whatever is chosen on them.

    Args:
        logits, members, attack, complementary: as in :func:`attack_scores`.
        pair: the pair left out.

    Returns:
        (models − 2, examples), in the order of :func:`shadows_of`.

    Raises:
        WorkbookError: for fewer than three pairs, and as :func:`attack_scores` does.
    """
    logits, members = _checked_pairs(logits, members, complementary, at_least=3)
    rows = shadows_of(pair, n_models=len(logits))
    return attack_scores(logits[rows], members[rows], attack=attack, complementary=complementary)


def choose_on_shadows(
    logits: np.ndarray,
    members: np.ndarray,
    *,
    attack: str,
    false_positive_rates: Sequence[float] = LOW_RATES,
    attacked: np.ndarray | None = None,
    complementary: bool = True,
) -> Choice:
    """Choose each pair's thresholds on its shadows, all of their scores together.

    Args:
        logits, members, attack, complementary: as in :func:`attack_scores`.
        false_positive_rates: limits, in [0, 1], for which thresholds are chosen as well.
        attacked: (models, examples) or (examples,) booleans, the scores that count; None for all.

    Raises:
        WorkbookError: for fewer than three pairs, rates out of range, and as
            :func:`attack_scores` and :func:`roc` do.
    """
    logits, members = _checked_pairs(logits, members, complementary, at_least=3)
    rates, attacked = _checked_rates(false_positive_rates), _checked_attacked(attacked, members)
    n_pairs = len(logits) // 2
    best, threshold, low = np.empty(n_pairs), np.empty(n_pairs), np.empty((n_pairs, len(rates)))
    for pair in range(n_pairs):
        scores = shadow_scores(
            logits, members, attack=attack, pair=pair, complementary=complementary
        )
        rows = shadows_of(pair, n_models=len(logits))
        curve = roc(scores[attacked[rows]], members[rows][attacked[rows]])
        best[pair] = curve.largest_advantage
        threshold[pair] = curve.thresholds[curve.index_of_largest_advantage()]
        low[pair] = curve.thresholds[curve.index_at_most(rates)]
    return Choice(attack, best, threshold, tuple(rates.tolist()), low)


def strongest_on_shadows(choices: Sequence[Choice]) -> np.ndarray:
    """Which of several attacks has the largest advantage on each pair's shadows.

    Of what it chooses, ``without`` of :func:`pair_interval` is the largest of their advantages.

    Returns:
        (pairs,) indices into ``choices``; of equal ones the first.
    """
    return np.argmax([choice.advantage for choice in choices], axis=0)


def of_chosen(values: Sequence[np.ndarray], chosen: np.ndarray) -> np.ndarray:
    """Take for each pair's models the values of the attack chosen for it.

    Args:
        values: one array (models, …) an attack, such as advantages.
        chosen: (pairs,) of :func:`strongest_on_shadows`.

    Returns:
        (models, …).
    """
    chosen = np.repeat(chosen, 2)
    return np.asarray(values)[chosen, np.arange(chosen.size)]


def counts_at(
    scores: np.ndarray,
    members: np.ndarray,
    thresholds: np.ndarray,
    *,
    attacked: np.ndarray | None = None,
) -> Counts:
    """Guesses of every model at its pair's threshold.

    Args:
        scores, members: (models, examples), models in pairs.
        thresholds: (pairs,) or, for several each, (pairs, k), chosen on other models:
            :func:`choose_on_shadows`.
        attacked: as there.

    Returns:
        Counts of shape (models,) or (models, k).

    Raises:
        WorkbookError: for arrays that do not fit, or a model without members or others.
    """
    scores, members = _checked_pairs(scores, members, complementary=False, at_least=1)
    thresholds, attacked = np.asarray(thresholds, dtype=float), _checked_attacked(attacked, members)
    if thresholds.ndim not in (1, 2) or 2 * len(thresholds) != len(scores):
        raise WorkbookError(
            f"thresholds of shape {thresholds.shape} for {len(scores) // 2} pairs; allowed: "
            "(pairs,) or (pairs, k)"
        )
    yes, no = members & attacked, ~members & attacked
    n_members, n_others = yes.sum(1), no.sum(1)
    for name, values in (("members", n_members), ("others", n_others)):
        if not values.all():
            raise WorkbookError(
                f"model {np.argmin(values)} has no {name} among the examples; allowed: at least "
                "one of either"
            )
    columns = np.repeat(thresholds, 2, axis=0).reshape(len(scores), -1)
    guessed = [scores >= column[:, None] for column in columns.T]
    shape = (len(scores), *thresholds.shape[1:])
    return Counts(
        true_positives=np.stack([(g & yes).sum(1) for g in guessed], axis=1).reshape(shape),
        n_members=_like(n_members, shape),
        false_positives=np.stack([(g & no).sum(1) for g in guessed], axis=1).reshape(shape),
        n_others=_like(n_others, shape),
    )


def counts_at_rates(
    scores: np.ndarray,
    members: np.ndarray,
    *,
    false_positive_rates: Sequence[float] = LOW_RATES,
    attacked: np.ndarray | None = None,
) -> Counts:
    """Counts read off each model's own ROC curve, at the lowest threshold within each FPR limit.

    The customary figure, and a peeked one: the threshold is the target's own. Beside it stands
    :func:`counts_at` with ``low_thresholds``, whose realised FPR is what it is.

    Args:
        scores, members: (models, examples).
        false_positive_rates: limits, in [0, 1].
        attacked: as in :func:`choose_on_shadows`.

    Returns:
        Counts of shape (models, rates).

    Raises:
        WorkbookError: for rates out of range, and as :func:`roc` does.
    """
    rates = _checked_rates(false_positive_rates)
    own = curves(scores, members, attacked=attacked)
    at = [curve.index_at_most(rates) for curve in own]
    shape = (len(own), len(rates))
    return Counts(
        true_positives=np.array([c.true_positives[i] for c, i in zip(own, at, strict=True)]),
        n_members=_like(np.array([curve.n_members for curve in own]), shape),
        false_positives=np.array([c.false_positives[i] for c, i in zip(own, at, strict=True)]),
        n_others=_like(np.array([curve.n_others for curve in own]), shape),
    )


def peeked_advantage_of_noise(*, n_members: int, n_others: int) -> float:
    """What not to do: mean of the largest TPR − FPR on a target's own curve, for pure noise.

    Its threshold is chosen with the target's coins in sight, so that it is above 0 where scores say
    nothing: for many examples √(π/8)·√(1/n + 1/m), the mean of the largest value of a Brownian
    bridge (Smirnov's one-sided statistic). 1.25 % for 5,000 and 5,000.
    """
    return math.sqrt(math.pi / 8 * (1 / n_members + 1 / n_others))


def pair_interval(
    values: np.ndarray, *, without: np.ndarray | None = None, confidence: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean over pairs, and its interval by Student's t over pairs.

    For two schemes trained on the same sets, hand over the differences: their interval is paired.

    Alone, ``values`` are taken for independent. Those of one set of models are not quite: with
    online LiRA a pair p gains by each shadow pair q what q gains by p. If that were all, each two
    of K pairs would correlate by 1/(K − 1), and the mean's variance be r = 2(K − 1)/(K − 2) times
    what their scatter says: simulated intervals of 95 % covered 83 to 96 % with 4 and 8 pairs (the
    one-sided attack's 91 to 97 %). With ``without``, the figure on the others when each pair is
    left out, there is also the jackknife's variance, which for that part is r times too large, and
    like the first right for what a pair has on its own (Efron and Stein, Annals of Statistics 9,
    1981). (r·scatter + jackknife)/(r + 1) is right for both; intervals covered 93.5 to 99.5 %.

    Args:
        values: (models, …), models in pairs, at least two; a pair's value is its models' mean.
        without: (pairs, …), for advantages :attr:`Choice.advantage` (differences for differences);
            at least three pairs.
        confidence: of the interval, in (0, 1).

    Returns:
        Mean, lower and upper end, each of shape (…).

    Raises:
        WorkbookError: for too few pairs, or a ``without`` that does not fit.
    """
    values = np.asarray(values, dtype=float)
    _check_rows(values)
    n_pairs, fewest = len(values) // 2, 2 if without is None else 3
    if n_pairs < fewest:
        raise WorkbookError(
            f"{n_pairs} pairs of models; allowed: at least {fewest} for an interval"
        )
    by_pair = values.reshape(n_pairs, 2, *values.shape[1:]).mean(1)
    variance = by_pair.var(0, ddof=1) / n_pairs
    if without is not None:
        without = np.asarray(without, dtype=float)
        if without.shape != by_pair.shape:
            raise WorkbookError(
                f"without is of shape {without.shape}; allowed: {by_pair.shape}, a row a pair"
            )
        r = 2 * (n_pairs - 1) / (n_pairs - 2)
        variance = (r * variance + (n_pairs - 1) * without.var(0)) / (r + 1)
    mean = by_pair.mean(0)
    half = stats.t.ppf((1 + confidence) / 2, n_pairs - 1) * np.sqrt(variance)
    return mean, mean - half, mean + half


def subset_cap(*, n_subset, n_members) -> np.ndarray:
    """Largest expected advantage against a model that depends on T through a random S ⊂ T only.

    |S|/|T| (arXiv:2209.14987). The guess "member" of exactly S gives it, with FPR 0; given S the
    rest of T is like any other examples, so that each guess of one of them costs. In expectation:
    one model may exceed it, only an interval wholly above it is wrong.

    Args:
        n_subset, n_members: |S| and |T|; they broadcast. Average over models as advantages are.
    """
    return np.divide(n_subset, n_members)


def privacy_cap(*, delta_at_zero: float) -> float:
    """Largest expected advantage under differential privacy: its δ at ε = 0, add or remove one.

    δ(0) bounds the total variation between training with and without an example, and so the
    example's TPR − FPR given the other coins. The average over examples is 2·(accuracy − 1/2);
    TPR − FPR as one model's counts give it differs in so far as the number of guesses goes with
    the size of T, by no more than about 1/√|U|.

    Args:
        delta_at_zero: of the mechanism's privacy loss distribution.

    Raises:
        WorkbookError: for δ outside [0, 1].
    """
    if not 0 <= delta_at_zero <= 1:
        raise WorkbookError(f"delta_at_zero = {delta_at_zero}; allowed: a number in [0, 1]")
    return float(delta_at_zero)


@dataclass(frozen=True)
class RocBand:
    """Mean ROC curve on a fixed grid, with an interval at each of its points."""

    false_positive_rates: np.ndarray  # (k,) limits
    true_positive_rate: np.ndarray  # (k,) mean over pairs
    lower: np.ndarray  # (k,)
    upper: np.ndarray  # (k,)


def roc_band(
    scores: np.ndarray,
    members: np.ndarray,
    *,
    false_positive_rates: Sequence[float],
    attacked: np.ndarray | None = None,
    confidence: float = 0.95,
) -> RocBand:
    """Mean TPR over pairs at each FPR limit, with :func:`pair_interval`, kept within [0, 1].

    Each point's interval holds for that point, not for the curve as a whole, and takes pairs for
    independent, which makes it somewhat narrow for online LiRA.

    Args:
        scores, members, false_positive_rates, attacked: as in :func:`counts_at_rates`.
        confidence: of each interval.

    Raises:
        WorkbookError: as :func:`counts_at_rates` and :func:`pair_interval` do.
    """
    counts = counts_at_rates(
        scores, members, false_positive_rates=false_positive_rates, attacked=attacked
    )
    mean, low, high = pair_interval(counts.true_positive_rate, confidence=confidence)
    return RocBand(
        np.asarray(false_positive_rates, dtype=float), mean, np.maximum(low, 0), np.minimum(high, 1)
    )


# ---------------------------------------------------------------------- the wrong protocol


def wrong_protocol_sample(
    subset: np.ndarray,
    members: np.ndarray,
    labels: np.ndarray,
    *,
    compared_with: str = TRAINING_SET,
    rng: np.random.Generator,
) -> np.ndarray:
    """What not to do: S with as many others S′ of the same class counts, to be told apart.

    So was the random subset attacked in the work that arXiv:2209.14987 criticises: not over U, and
    with the examples of S as members, which is half of what is asked about instead of 1 %.
    The result is ``attacked``, ``subset`` the members (with ``complementary=False``).

    Args:
        subset: (examples,) booleans, S.
        members: (examples,) booleans, T.
        labels: (examples,) classes.
        compared_with: where S′ is drawn from: ``"training_set"``, T∖S as published, or
            ``"outside"``, U∖T.
        rng: of the draw, one for each model.

    Returns:
        (examples,) booleans, S ∪ S′.

    Raises:
        WorkbookError: for S not within T, too few others of a class, another ``compared_with``.
    """
    subset, members = np.asarray(subset, dtype=bool), np.asarray(members, dtype=bool)
    labels = np.asarray(labels)
    pools = {TRAINING_SET: members & ~subset, OUTSIDE: ~members}
    if compared_with not in pools:
        raise WorkbookError(f"compared_with = {compared_with!r}; allowed: {', '.join(pools)}")
    if outside := int((subset & ~members).sum()):
        raise WorkbookError(f"{outside} examples of the subset are outside the training set")
    sample = subset.copy()
    for label, wanted in zip(*np.unique(labels[subset], return_counts=True), strict=True):
        pool = np.flatnonzero(pools[compared_with] & (labels == label))
        if pool.size < wanted:
            raise WorkbookError(
                f"class {label}: {wanted} examples in the subset, {pool.size} to compare them "
                "with; allowed: no fewer"
            )
        sample[rng.choice(pool, wanted, replace=False)] = True
    return sample


# ------------------------------------------------------------- what an epsilon is, and is not


def log_ratio(*, true_positives, n_members, false_positives, n_others) -> np.ndarray:
    """ln(TPR/FPR) of counts, which broadcast; infinite where FPR alone is 0, 0 where both are."""
    tpr, fpr = np.divide(true_positives, n_members), np.divide(false_positives, n_others)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(tpr == fpr, 0.0, np.log(tpr) - np.log(fpr))[()]


def criticised_epsilon(curve: Roc, *, min_false_positives: int = 1) -> tuple[float, int, int]:
    """What not to claim: the largest ln(TPR/FPR) read off one ROC curve.

    It is neither an upper nor a lower bound on ε (arXiv:2209.14987): the point is chosen by its
    outcome, without confidence, and an average over examples says nothing about any one of them.

    Args:
        curve: of one model.
        min_false_positives: points with fewer are passed over; at 0 any true positive above the
            first other gives infinity.

    Returns:
        ε̂, and its true and false positives; of equal ones the lowest FPR.

    Raises:
        WorkbookError: for more false positives than there are others.
    """
    if not 0 <= min_false_positives <= curve.n_others:
        raise WorkbookError(
            f"min_false_positives = {min_false_positives}; allowed: 0 to {curve.n_others}"
        )
    ratios = log_ratio(
        true_positives=curve.true_positives,
        n_members=curve.n_members,
        false_positives=curve.false_positives,
        n_others=curve.n_others,
    )
    ratios = np.where(curve.false_positives >= min_false_positives, ratios, -np.inf)
    at = int(np.argmax(ratios))
    return float(ratios[at]), int(curve.true_positives[at]), int(curve.false_positives[at])


@dataclass(frozen=True)
class HiddenGroup:
    """Expected rates of an attack that knows one group and guesses the rest by a coin."""

    true_positive_rate: float
    false_positive_rate: float
    epsilon_average: float  # ln(TPR/FPR) over everybody
    epsilon_group: float  # over the group: infinite


def hidden_group(*, n_members: int, n_exposed: int) -> HiddenGroup:
    """How an average hides a group: all of it is recognised, of the others nobody.

    Of ``n_members`` members and as many others, ``n_exposed`` of either are told apart without
    error, and half of the rest is called members: on average the ratio is (n + e)/(n − e), for a
    tenth 11/9, whose logarithm is 0.2 (the example of arXiv:2209.14987), while for the group it is
    infinite.

    Raises:
        WorkbookError: for a group of nobody, or larger than its population.
    """
    if not 1 <= n_exposed <= n_members:
        raise WorkbookError(
            f"n_exposed = {n_exposed}; allowed: 1 to n_members, which is {n_members}"
        )
    rest = (n_members - n_exposed) / 2
    everybody = {"n_members": n_members, "n_others": n_members}
    group = {"n_members": n_exposed, "n_others": n_exposed}
    return HiddenGroup(
        true_positive_rate=(n_exposed + rest) / n_members,
        false_positive_rate=rest / n_members,
        epsilon_average=float(
            log_ratio(true_positives=n_exposed + rest, false_positives=rest, **everybody)
        ),
        epsilon_group=float(log_ratio(true_positives=n_exposed, false_positives=0, **group)),
    )


def halves(n_pairs: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs on which a group is chosen, and the pairs on which it is evaluated; no pair is both.

    Half each, but never fewer than three to evaluate, which are each other's shadows: those that
    chose the group have no part in its scores, or what made them choose it would be found again.

    Raises:
        WorkbookError: for fewer than four pairs.
    """
    if n_pairs < 4:
        raise WorkbookError(f"{n_pairs} pairs of models; allowed: at least 4, to choose and test")
    n_choosing = min(n_pairs // 2, n_pairs - 3)
    return np.arange(n_choosing), np.arange(n_choosing, n_pairs)


def gaps(logits: np.ndarray, members: np.ndarray) -> np.ndarray:
    """How much surer the model of a pair that has an example is of it than the one that has not.

    Args:
        logits, members: (models, examples), in complementary pairs.

    Returns:
        (pairs, examples) differences of logits.

    Raises:
        WorkbookError: as :func:`check_complementary` does.
    """
    logits, members = _checked_pairs(logits, members, complementary=True, at_least=1)
    return np.where(members[0::2], 1, -1) * (logits[0::2] - logits[1::2])


def most_exposed_class(logits: np.ndarray, members: np.ndarray, labels: np.ndarray) -> int:
    """Class with the largest mean of :func:`gaps`, in standard deviations of the class's gaps.

    Give it the models of the choosing half of the pairs only (:func:`halves`, :func:`rows_of`), and
    look at what comes out on the others. Scores will not do for choosing: those of one half are
    made with the other half as shadows, and would pass on what it is then tested with.

    Args:
        logits, members: (models, examples) of these models.
        labels: (examples,) classes.

    Raises:
        WorkbookError: for labels that do not fit, and as :func:`gaps` does.
    """
    differences, labels = gaps(logits, members), np.asarray(labels)
    if labels.shape != differences.shape[1:]:
        raise WorkbookError(
            f"labels of shape {labels.shape} for {differences.shape[1]} examples; allowed: one each"
        )
    classes = np.unique(labels)
    of_class = [differences[:, labels == label] for label in classes]
    # Without any scatter a mean of 0 is no exposure, any other is all there can be.
    smallest = np.finfo(float).tiny
    return int(classes[np.argmax([x.mean() / max(x.std(), smallest) for x in of_class])])


def most_exposed_share(logits: np.ndarray, members: np.ndarray, *, share: float) -> np.ndarray:
    """Examples of the largest mean :func:`gaps`: the most exposed percentiles.

    Args:
        logits, members: as in :func:`most_exposed_class`, of the choosing half only.
        share: of the examples, in (0, 1]; rounded down, at least one.

    Returns:
        (examples,) booleans; of equal ones the first.

    Raises:
        WorkbookError: for a share out of range, and as :func:`gaps` does.
    """
    if not 0 < share <= 1:
        raise WorkbookError(f"share = {share}; allowed: a number in (0, 1]")
    mean = gaps(logits, members).mean(0)
    n = max(1, math.floor(share * mean.size + 1e-9))
    chosen = np.zeros(mean.size, dtype=bool)
    chosen[np.argsort(-mean, kind="stable")[:n]] = True
    return chosen


def claim_from_one_model(
    scores: np.ndarray,
    members: np.ndarray,
    *,
    n_positive: int,
    n_negative: int,
    delta: float,
    significance: float = 0.05,
    rng: np.random.Generator,
) -> one_run.Audit:
    """What one model allows to claim: a lower bound on ε, m = |U| (arXiv:2305.08846, Theorem 5.2).

    One model's examples are no independent trials, since all went through one training, so that
    Clopper and Pearson's limits over examples are wrong; these coins are what is independent. The
    bound is for adding or removing one example. It holds for a model named beforehand: the largest
    of several models' would need their number in the significance.

    Args:
        scores: (examples,) of one model, made without its pair (:func:`attack_scores`).
        members: (examples,) booleans, T by independent fair coins (:func:`draw_memberships`).
        n_positive, n_negative: guesses of "in" for the highest scores and "out" for the lowest,
            both fixed before the scores are seen.
        delta: δ of the claim, in [0, 1]; m·δ has to be small.
        significance: allowed probability of a bound above the truth.
        rng: breaks ties.

    Returns:
        Its counts and bound.

    Raises:
        WorkbookError: as :func:`lib.one_run.audit` does.
    """
    return one_run.audit(
        scores,
        np.asarray(members),
        n_positive=n_positive,
        n_negative=n_negative,
        delta=delta,
        significance=significance,
        rng=rng,
    )


def largest_epsilon_from_runs(*, n_first, n_second, delta, significance=0.05) -> float | np.ndarray:
    """Largest bound that so many independent runs a side can give: that of no wrong guess.

    :func:`lib.one_run.epsilon_lower_bound_from_runs` with arguments as there. 100 a side give 3.28:
    detection of "100 %" is never an infinite ε.
    """
    return one_run.epsilon_lower_bound_from_runs(
        n_first=n_first,
        n_wrong_first=0,
        n_second=n_second,
        n_wrong_second=0,
        delta=delta,
        significance=significance,
    )


# ---------------------------------------------------------------------------------- checks


def _like(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Spread one value a model over an array whose first axis is models."""
    return np.broadcast_to(values.reshape(-1, *[1] * (len(shape) - 1)), shape)


def _check_attack(attack: str) -> None:
    if attack not in ATTACKS:
        raise WorkbookError(f"attack = {attack!r}; allowed: {', '.join(ATTACKS)}")


def _check_finite(name: str, values: np.ndarray) -> None:
    if not np.isfinite(values).all():
        raise WorkbookError(
            f"{name} hold {values[~np.isfinite(values)][0]}; allowed: finite numbers"
        )


def _check_rows(values: np.ndarray) -> None:
    if values.ndim < 1 or len(values) % 2:
        raise WorkbookError(
            f"an array of shape {values.shape}; allowed: an even number of models, in pairs, first"
        )


def _check_models(logits: np.ndarray, members: np.ndarray) -> None:
    if logits.ndim != 2 or logits.shape != members.shape or members.dtype != bool:
        raise WorkbookError(
            f"numbers of shape {logits.shape} and {members.dtype} of shape {members.shape}; "
            "allowed: (models, examples) numbers and as many booleans"
        )
    _check_finite("models", logits)


def _checked_pairs(logits, members, complementary: bool, *, at_least: int):
    logits, members = np.asarray(logits, dtype=float), np.asarray(members)
    _check_models(logits, members)
    _check_rows(members)
    if len(logits) < 2 * at_least:
        raise WorkbookError(f"{len(logits) // 2} pairs of models; allowed: at least {at_least}")
    if complementary:
        check_complementary(members)
    return logits, members


def _checked_rates(false_positive_rates) -> np.ndarray:
    rates = np.atleast_1d(np.asarray(false_positive_rates, dtype=float))
    bad = ~((rates >= 0) & (rates <= 1))
    if bad.any():
        raise WorkbookError(f"false_positive_rates = {rates[bad][0]}; allowed: numbers in [0, 1]")
    return rates


def _checked_attacked(attacked, members: np.ndarray) -> np.ndarray:
    if attacked is None:
        return np.ones(members.shape, dtype=bool)
    attacked = np.asarray(attacked)
    if attacked.dtype != bool or attacked.shape not in (members.shape, members.shape[1:]):
        raise WorkbookError(
            f"attacked is {attacked.dtype} of shape {attacked.shape}; allowed: booleans of shape "
            f"{members.shape} or {members.shape[1:]}"
        )
    return np.broadcast_to(attacked, members.shape)
