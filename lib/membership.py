"""How well scores tell members from others: the ROC curve in counts, its area, its low end.

A threshold says "member" of every score at or above it, so equal scores fall on one side together.
Points are kept as counts, from which any rate follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.metrics import confusion_matrix_at_thresholds

from lib.errors import WorkbookError


@dataclass(frozen=True)
class Roc:
    """Every threshold's counts, from "nobody" to "everybody"; both rise."""

    true_positives: np.ndarray  # (k,) members called members
    false_positives: np.ndarray  # (k,) others called members

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
        # In counts, so that 1 % of 100 is 1.
        allowed = np.floor(false_positive_rate * self.n_others + 1e-9)
        last = np.searchsorted(self.false_positives, allowed, side="right") - 1
        return int(self.true_positives[last]), int(self.false_positives[last])


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
    _, false_positives, _, true_positives, _ = confusion_matrix_at_thresholds(members, scores)
    return Roc(
        true_positives=np.concatenate([[0], true_positives]).astype(int),
        false_positives=np.concatenate([[0], false_positives]).astype(int),
    )


def area(*, n_pairs_in_order, n_members, n_others) -> np.ndarray:
    """Area under the ROC curve: the chance that a member scores higher than another.

    Args:
        n_pairs_in_order: see :attr:`Roc.n_pairs_in_order`. All arguments broadcast.
        n_members, n_others: at least 1.
    """
    return np.asarray(n_pairs_in_order) / (np.asarray(n_members) * np.asarray(n_others))
