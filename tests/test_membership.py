"""Membership inference: ROC curves, protocol, LiRA, thresholds, intervals, what is refused."""

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from lib import membership, one_run
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


# ------------------------------------------------------------------------------- protocol


def drawn(n_pairs, n_examples, seed=0):
    return membership.draw_memberships(
        n_pairs=n_pairs, n_examples=n_examples, rng=np.random.default_rng(seed)
    )


def noise(n_pairs, n_examples, seed=0):
    """Logits that know nothing of the memberships beside them."""
    members = drawn(n_pairs, n_examples, seed)
    return np.random.default_rng([seed, 1]).standard_normal(members.shape), members


def test_models_come_in_complementary_pairs_of_fair_coins():
    members = drawn(50, 400)
    assert members.shape == (100, 400)
    membership.check_complementary(members)
    assert (members.sum(0) == 50).all()  # every example is in for half of the models
    sizes = members[0::2].sum(1)
    assert sizes.std() > 0  # coins, not a fixed size
    # 20,000 coins, four standard errors.
    assert abs(members[0::2].mean() - 0.5) < 4 * 0.5 / np.sqrt(20_000)
    assert (members == drawn(50, 400)).all()
    assert (members != drawn(50, 400, seed=1)).any()


def test_a_pair_is_no_shadow_of_itself():
    assert membership.shadows_of(1, n_models=6).tolist() == [0, 1, 4, 5]
    assert membership.rows_of([0, 2]).tolist() == [0, 1, 4, 5]
    logits, members = noise(4, 50)
    scores = membership.attack_scores(logits, members, attack="online")
    choice = membership.choose_on_shadows(logits, members, attack="online")
    wild = logits.copy()
    wild[2:4] = 10 * wild[2:4] + 7
    others = [0, 1, 4, 5, 6, 7]
    changed = membership.attack_scores(wild, members, attack="online")
    assert (changed[others] != scores[others]).all()  # as shadows of the others they count
    # Pair 1's own logits decide neither which shadows it is held against nor the thresholds.
    expected = membership.lira(wild[2:4], logits[others], members[others], attack="online")
    np.testing.assert_allclose(changed[2:4], expected, rtol=1e-6)
    rechosen = membership.choose_on_shadows(wild, members, attack="online")
    assert rechosen.threshold[1] == choice.threshold[1]
    assert (rechosen.low_thresholds[1] == choice.low_thresholds[1]).all()


def test_turning_a_pairs_coin_over_changes_neither_score_nor_threshold():
    """So on noise the guess is independent of the coin, and the advantage 0 in expectation."""
    logits, members = noise(4, 60)
    turned = members.copy()
    turned[4:6, 7] = ~turned[4:6, 7]
    for attack in membership.ATTACKS:
        before, after = (
            (
                membership.attack_scores(logits, each, attack=attack)[4:6],
                membership.choose_on_shadows(logits, each, attack=attack).threshold[2],
            )
            for each in (members, turned)
        )
        np.testing.assert_allclose(before[0], after[0], rtol=1e-9)
        assert before[1] == after[1]


# ----------------------------------------------------------------------------------- LiRA


def test_label_logits_neither_overflow_nor_round():
    outputs = np.zeros((2, 10), dtype=np.float32)
    outputs[0, 0], outputs[1, 3] = 40, 3e38
    found = membership.label_logits(outputs, np.array([0, 0]))
    # 40 − ln 9; in single precision log p − log(1 − p) would be infinite.
    assert found[0] == pytest.approx(37.80277542266378)
    assert found[1] == -float(np.float32(3e38))
    rng = np.random.default_rng(0)
    outputs, labels = rng.standard_normal((3, 5, 4)), np.array([0, 1, 2, 3, 0])
    p = (np.exp(outputs) / np.exp(outputs).sum(-1, keepdims=True))[:, np.arange(5), labels]
    np.testing.assert_allclose(membership.label_logits(outputs, labels), np.log(p / (1 - p)))


def hand_case(attack, targets=(3.0,)):
    shadows = np.array([2.0, 3, 4, -1, 1, 3])[:, None]
    members = np.array([1, 1, 1, 0, 0, 0], dtype=bool)[:, None]
    return membership.lira(np.array(targets)[:, None], shadows, members, attack=attack)[:, 0]


