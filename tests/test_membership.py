"""ROC curves in counts: ties, low rates, areas, and what is refused."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from lib import membership
from lib.errors import WorkbookError


def area(curve):
    return membership.area(
        n_pairs_in_order=curve.n_pairs_in_order,
        n_members=curve.n_members,
        n_others=curve.n_others,
    )


def test_equal_scores_stay_together():
    curve = membership.roc([9, 9, 5, 5], [1, 0, 1, 0])
    assert curve.true_positives.tolist() == [0, 1, 2]
    assert curve.false_positives.tolist() == [0, 1, 2]
    assert area(curve) == 0.5
    assert curve.at_most(0.0) == (0, 0)


def test_constant_scores_say_nothing():
    curve = membership.roc(np.ones(10), np.arange(10) < 4)
    assert curve.true_positives.tolist() == [0, 4]
    assert curve.false_positives.tolist() == [0, 6]
    assert area(curve) == 0.5


def test_only_ranks_matter_and_not_the_order():
    rng = np.random.default_rng(0)
    scores, members = rng.standard_normal(1000), rng.random(1000) < 0.5
    mild, wild = scores.copy(), scores.copy()
    mild[7], wild[7] = 5.0, 1e9
    curves = [membership.roc(each, members) for each in (mild, wild)]
    shuffled = rng.permutation(1000)
    curves.append(membership.roc(mild[shuffled], members[shuffled]))
    for curve in curves:
        assert area(curve) == area(curves[0]) == pytest.approx(roc_auc_score(members, mild))
        assert (np.diff(curve.true_positives) >= 0).all()
        assert (np.diff(curve.false_positives) >= 0).all()
        assert (curve.true_positives[0], curve.false_positives[0]) == (0, 0)
        assert (curve.n_members, curve.n_others) == (members.sum(), (~members).sum())


def test_thresholds_are_plain():
    """A block of 100 members and 25 others at the top: 1.25 % of others is not at most 1 %."""
    rest = np.linspace(0, 0.9, 1900), np.linspace(0.0001, 0.8999, 1975)
    scores = np.concatenate([np.ones(100), rest[0], np.ones(25), rest[1]])
    members = np.arange(4000) < 2000
    curve = membership.roc(scores, members)
    assert curve.at_most(0.01) == (0, 0)
    assert curve.at_most(0.0125) == (101, 25)  # and the member above the next of the others


def test_one_percent_of_a_hundred_is_one():
    scores = np.concatenate([[4.0, 2.0], np.arange(100) / 100 + 2.5])
    curve = membership.roc(scores, np.arange(102) < 2)
    assert curve.at_most(0.01) == (1, 1)
    assert curve.at_most(0.001) == (1, 0)


@pytest.mark.parametrize(
    ("scores", "members", "words"),
    [
        ([1.0, np.nan], [1, 0], "scores hold nan; allowed: finite numbers"),
        ([1.0, 2.0], [1, 1], "2 of 2 are members; allowed: at least one, not all"),
        ([1.0, 2.0], [0, 0], "0 of 2 are members"),
        ([1.0], [1, 0], "allowed: one dimension, as many of both"),
    ],
)
def test_what_has_no_curve_is_refused(scores, members, words):
    with pytest.raises(WorkbookError, match=words):
        membership.roc(scores, members)