def test_lira_by_hand():
    """In 2, 3, 4: mean 3, variance 1. Out −1, 1, 3: mean 1, variance 4. Target 3.

    log N(3; 3, 1) − log N(3; 1, 4) = 0 + (ln 4 + (2/2)²)/2 = ln 2 + 1/2 = 1.1931. Swapped
    variances would give 3.0 or 0.75, a variance taken for a deviation 1.6675, n for n − 1 1.4431.
    With one example alone its own variances are the fixed ones.
    """
    for suffix in ("", membership.FIXED):
        assert hand_case("online" + suffix) == pytest.approx(np.log(2) + 0.5)
        assert hand_case("offline_one_sided" + suffix) == pytest.approx(1.0)
        surprise = (np.log(2 * np.pi * 4) + 1) / 2
        assert hand_case("offline_density" + suffix) == pytest.approx(surprise)


def test_offline_one_sided_and_density_differ_below():
    """Against N(0, 1) targets −3, 0, 3: only the density takes −3 for a member."""
    shadows = np.array([-1.0, 1, 0, 0])[:, None] * np.sqrt(1.5)
    members = np.zeros((4, 1), dtype=bool)
    targets = np.array([-3.0, 0, 3])[:, None]
    one_sided, density = (
        membership.lira(targets, shadows, members, attack=f"offline_{kind}")[:, 0]
        for kind in ("one_sided", "density")
    )
    np.testing.assert_allclose(stats.norm.cdf(one_sided), [0.00135, 0.5, 0.99865], atol=1e-5)
    np.testing.assert_allclose(density, -stats.norm.logpdf(targets[:, 0]))


def test_fixed_variance_pools_within_examples_and_by_side():
    """Two examples of other levels: what is pooled is the scatter about each one's own mean."""
    shadows = np.array([[2.0, 90], [4, 90], [-1, 50], [3, 58]])
    members = np.array([[1, 1], [1, 1], [0, 0], [0, 0]], dtype=bool)
    found = membership.lira(shadows[0], shadows, members, attack="online_fixed_variance")
    # In: squares 2 and 0, two degrees of freedom, 1. Out: squares 8 and 32, 20.
    expected = stats.norm.logpdf([2, 90], [3, 90], 1) - stats.norm.logpdf([2, 90], [1, 54], 20**0.5)
    np.testing.assert_allclose(found, expected)


def test_all_targets_at_once_are_each_by_itself():
    logits, members = noise(3, 40)
    for attack in membership.ATTACKS:
        scores = membership.attack_scores(logits, members, attack=attack)
        for target in range(6):
            rows = membership.shadows_of(target // 2, n_models=6)
            alone = membership.lira(logits[target], logits[rows], members[rows], attack=attack)
            np.testing.assert_allclose(scores[target], alone, rtol=1e-7, atol=1e-9)
        shifted = membership.attack_scores(logits + 1e6, members, attack=attack)
        np.testing.assert_allclose(shifted, scores, rtol=1e-4, atol=1e-4)


def test_few_shadows_give_numbers():
    """Models with an example: 2, 1, 0, all. Nothing is NaN, and what is missing looks neither."""
    members = np.array([[1, 1, 0, 1], [1, 0, 0, 1], [0, 0, 0, 1]], dtype=bool)
    shadows = np.array([[1.0, 2, 3, 4], [3, 5, 7, 9], [0, 4, 1, 0]])
    targets = np.array([2.0, 2, 2, 2])
    # Pooled: squares about means, in over 1 + 2 degrees of freedom, out over 1 + 2.
    of_last = np.var([4, 9, 0], ddof=1)
    pooled_in, pooled_out = (2 + 2 * of_last) / 3, (0.5 + np.var([3, 7, 1], ddof=1) * 2) / 3
    online = membership.lira(targets, shadows, members, attack="online")
    assert online[0] == pytest.approx(
        stats.norm.logpdf(2, 2, 2**0.5) - stats.norm.logpdf(2, 0, pooled_out**0.5)
    )
    assert online[1] == pytest.approx(
        stats.norm.logpdf(2, 2, pooled_in**0.5) - stats.norm.logpdf(2, 4.5, 0.5**0.5)
    )
    assert (online[2], online[3]) == (0, 0)
    for attack in membership.ATTACKS:
        assert np.isfinite(membership.lira(targets, shadows, members, attack=attack)).all()
    assert membership.lira(targets, shadows, members, attack="offline_one_sided")[3] == 0
    # One shadow with the example: its side takes the variance of the other, 4, for its own.
    shadows, members = np.array([[7.0], [-1], [1], [3]]), np.array([[1], [0], [0], [0]], dtype=bool)
    for suffix in ("", membership.FIXED):
        one = membership.lira(np.array([5.0]), shadows, members, attack="online" + suffix)
        assert one[0] == pytest.approx(((5 - 1) ** 2 - (5 - 7) ** 2) / (2 * 4))
    # One shadow a side: no variance anywhere, and the nearer mean decides.
    two = membership.lira(
        np.array([[1.0], [2.0]]),
        np.array([[3.0], [0.0]]),
        np.array([[True], [False]]),
        attack="online",
    )
    np.testing.assert_allclose(two[:, 0], [(1 - 4) / 2, (4 - 1) / 2])


def test_constant_logits_say_nothing():
    _, members = noise(4, 30)
    for attack in membership.ATTACKS:
        scores = membership.attack_scores(np.full(members.shape, 0.1), members, attack=attack)
        assert (scores == scores[0, 0]).all()


# --------------------------------------------------------------------- nothing is nothing


@pytest.mark.parametrize("n_pairs", [4, 8])
def test_noise_gives_half_the_area_and_no_advantage(n_pairs):
    """8 and 16 models, all the way from logits. A model's advantage has deviation 1/√n (two rates
    of n/2 at the worst), its area 1/√(3n); pairs' correlation can double the mean's variance.
    """
    n_examples = 3000
    logits, members = noise(n_pairs, n_examples)
    error = np.sqrt(2 * (n_pairs - 1) / (n_pairs - 2) / (n_examples * 2 * n_pairs))
    for attack in ("online", "online_fixed_variance", "offline_one_sided", "offline_density"):
        scores = membership.attack_scores(logits, members, attack=attack)
        choice = membership.choose_on_shadows(logits, members, attack=attack)
        counts = membership.counts_at(scores, members, choice.threshold)
        assert abs(counts.advantage.mean()) < 4 * error
        areas = [
            curve.n_pairs_in_order / (curve.n_members * curve.n_others)
            for curve in membership.curves(scores, members)
        ]
        assert abs(np.mean(areas) - 0.5) < 4 * error / np.sqrt(3)
        mean, low, high = membership.pair_interval(counts.advantage, without=choice.advantage)
        assert low < mean < high


def test_a_complement_among_the_shadows_reads_less_than_nothing():
    """Of 8 models all but the target as shadows: 3 in and 4 out, or 4 and 3, tell the coin."""
    logits, members = noise(4, 3000)
    wrong = np.stack(
        [
            membership.lira(
                logits[i], np.delete(logits, i, 0), np.delete(members, i, 0), attack="online"
            )
            for i in range(8)
        ]
    )
    right = membership.attack_scores(logits, members, attack="online")
    wrong, right = (
        membership.counts_at(scores, members, np.zeros(4)).advantage.mean()
        for scores in (wrong, right)
    )
    # Standard error 0.65 to 1 %; the fault's size is about −7 %.
    assert wrong < -0.04
    assert abs(right) < 0.03


def test_a_peeked_threshold_reads_something():
    """Known for pure noise: √(π/8)·√(1/n + 1/m), 1.25 % for a universe of 10,000."""
    rng = np.random.default_rng(0)
    scores, members = rng.standard_normal((200, 1000)), np.arange(1000) % 2 == 0
    members = np.broadcast_to(members, scores.shape)
    curves = membership.curves(scores, members)
    peeked = np.array([curve.largest_advantage for curve in curves])
    expected = membership.peeked_advantage_of_noise(n_members=500, n_others=500)
    # The largest of finitely many values is a little below that of a path.
    error = 4 * peeked.std() / np.sqrt(200)
    assert -0.002 - error < peeked.mean() - expected < error
    assert membership.peeked_advantage_of_noise(n_members=5000, n_others=5000) == pytest.approx(
        0.012533, abs=1e-6
    )
    assert (peeked >= 0).all()


# ----------------------------------------------------------------------- thresholds, caps


def subsets(members, n_subset, seed=0):
    rng = np.random.default_rng(seed)
    chosen = np.zeros(members.shape, dtype=bool)
    for row, inside in zip(chosen, members, strict=True):
        row[rng.choice(np.flatnonzero(inside), n_subset, replace=False)] = True
    return chosen


def test_a_perfect_attacker_of_a_random_subset_gets_its_cap():
    """Guessing S is |S|/|T| exactly; guessing anything of U∖S besides costs on average."""
    members = drawn(100, 1000)
    chosen = subsets(members, 20)
    counts = membership.counts_at(chosen.astype(float), members, np.ones(100))
    cap = membership.subset_cap(n_subset=20, n_members=members.sum(1))
    np.testing.assert_allclose(counts.advantage, cap)
    assert cap.mean() == pytest.approx(0.04, rel=0.01)
    rng = np.random.default_rng(1)
    more = chosen | (rng.random(members.shape) < 0.5)
    advantage = membership.counts_at(more.astype(float), members, np.ones(100)).advantage
    # Given S, T∖S is uniform in U∖S: of g guesses there the expected cost is g·|S|/(|T|·(n − |S|)).
    expected = cap * (1 - (more.sum(1) - 20) / 980)
    error = (advantage - expected).std() / np.sqrt(200)
    assert abs((advantage - expected).mean()) < 4 * error


def test_cap_is_reached_through_the_whole_path():
    """Models that show S and nothing else: offline LiRA reads |S|/|T|, and tells no rest of T."""
    logits, members = noise(5, 2000)
    logits[subsets(members, 20)] += 30
    attack = "offline_one_sided_fixed_variance"
    scores = membership.attack_scores(logits, members, attack=attack)
    choice = membership.choose_on_shadows(logits, members, attack=attack)
    counts = membership.counts_at(scores, members, choice.threshold)
    cap = membership.subset_cap(n_subset=20, n_members=members.sum(1))
    assert (counts.true_positives >= 20).all()
    assert counts.advantage.mean() == pytest.approx(cap.mean(), abs=0.012)
    assert membership.privacy_cap(delta_at_zero=0.25) == 0.25


def test_advantage_is_twice_the_excess_of_accuracy_at_equal_sizes():
    members = np.array([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=bool)
    scores = np.array([[5.0, 1, 2, 0], [0, 3, 4, 1]])
    counts = membership.counts_at(scores, members, [[2.0, 4.5]])
    assert counts.true_positives.tolist() == [[1, 1], [1, 0]]
    assert counts.false_positives.tolist() == [[1, 0], [1, 0]]
    accuracy = (counts.true_positives + counts.n_others - counts.false_positives) / 4
    np.testing.assert_allclose(counts.advantage, 2 * (accuracy - 0.5))
    again = membership.advantage(
        true_positives=1, n_members=2, false_positives=0, n_others=counts.n_others
    )
    assert (again == 0.5).all()


def test_thresholds_come_from_the_shadows_scores():
    logits, members = noise(4, 200)
    logits = logits + 1.5 * members
    attack = "online_fixed_variance"
    choice = membership.choose_on_shadows(
        logits, members, attack=attack, false_positive_rates=[0.01, 0.1]
    )
    for pair in range(4):
        rows = membership.shadows_of(pair, n_models=8)
        scores = membership.shadow_scores(logits, members, attack=attack, pair=pair)
        for threshold, limit in zip(choice.low_thresholds[pair], (0.01, 0.1), strict=True):
            false = (scores >= threshold) & ~members[rows]
            assert limit - 1 / 200 < false.sum() / (~members[rows]).sum() <= limit
        called = scores >= choice.threshold[pair]
        tpr, fpr = called[members[rows]].mean(), called[~members[rows]].mean()
        assert choice.advantage[pair] == pytest.approx(tpr - fpr)
    # On part of the examples only those count.
    part = np.arange(200) < 40
    chosen = membership.choose_on_shadows(logits, members, attack=attack, attacked=part)
    rows = membership.shadows_of(0, n_models=8)
    scores = membership.shadow_scores(logits, members, attack=attack, pair=0)[:, part]
    curve = membership.roc(scores.ravel(), members[rows][:, part].ravel())
    assert chosen.advantage[0] == curve.largest_advantage
    assert chosen.threshold[0] == curve.thresholds[curve.index_of_largest_advantage()]
    # Which attack is chosen on the shadows too, and its values are taken pair by pair.
    weaker = membership.choose_on_shadows(-logits, members, attack="offline_one_sided")
    chosen = membership.strongest_on_shadows([weaker, choice])
    assert chosen.tolist() == [1, 1, 1, 1]
    values = np.arange(16).reshape(2, 8)
    assert membership.of_chosen(values, np.array([0, 1, 0, 1])).tolist() == [
        0,
        1,
        10,
        11,
        4,
        5,
        14,
        15,
    ]


def test_low_rates_on_the_curve_are_those_of_the_curve():
    logits, members = noise(2, 300)
    counts = membership.counts_at_rates(logits, members, false_positive_rates=[0.001, 0.01, 1])
    assert counts.true_positives.shape == (4, 3)
    for model in range(4):
        curve = membership.roc(logits[model], members[model])
        for j, rate in enumerate((0.001, 0.01, 1)):
            pair = counts.true_positives[model, j], counts.false_positives[model, j]
            assert pair == curve.at_most(rate)
    assert (counts.true_positive_rate[:, 2] == 1).all()


# ------------------------------------------------------------------------------ intervals


def test_pair_interval_by_hand():
    """Pairs' means 1, 2, 3: t quantile of two degrees of freedom 4.3026527, deviation 1."""
    values = np.array([[0.0], [2], [2], [2], [4], [2]])
    mean, low, high = membership.pair_interval(values)
    half = 4.3026527 / 3**0.5
    np.testing.assert_allclose([mean[0], low[0], high[0]], [2, 2 - half, 2 + half])
    # Left out 1.5, 2, 2.5 on the others: jackknife (2/3)·0.5 is 1/3 as well, r is 4.
    found = membership.pair_interval(values[:, 0], without=np.array([2.5, 2, 1.5]))
    np.testing.assert_allclose(found, [2, 2 - half, 2 + half])
    # Equal on the others: only the scatter's share 4/5 of the variance is left.
    found = membership.pair_interval(values[:, 0], without=np.ones(3))
    np.testing.assert_allclose(found, [2, 2 - half * 0.8**0.5, 2 + half * 0.8**0.5])


def simulated_pairs(rng, n_pairs, own, shared):
    """Values of pairs with parts of their own and of each two, and their mean without each."""
    u = own * rng.standard_normal(n_pairs)
    w = np.triu(shared * rng.standard_normal((n_pairs, n_pairs)), 1)
    w = w + w.T
    values = u + w.sum(1) / (n_pairs - 1)
    without = [
        np.mean(np.delete(u, k))
        + np.delete(np.delete(w, k, 0), k, 1).sum() / ((n_pairs - 1) * (n_pairs - 2))
        for k in range(n_pairs)
    ]
    return np.repeat(values, 2), np.array(without)


@pytest.mark.parametrize(("own", "shared"), [(1.0, 0.0), (0.5, 1.0), (0.0, 1.0)])
def test_intervals_over_pairs_cover(own, shared):
    """95 % of 800 simulated runs of 8 pairs, within four standard errors (3.1 %).

    With nothing but shared parts the corrected variance is right on average only: at least that.
    """
    rng = np.random.default_rng(0)
    covered = np.zeros(2)
    for _ in range(800):
        values, without = simulated_pairs(rng, 8, own, shared)
        for i, each in enumerate((None, without)):
            _, low, high = membership.pair_interval(values, without=each)
            covered[i] += low <= 0 <= high
    plain, corrected = covered / 800
    error = 4 * np.sqrt(0.95 * 0.05 / 800)
    assert -error < corrected - 0.95 < (error if own else 0.05)
    if not shared:
        assert abs(plain - 0.95) < error
    if not own:
        assert plain < 0.9  # what leaving the shared shadows out of account would cost


def test_interval_covers_through_the_whole_path():
    """Noise through scores and thresholds: 0 is covered in 95 % of 400 runs, within 4.4 %."""
    covered = 0
    for seed in range(400):
        logits, members = noise(4, 100, seed=seed)
        choice = membership.choose_on_shadows(logits, members, attack="online")
        scores = membership.attack_scores(logits, members, attack="online")
        counts = membership.counts_at(scores, members, choice.threshold)
        _, low, high = membership.pair_interval(counts.advantage, without=choice.advantage)
        covered += low <= 0 <= high
    assert covered / 400 > 0.95 - 4 * np.sqrt(0.95 * 0.05 / 400)


def test_band_is_the_mean_curve_of_the_pairs():
    rng = np.random.default_rng(0)
    members = drawn(3, 500)
    scores = rng.standard_normal(members.shape) + members
    rates = np.geomspace(1e-3, 1, 7)
    band = membership.roc_band(scores, members, false_positive_rates=rates)
    assert (np.diff(band.true_positive_rate) >= 0).all()
    assert ((band.lower >= 0) & (band.lower <= band.true_positive_rate)).all()
    assert ((band.true_positive_rate <= band.upper) & (band.upper <= 1)).all()
    tpr = membership.counts_at_rates(scores, members, false_positive_rates=[rates[3]])
    mean, low, high = membership.pair_interval(tpr.true_positive_rate[:, 0])
    assert (band.true_positive_rate[3], band.lower[3], band.upper[3]) == (mean, low, high)


# --------------------------------------------------------------------- the wrong protocol


def test_wrong_protocol_draws_as_many_of_each_class():
    labels = np.arange(600) % 3
    members = drawn(1, 600)[0]
    subset = members & (np.cumsum(members) <= 10) & (labels > 0)
    for compared_with, pool in (("training_set", members & ~subset), ("outside", ~members)):
        sample, again = (
            membership.wrong_protocol_sample(
                subset, members, labels, compared_with=compared_with, rng=np.random.default_rng(3)
            )
            for _ in range(2)
        )
        assert (sample == again).all()
        others = sample & ~subset
        assert sample[subset].all()
        assert pool[others].all()
        assert (
            np.bincount(labels[others], minlength=3) == np.bincount(labels[subset], minlength=3)
        ).all()


def test_wrong_protocol_reads_the_cap_as_nearly_everything():
    """The same attacker, cap 2 %: asked about S ∪ S′ alone it reads 100 %."""
    logits, members = noise(5, 2000)
    labels = np.arange(2000) % 10
    chosen = subsets(members, 20)
    logits[chosen] += 30
    rng = np.random.default_rng(0)
    attacked = np.stack(
        [
            membership.wrong_protocol_sample(s, m, labels, rng=rng)
            for s, m in zip(chosen, members, strict=True)
        ]
    )
    assert (attacked.sum(1) == 40).all()
    attack = "offline_one_sided_fixed_variance"
    scores = membership.attack_scores(logits, chosen, attack=attack, complementary=False)
    choice = membership.choose_on_shadows(
        logits, chosen, attack=attack, attacked=attacked, complementary=False
    )
    counts = membership.counts_at(scores, chosen, choice.threshold, attacked=attacked)
    assert (counts.n_members == 20).all()
    assert counts.advantage.mean() > 0.95


# --------------------------------------------------------------------- what an epsilon is


def test_criticised_epsilon_is_read_off_one_point():
    """Ten members above the first other, of 25,000 either: ln 10 = 2.303, and nothing is proved."""
    scores = np.concatenate([np.full(10, 9.0), [9.0], np.linspace(1, 0, 49_989)])
    members = np.concatenate([np.ones(10), [0], np.arange(49_989) % 2]).astype(bool)
    curve = membership.roc(scores, members)
    found, true, false = membership.criticised_epsilon(curve)
    assert (true, false) == (10, 1)
    assert found == pytest.approx(np.log(10 * curve.n_others / curve.n_members))
    assert (
        one_run.epsilon_lower_bound_from_runs(
            n_first=25_000, n_wrong_first=1, n_second=25_000, n_wrong_second=24_990, delta=0.0
        )
        == 0
    )
    sure = membership.roc([3.0, 2, 1], [1, 0, 1])
    assert membership.criticised_epsilon(sure, min_false_positives=0) == (np.inf, 1, 0)
    assert membership.criticised_epsilon(sure) == (0.0, 2, 1)


def test_average_hides_a_tenth():
    found = membership.hidden_group(n_members=1000, n_exposed=100)
    assert (found.true_positive_rate, found.false_positive_rate) == (0.55, 0.45)
    assert found.epsilon_average == pytest.approx(np.log(11 / 9))
    assert round(found.epsilon_average, 1) == 0.2
    assert found.epsilon_group == np.inf
    assert membership.hidden_group(n_members=5, n_exposed=5).epsilon_average == np.inf
    assert membership.log_ratio(true_positives=0, n_members=1, false_positives=0, n_others=1) == 0


def test_exposed_group_is_chosen_on_one_half_and_evaluated_on_the_other():
    """Class 2 and 40 examples of it show their membership; on noise nothing is left on the rest."""
    logits, members = noise(8, 400)
    labels = np.arange(400) // 100
    choosing, rest = membership.halves(8)
    assert not set(choosing) & set(rest)
    attack = "online_fixed_variance"
    for shown, gain in ((np.arange(400) // 40 == 6, 4.0), (np.zeros(400, dtype=bool), 0.0)):
        seen = logits + gain * (members & shown)
        first, second = membership.rows_of(choosing), membership.rows_of(rest)
        tested = seen[second], members[second]
        scores = membership.attack_scores(*tested, attack=attack)
        thresholds = membership.choose_on_shadows(*tested, attack=attack).threshold
        label = membership.most_exposed_class(seen[first], members[first], labels)
        share = membership.most_exposed_share(seen[first], members[first], share=0.1)
        assert share.sum() == 40
        found = [
            membership.counts_at(
                scores, members[second], thresholds, attacked=group
            ).advantage.mean()
            for group in (labels == label, share)
        ]
        if gain:
            assert label == 2
            assert (share & shown).sum() > 35
            assert found[0] > 0.25
            assert found[1] > 0.7
        else:
            # Eight models, 100 and 40 examples: deviations 0.035 and 0.056, doubled variance.
            assert abs(found[0]) < 4 * 0.05
            assert abs(found[1]) < 4 * 0.08


def test_gaps_are_with_less_without():
    members = np.array([[1, 0], [0, 1]], dtype=bool)
    assert membership.gaps([[5.0, 1], [2, 7]], members).tolist() == [[3, 6]]


def test_one_model_claims_by_the_one_run_bound():
    members = drawn(1, 1000)[0]
    scores = members + 0.1 * np.random.default_rng(0).standard_normal(1000)
    found = membership.claim_from_one_model(
        scores, members, n_positive=50, n_negative=50, delta=1e-6, rng=np.random.default_rng(1)
    )
    assert (found.n_canaries, found.n_guesses, found.n_correct) == (1000, 100, 100)
    assert found.epsilon_lower_bound == one_run.epsilon_lower_bound(
        n_canaries=1000, n_guesses=100, n_correct=100, delta=1e-6
    )


def test_no_number_of_runs_proves_infinity():
    largest = membership.largest_epsilon_from_runs(n_first=100, n_second=100, delta=0.0)
    limit = 1 - 0.025 ** (1 / 100)  # of a rate without a single case
    assert largest == pytest.approx(np.log((1 - limit) / limit))
    assert round(largest, 2) == 3.28


# ---------------------------------------------------------------------------- what is refused

LOGITS, MEMBERS = noise(3, 20)
ATTACK = {"attack": "online"}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: drawn(0, 5), "n_pairs = 0; allowed: at least 1"),
        (lambda: drawn(2, 0), "n_examples = 0; allowed: at least 1"),
        (lambda: membership.shadows_of(3, n_models=6), "pair = 3; allowed: 0 to 2"),
        (
            lambda: membership.attack_scores(LOGITS, MEMBERS, attack="best"),
            "attack = 'best'; allowed: online, online_fixed_variance, offline_one_sided",
        ),
        (
            lambda: membership.attack_scores(LOGITS[::-1], MEMBERS[[0, 2, 1, 3, 4, 5]], **ATTACK),
            "pair 0: models 0 and 1 agree on an example; allowed: a training set followed by its",
        ),
        (
            lambda: membership.attack_scores(LOGITS[:2], MEMBERS[:2], **ATTACK),
            "1 pairs of models; allowed: at least 2",
        ),
        (
            lambda: membership.choose_on_shadows(LOGITS[:4], MEMBERS[:4], **ATTACK),
            "2 pairs of models; allowed: at least 3",
        ),
        (
            lambda: membership.attack_scores(LOGITS[:5], MEMBERS[:5], **ATTACK),
            "allowed: an even number of models",
        ),
        (
            lambda: membership.attack_scores(LOGITS, MEMBERS.astype(int), **ATTACK),
            "int64 of shape .*; allowed: .models, examples. numbers and as many booleans",
        ),
        (
            lambda: membership.attack_scores(np.where(MEMBERS, np.nan, 0), MEMBERS, **ATTACK),
            "hold nan; allowed: finite numbers",
        ),
        (
            lambda: membership.lira(LOGITS[:, :3], LOGITS, MEMBERS, **ATTACK),
            "targets of shape .6, 3. and shadows of shape .6, 20.; allowed",
        ),
        (
            lambda: membership.label_logits(np.zeros((2, 1)), np.zeros(2, dtype=int)),
            "allowed: .…, n, classes., at least two classes",
        ),
        (
            lambda: membership.label_logits(np.zeros((2, 3)), np.array([0, 3])),
            "labels reach from 0 to 3 .int64.; allowed: whole numbers from 0 to 2",
        ),
        (
            lambda: membership.label_logits(np.full((2, 3), np.inf), np.array([0, 1])),
            "outputs hold inf; allowed: finite numbers",
        ),
        (
            lambda: membership.counts_at(LOGITS, MEMBERS, np.zeros(2)),
            "thresholds of shape .2,. for 3 pairs; allowed",
        ),
        (
            lambda: membership.counts_at(LOGITS, MEMBERS, np.zeros(3), attacked=MEMBERS[0]),
            "model 1 has no members among the examples; allowed: at least one of either",
        ),
        (
            lambda: membership.counts_at(LOGITS, MEMBERS, np.zeros(3), attacked=np.ones(20)),
            "attacked is float64 of shape .20,.; allowed: booleans",
        ),
        (
            lambda: membership.roc_band(LOGITS, MEMBERS, false_positive_rates=[0.1, 2]),
            "false_positive_rates = 2.0; allowed: numbers in .0, 1.",
        ),
        (lambda: membership.pair_interval(np.zeros(2)), "1 pairs of models; allowed: at least 2"),
        (
            lambda: membership.pair_interval(np.zeros(4), without=np.zeros(2)),
            "2 pairs of models; allowed: at least 3",
        ),
        (
            lambda: membership.pair_interval(np.zeros(6), without=np.zeros(2)),
            "without is of shape .2,.; allowed: .3,.",
        ),
        (lambda: membership.privacy_cap(delta_at_zero=1.5), "delta_at_zero = 1.5; allowed"),
        (
            lambda: membership.wrong_protocol_sample(
                ~MEMBERS[0], MEMBERS[0], np.zeros(20), rng=np.random.default_rng(0)
            ),
            "examples of the subset are outside the training set",
        ),
        (
            lambda: membership.wrong_protocol_sample(
                MEMBERS[0], MEMBERS[0], np.zeros(20), rng=np.random.default_rng(0)
            ),
            "class 0.0: .* examples in the subset, 0 to compare them with; allowed: no fewer",
        ),
        (
            lambda: membership.wrong_protocol_sample(
                MEMBERS[0], MEMBERS[0], np.zeros(20), compared_with="T", rng=None
            ),
            "compared_with = 'T'; allowed: training_set, outside",
        ),
        (
            lambda: membership.criticised_epsilon(
                membership.roc([1.0, 2], [0, 1]), min_false_positives=2
            ),
            "min_false_positives = 2; allowed: 0 to 1",
        ),
        (
            lambda: membership.hidden_group(n_members=5, n_exposed=6),
            "n_exposed = 6; allowed: 1 to n_members, which is 5",
        ),
        (lambda: membership.halves(3), "3 pairs of models; allowed: at least 4"),
        (
            lambda: membership.most_exposed_share(LOGITS, MEMBERS, share=0.0),
            "share = 0.0; allowed: a number in .0, 1.",
        ),
        (
            lambda: membership.most_exposed_class(LOGITS, MEMBERS, np.zeros(3)),
            "labels of shape .3,. for 20 examples; allowed: one each",
        ),
    ],
)
def test_refused_in_one_line(call, words):
    with pytest.raises(WorkbookError, match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_imports_no_torch():
    code = "import sys, lib.membership; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
