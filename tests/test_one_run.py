"""From counts to p-values and bounds: hand cases, reference values, and how often a bound lies."""

import bisect
import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, signal, special, stats

from lib import one_run, study_tables, trade_off
from lib.errors import WorkbookError

ORACLE = json.loads((Path(__file__).parent / "oracles" / "one_run.json").read_text())
# Of 2,000 honest 95 % bounds at most this many exceed the truth: the 99.9 % quantile of
# Binomial(2000, 0.05), so each coverage test fails by chance once in a thousand new seeds.
MOST_FALSE = 131
N_AUDITS = 2000


@pytest.mark.parametrize(
    ("counts", "delta", "bound"),
    [
        ((100, 100, 75), 0.0, 0.7022),
        ((100, 100, 75), 1e-4, 0.6995),
        ((1000, 100, 75), 1e-4, 0.6730),
        ((100_000, 1510, 1438), 1e-5, 2.6647),
        ((100_000, 1510, 1439), 1e-5, 2.6759),
        ((10_000, 10_000, 9820), 0.0, 3.8744),
        ((100, 100, 100), 0.0, 3.4930),
        ((1000, 100, 100), 1e-5, 3.4654),
        ((10_000, 100, 100), 1e-5, 3.2023),
        ((100_000, 100, 100), 1e-5, 0.8090),
        ((100, 0, 0), 1e-5, 0.0),
        ((100, 100, 0), 0.0, 0.0),
        ((1000, 1000, 526), 0.0, 0.0),
        ((1000, 1000, 527), 0.0, 0.0020),
    ],
)
def test_bound_of_known_cases(counts, delta, bound):
    m, r, v = counts
    ours = one_run.epsilon_lower_bound(n_canaries=m, n_guesses=r, n_correct=v, delta=delta)
    assert ours == pytest.approx(bound, abs=6e-5)


def test_p_value_of_the_papers_example():
    p = one_run.p_value(n_canaries=100, n_guesses=100, n_correct=75, epsilon=np.log(3), delta=0)
    assert p == pytest.approx(0.5535, abs=5e-5)


GAUSSIAN_ORACLE = [case for case in ORACLE if case["epsilon_fdp_gaussian"] is not None]


@pytest.mark.parametrize(
    "case", GAUSSIAN_ORACLE, ids=lambda case: f"{case['n_guesses']}/{case['delta']}"
)
def test_gaussian_curves_agree_with_an_independent_implementation(case):
    bound = one_run.epsilon_lower_bound(
        **{name: case[name] for name in ("n_canaries", "n_guesses", "n_correct", "delta")},
        significance=case["significance"],
        method="fdp",
        family=trade_off.Gaussian(),
    )
    assert bound == pytest.approx(case["epsilon_fdp_gaussian"], abs=1e-4)


@pytest.mark.parametrize("case", ORACLE, ids=lambda case: f"{case['n_guesses']}/{case['delta']}")
def test_agrees_with_an_independent_implementation(case):
    counts = {name: case[name] for name in ("n_canaries", "n_guesses", "n_correct", "delta")}
    bound = one_run.epsilon_lower_bound(**counts, significance=case["significance"])
    assert bound == pytest.approx(case["epsilon_steinke"], abs=1e-4)
    p = one_run.p_value(**counts, epsilon=1.0)
    assert p == pytest.approx(case["p_value_at_epsilon_1"], rel=1e-4, abs=1e-12)


def appendix_d(m, r, v, epsilon, delta):
    """The paper's loop, term by term."""
    q = 1 / (1 + np.exp(-epsilon))
    beta = stats.binom.sf(v - 1, r, q)
    alpha = total = 0.0
    for i in range(1, v + 1):
        total += stats.binom.pmf(v - i, r, q)
        alpha = max(alpha, total / i)
    return min(1.0, beta + 2 * m * delta * alpha)


def test_largest_mean_mass_is_the_papers_loop():
    rng = np.random.default_rng(0)
    for _ in range(200):
        r = int(rng.integers(1, 120))
        v = int(rng.integers(0, r + 1))
        epsilon, delta = float(rng.uniform(0, 5)), float(rng.choice([0, 1e-6, 1e-3]))
        ours = one_run.p_value(
            n_canaries=500, n_guesses=r, n_correct=v, epsilon=epsilon, delta=delta
        )
        assert ours == pytest.approx(appendix_d(500, r, v, epsilon, delta), rel=1e-9, abs=1e-15)


@pytest.mark.parametrize(
    ("counts", "delta", "p_at_zero", "bound"),
    [
        ((12_000, 11_075, 10_543), 0.02, 0.0929, 0.0),
        ((20_000, 20_000, 18_000), 0.02, 0.0973, 0.0),
        ((20_000, 20_000, 19_000), 0.01, 0.0434, 0.2445),
        ((23_735, 19_127, 16_549), 1.4e-4, 9.2e-4, None),
    ],
)
def test_far_tails_do_not_lose_the_term_in_delta(counts, delta, p_at_zero, bound):
    m, r, v = counts
    given = {"n_canaries": m, "n_guesses": r, "n_correct": v, "delta": delta}
    assert one_run.p_value(**given, epsilon=0.0) == pytest.approx(p_at_zero, rel=0.01)
    assert one_run.p_value(**given, epsilon=0.0) == pytest.approx(appendix_d(m, r, v, 0.0, delta))
    if bound is not None:
        assert one_run.epsilon_lower_bound(**given) == pytest.approx(bound, abs=1e-3)


def slow_p_value(m, r, v, epsilon, delta, counts_chosen):
    """Theorem 5.2 by sums of masses, with no search for the largest mean."""
    q = 1 / (1 + np.exp(-epsilon))
    tail = stats.binom.sf(v - 1, r, q)
    if counts_chosen == "from_scores":
        return tail + m * delta
    means = np.cumsum(stats.binom.pmf(np.arange(v - 1, -1, -1), r, q)) / np.arange(1, v + 1)
    return tail + 2 * m * delta * means.max(initial=0.0)


def slow_bound(*counts, delta, significance, counts_chosen):
    """Bisection on it."""
    low, high = 0.0, 16.0
    if slow_p_value(*counts, low, delta, counts_chosen) >= significance:
        return 0.0
    while high - low > 1e-11:
        middle = (low + high) / 2
        refuted = slow_p_value(*counts, middle, delta, counts_chosen) < significance
        low, high = (middle, high) if refuted else (low, middle)
    return low


@pytest.mark.parametrize("counts_chosen", one_run.COUNTS_CHOSEN)
@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-4, 1e-3])
def test_bounds_are_those_of_plain_sums_and_never_above(counts_chosen, delta):
    rng = np.random.default_rng(23)
    shared = {"delta": delta, "counts_chosen": counts_chosen}
    for significance in (0.5, 0.05, 0.05 / 300):
        r = rng.integers(0, 300, 12)
        v = np.rint(r * rng.uniform(0.5, 1, 12)).astype(int)
        v[:2] = r[:2]
        counts = {"n_canaries": 300, "significance": significance} | shared
        together = one_run.epsilon_lower_bound(**counts, n_guesses=r, n_correct=v)
        for i in range(12):
            one = {"n_guesses": int(r[i]), "n_correct": int(v[i])}
            alone = one_run.epsilon_lower_bound(**counts, **one)
            slow = slow_bound(300, *one.values(), significance=significance, **shared)
            assert (alone, together[i]) == pytest.approx((slow, slow), abs=1e-9)
            if alone > 0:
                for bound in (alone, together[i]):
                    p = slow_p_value(300, *one.values(), bound, delta, counts_chosen)
                    assert p < significance


def test_bound_where_the_inverse_of_the_beta_function_fails():
    # betaincinv gives 1 − 0.0039 here, where P[X ≥ v] is 1e-500.
    counts = {"n_canaries": 706_001, "n_guesses": 706_001, "n_correct": 705_002}
    significance = 2.531317516216463e-10
    bound = one_run.epsilon_lower_bound(**counts, delta=0.0, significance=significance)
    tails = stats.binom.cdf(999, 706_001, special.expit(-np.array([bound, bound + 1e-9])))
    assert tails[0] < significance < tails[1]


def test_p_values_from_below_are_below():
    rng = np.random.default_rng(24)
    m, r = 2000, rng.integers(1, 2000, 5000)
    v = rng.binomial(r - 1, rng.uniform(0.2, 1, r.size)) + 1
    epsilon = rng.uniform(0, 5, r.size)
    for delta in (0.0, 1e-6, 1e-4, 1e-2):
        # betainc may give 0 for what is below 1e-200
        p = one_run._p_value(m, r, v, epsilon, delta) + 1e-200
        assert (one_run._p_value_below(m, r, v, epsilon, delta) <= p * (1 + 1e-9)).all()
        assert (one_run._p_value_far_below(m, r, v, epsilon, delta) <= p * (1 + 1e-9)).all()


def test_arrays_give_what_scalars_give():
    r = np.array([10, 100, 400])
    v = np.array([[9, 60, 300], [10, 100, 399]])
    bounds = one_run.epsilon_lower_bound(n_canaries=1000, n_guesses=r, n_correct=v, delta=1e-5)
    for i, j in np.ndindex(v.shape):
        alone = one_run.epsilon_lower_bound(
            n_canaries=1000, n_guesses=int(r[j]), n_correct=int(v[i, j]), delta=1e-5
        )
        assert bounds[i, j] == pytest.approx(alone, abs=1e-9)


def test_bound_is_refuted_and_a_hair_more_is_not():
    for v in (75, 90, 100):
        counts = {"n_canaries": 300, "n_guesses": 100, "n_correct": v, "delta": 1e-5}
        bound = one_run.epsilon_lower_bound(**counts, significance=0.05)
        assert one_run.p_value(**counts, epsilon=bound) <= 0.05
        assert one_run.p_value(**counts, epsilon=bound + 1e-8) > 0.05


def test_guess_takes_the_extremes():
    scores = np.array([0.3, -np.inf, 2.0, np.inf, -1.0])
    guesses = one_run.guess(scores, n_positive=2, n_negative=1, rng=np.random.default_rng(0))
    assert guesses.tolist() == [0, -1, 1, 1, 0]
    nothing = one_run.guess(scores, n_positive=0, n_negative=0, rng=np.random.default_rng(0))
    assert not nothing.any()


def test_ties_are_guessed_in_random_order():
    chosen = np.zeros(10)
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        chosen += one_run.guess(np.zeros(10), n_positive=3, n_negative=0, rng=rng)
    # 300 ± 4.4 standard deviations each; a stable sort would always take the same three.
    assert np.abs(chosen - 300).max() < 64


def test_audit_counts_both_kinds_of_guess():
    scores = np.array([4.0, 3.0, 2.0, 1.0])
    included = np.array([True, False, True, False])
    result = one_run.audit(
        scores, included, n_positive=2, n_negative=1, delta=0.0, rng=np.random.default_rng(0)
    )
    assert (result.n_correct_positive, result.n_correct_negative) == (1, 1)
    assert (result.n_guesses, result.n_correct, result.n_included) == (3, 2, 2)


def correct_counts(scores, included, n_positive, n_negative):
    """(n,) right guesses of audits, one a row."""
    order = np.argsort(scores, axis=1)
    in_order = np.take_along_axis(included, order, axis=1)
    n_correct = (~in_order[:, :n_negative]).sum(1)
    return n_correct + in_order[:, in_order.shape[1] - n_positive :].sum(1)


def false_bounds(scores, included, truth, delta, n_positive, n_negative, significance=0.05):
    """Which of the audits (one a row) claim more than the truth."""
    bounds = one_run.epsilon_lower_bound(
        n_canaries=included.shape[1],
        n_guesses=n_positive + n_negative,
        n_correct=correct_counts(scores, included, n_positive, n_negative),
        delta=delta,
        significance=significance,
    )
    return bounds > truth


def false_curves(scores, included, family, noise_multiplier, n_positive, n_negative):
    """How many of the audits (one a row) refute the true curve, and so claim a larger ε."""
    kind = "mixed" if n_positive and n_negative else "positive" if n_positive else "negative"
    curve = family.curve(noise_multiplier, kind)
    n_guesses = n_positive + n_negative
    n_correct = correct_counts(scores, included, n_positive, n_negative)
    return (n_correct >= fewest_refuting(curve, included.shape[1], n_guesses)).sum()


def fewest_refuting(curve, n_canaries, n_guesses):
    """Right guesses from which on a curve is refuted at 0.05."""
    return bisect.bisect_left(
        range(n_guesses + 1),
        True,
        key=lambda v: one_run._refuted_by_curve(curve, n_canaries, n_guesses, v, 0.05),
    )


GUESSES = [(50, 0), (0, 50), (200, 0), (200, 200), (500, 500)]
GRID = [(k, k) for k in (5, 10, 20, 50, 100, 150, 200, 250, 300, 400, 500)]


def coins(rng, n_canaries=1000, probability=0.5):
    return rng.random((N_AUDITS, n_canaries)) < probability


def randomised_response(rng, included, epsilon=1.0):
    """ε-DP answers, equal ones in random order: the worst case of the theorem."""
    truthful = rng.random(included.shape) < 1 / (1 + np.exp(-epsilon))
    return np.where(truthful, included, ~included) + 1e-3 * rng.random(included.shape)


@pytest.fixture(scope="module")
def subsampled():
    """Evidence of T = 50 Poisson-sampled Gaussian steps, q = 0.1, each canary alone."""
    rng = np.random.default_rng(20)
    sampling_rate, steps, noise_multiplier = 0.1, 50, 0.9
    included = coins(rng)
    scores = np.zeros(included.shape, dtype=np.float32)
    for _ in range(steps):
        released = rng.standard_normal(included.shape, dtype=np.float32) * noise_multiplier
        released += included & (rng.random(included.shape, dtype=np.float32) < sampling_rate)
        likelihood_ratio = np.exp((released - 0.5) / noise_multiplier**2)
        scores += np.log1p(sampling_rate * (likelihood_ratio - 1))
    family = trade_off.SubsampledGaussian(sampling_rate, steps)
    return scores, included, family, noise_multiplier


def test_randomised_response_is_never_overstated_too_often():
    rng = np.random.default_rng(1)
    included = coins(rng)
    scores = randomised_response(rng, included)
    false = [false_bounds(scores, included, 1.0, 0.0, *pair).sum() for pair in GUESSES]
    assert max(false) <= MOST_FALSE, false
    # The bound is not merely timid: where all guesses are of this worst kind it lies nearly as
    # often as it may.
    assert false[GUESSES.index((200, 200))] > 60, false


def test_laplace_mechanism_is_never_overstated_too_often():
    rng = np.random.default_rng(10)
    included = coins(rng)
    scores = included + rng.laplace(size=included.shape)
    for n_positive, n_negative in GUESSES:
        false = false_bounds(scores, included, 1.0, 0.0, n_positive, n_negative).sum()
        assert false <= MOST_FALSE, (n_positive, n_negative, false)


def test_gaussian_mechanism_is_never_overstated_too_often():
    rng = np.random.default_rng(2)
    included = coins(rng)
    scores = included + rng.standard_normal(included.shape)
    for n_positive, n_negative in GUESSES:
        false = false_bounds(scores, included, 4.377, 1e-5, n_positive, n_negative).sum()
        assert false <= MOST_FALSE, (n_positive, n_negative, false)
        false = false_curves(scores, included, trade_off.Gaussian(), 1.0, n_positive, n_negative)
        assert false <= MOST_FALSE, (n_positive, n_negative, false)


def test_little_privacy_loss_is_never_overstated_by_curves_too_often():
    rng = np.random.default_rng(11)
    included = coins(rng)
    scores = 0.2 * included + rng.standard_normal(included.shape)
    for n_positive, n_negative in GUESSES:
        false = false_curves(scores, included, trade_off.Gaussian(), 5.0, n_positive, n_negative)
        assert false <= MOST_FALSE, (n_positive, n_negative, false)


def test_subsampled_gaussian_is_never_overstated_too_often(subsampled):
    scores, included, family, noise_multiplier = subsampled
    epsilon = family.epsilon(noise_multiplier, 1e-5)
    for n_positive, n_negative in GUESSES:
        false = false_bounds(scores, included, epsilon, 1e-5, n_positive, n_negative).sum()
        assert false <= MOST_FALSE, (n_positive, n_negative, false)
        false = false_curves(scores, included, family, noise_multiplier, n_positive, n_negative)
        assert false <= MOST_FALSE, (n_positive, n_negative, false)


def test_its_own_family_says_more_than_one_epsilon(subsampled):
    scores, included, family, noise_multiplier = subsampled
    truth = family.epsilon(noise_multiplier, 1e-5)
    rng = np.random.default_rng(12)
    arguments = {"n_positive": 100, "n_negative": 0, "delta": 1e-5, "rng": rng}
    steinke = one_run.audit(scores[0], included[0], **arguments)
    fdp = one_run.audit(scores[0], included[0], **arguments, method="fdp", family=family)
    assert steinke.epsilon_lower_bound < fdp.epsilon_lower_bound < truth
    assert (fdp.method, fdp.family) == ("fdp", "subsampled_gaussian")


def test_a_gaussian_curve_is_no_bound_for_other_mechanisms():
    """Randomised response is 1-DP, and yet every Gaussian of ε ≤ 1 is refuted in most runs."""
    rng = np.random.default_rng(13)
    included = coins(rng)
    scores = randomised_response(rng, included)
    gaussian = trade_off.Gaussian()
    noise_multiplier = 3.7304  # ε = 1 at δ = 1e-5
    assert gaussian.epsilon(noise_multiplier, 1e-5) == pytest.approx(1, abs=1e-4)
    refuted = false_curves(scores, included, gaussian, noise_multiplier, 100, 100)
    assert refuted > 0.6 * N_AUDITS
    assert false_bounds(scores, included, 1.0, 1e-5, 100, 100).sum() <= MOST_FALSE


def test_p_values_of_curves_rise_with_privacy_loss_and_fall_with_success():
    counts = {"n_canaries": 1000, "n_guesses": 100}
    gaussian = trade_off.Gaussian()
    by_loss = [
        one_run.p_value_fdp(**counts, n_correct=75, curve=gaussian.curve(noise_multiplier))
        for noise_multiplier in (10.0, 3.0, 2.0, 1.0, 0.5)
    ]
    assert 0 < by_loss[0] < 1e-3
    assert (np.diff(by_loss) >= 0).all()
    assert by_loss[-1] > 0.5
    curve = gaussian.curve(2.0)
    by_success = [one_run.p_value_fdp(**counts, n_correct=v, curve=curve) for v in range(101)]
    assert (np.diff(by_success) <= 0).all()
    assert by_success[0] == 1.0
    v = 82
    p = one_run.p_value_fdp(**counts, n_correct=v, curve=curve)
    assert one_run._refuted_by_curve(curve, 1000, 100, v, p)
    assert not one_run._refuted_by_curve(curve, 1000, 100, v, p * (1 - 1e-6))


def test_one_guess_of_one_canary_by_hand():
    # P[right] = p and P[wrong] = Φ(Φ⁻¹(p) − 1) add up to 1 where Φ⁻¹(p) = 1/2.
    curve = trade_off.Gaussian().curve(1.0)
    p = one_run.p_value_fdp(n_canaries=1, n_guesses=1, n_correct=1, curve=curve)
    assert p == pytest.approx(stats.norm.cdf(0.5), rel=1e-8)
    # "in" or nothing to say: the same test of one coin, with both chances halved.
    curve = trade_off.Gaussian().curve(1.0, "positive")
    p = one_run.p_value_fdp(n_canaries=1, n_guesses=1, n_correct=1, curve=curve)
    assert p == pytest.approx(0.5, rel=1e-8)


def test_curve_bound_is_refuted_and_a_hair_more_is_not():
    gaussian, counts = trade_off.Gaussian(), {"n_canaries": 1000, "n_guesses": 100, "n_correct": 75}
    bound = one_run.epsilon_lower_bound(**counts, delta=1e-4, method="fdp", family=gaussian)
    noise = optimize.brentq(lambda sigma: gaussian.epsilon(sigma, 1e-4) - bound, 0.5, 50)
    p = [
        one_run.p_value_fdp(**counts, curve=gaussian.curve(noise * factor))
        for factor in (1 + 1e-6, 1 - 1e-6)
    ]
    assert p[0] < 0.05 < p[1]


def test_biased_coins_by_hand():
    # One "in" that was right, one "out" that was wrong: q₊ = 1/4·e/(1/4·e + 3/4), q₋ = 3e/(3e + 1).
    e = np.e
    right_in, right_out = e / (e + 3), 3 * e / (3 * e + 1)
    p = one_run.p_value_biased(
        n_canaries=10,
        n_positive=1,
        n_negative=1,
        n_correct=1,
        inclusion_probability=0.25,
        epsilon=1.0,
        delta=1e-3,
    )
    assert p == pytest.approx(1 - (1 - right_in) * (1 - right_out) + 0.01, rel=1e-12)


def test_sum_of_two_binomials_is_their_convolution():
    rng = np.random.default_rng(14)
    for _ in range(50):
        n, other_n = (int(x) for x in rng.integers(0, 40, 2))
        p, other_p = rng.random(2)
        mass = np.convolve(
            stats.binom.pmf(np.arange(n + 1), n, p),
            stats.binom.pmf(np.arange(other_n + 1), other_n, other_p),
        )
        k = np.arange(n + other_n + 2)
        tails = one_run._sum_at_least(k, n, p, other_n, other_p)
        assert tails == pytest.approx([mass[i:].sum() for i in k], abs=1e-13)


def test_fair_formula_lies_about_biased_coins():
    # Of 1,000 canaries 900 are out, as p = 0.1 has it: "out" of everyone is right and says nothing.
    counts = {"n_canaries": 1000, "n_correct": 900, "delta": 0.0}
    fair = one_run.epsilon_lower_bound(**counts, n_guesses=1000)
    assert fair == pytest.approx(2.021, abs=1e-3)
    signed = {**counts, "n_positive": 0, "n_negative": 1000}
    assert one_run.epsilon_lower_bound_biased(**signed, inclusion_probability=0.1) == 0


def test_fair_coins_are_a_case_of_biased_ones():
    n_positive, n_negative = np.array([[0], [30], [200]]), np.array([0, 10, 100])
    r = n_positive + n_negative
    v = r - r // 6
    shared = {"n_canaries": 1000, "n_correct": v, "delta": 1e-6}
    biased = one_run.epsilon_lower_bound_biased(
        **shared, n_positive=n_positive, n_negative=n_negative, inclusion_probability=0.5
    )
    fair = one_run.epsilon_lower_bound(**shared, n_guesses=r, counts_chosen="from_scores")
    assert biased == pytest.approx(fair, abs=1e-9)
    assert biased[2, 2] > 1
    p = one_run.p_value(**shared, n_guesses=r, epsilon=1.0, counts_chosen="from_scores")
    tail = stats.binom.sf(v - 1, r, 1 / (1 + np.exp(-1)))
    assert p == pytest.approx(np.minimum(tail + 1e-3, 1), rel=1e-9)


@pytest.mark.parametrize("probability", [0.1, 0.7])
def test_biased_randomised_response_is_never_overstated_too_often(probability):
    rng = np.random.default_rng(15)
    included = coins(rng, probability=probability)
    scores = randomised_response(rng, included)
    for n_positive, n_negative in [(80, 0), (0, 250), (100, 200)]:
        right, times = np.unique(
            correct_counts(scores, included, n_positive, n_negative), return_counts=True
        )
        p = one_run.p_value_biased(
            n_canaries=1000,
            n_positive=n_positive,
            n_negative=n_negative,
            n_correct=right,
            inclusion_probability=probability,
            epsilon=1.0,
            delta=0.0,
        )
        false = times[p < 0.05].sum()
        assert 20 < false <= MOST_FALSE, (n_positive, n_negative, false)


def test_audit_of_biased_coins():
    rng = np.random.default_rng(16)
    included = rng.random(1000) < 0.1
    arguments = {"n_positive": 0, "n_negative": 1000, "delta": 0.0, "rng": rng}
    nothing = one_run.audit(rng.random(1000), included, **arguments, inclusion_probability=0.1)
    assert nothing.epsilon_lower_bound == 0
    assert nothing.inclusion_probability == 0.1
    arguments["n_negative"] = 500
    everything = one_run.audit(included * 1.0, included, **arguments, inclusion_probability=0.1)
    assert everything.epsilon_lower_bound == pytest.approx(
        special.logit(0.05 ** (1 / 500)) + special.logit(0.1), abs=1e-6
    )


def test_weighted_guesses_by_hand():
    # Right: 1 and 1/2; wrong: 3/4. At most 1.5 is reached by {1, 1/2}, {1, 3/4}, {all}, not by
    # {3/4, 1/2}.
    guesses = np.array([1.0, -0.75, -0.5])
    included = np.array([True, True, False])
    q = 1 / (1 + np.exp(-0.3))
    p = one_run.p_value_weighted(guesses, included, epsilon=0.3, delta=1e-3)
    assert p == pytest.approx(2 * q**2 * (1 - q) + q**3 + 3e-3, abs=1e-11)


def test_whole_guesses_are_a_case_of_weighted_ones():
    rng = np.random.default_rng(17)
    guesses = rng.choice([-1.0, 0.0, 1.0], 3000)
    included = (guesses > 0) == (rng.random(3000) < 0.7)
    r = int(np.count_nonzero(guesses))
    v = int(np.count_nonzero(((guesses > 0) == included)[guesses != 0]))
    weighted = one_run.epsilon_lower_bound_weighted(guesses, included, delta=1e-6)
    whole = one_run.epsilon_lower_bound(
        n_canaries=3000, n_guesses=r, n_correct=v, delta=1e-6, counts_chosen="from_scores"
    )
    assert weighted == pytest.approx(whole, abs=1e-7)
    assert whole > 0.5


def test_weighted_tail_is_the_convolution_however_long():
    rng = np.random.default_rng(18)
    counts = rng.integers(0, 30, 64)
    mass = np.ones(1)
    for level, n in enumerate(counts, start=1):
        spaced = np.zeros(level * n + 1)
        spaced[::level] = stats.binom.pmf(np.arange(n + 1), n, 0.6)
        mass = signal.convolve(mass, spaced, method="direct")
    tails = np.cumsum(mass[::-1])[::-1]
    for k in (0, 1, 15_000, 18_000, 19_000, 20_000, mass.size - 1):
        ours = one_run._weighted_at_least(k, counts, 0.6)
        assert ours == pytest.approx(tails[k], abs=1e-11), k
        assert ours >= tails[k] * (1 - 1e-12)


def test_weighted_bound_is_refuted_and_a_hair_more_is_not():
    rng = np.random.default_rng(30)
    guesses = rng.choice([-1.0, -0.5, 0.3, 0.8], 200)
    for right in (0.7, 0.9, 0.99):
        included = (guesses > 0) == (rng.random(200) < right)
        bound = one_run.epsilon_lower_bound_weighted(guesses, included, delta=1e-5)
        p = [
            one_run.p_value_weighted(guesses, included, epsilon=epsilon, delta=1e-5)
            for epsilon in (bound, bound + 1e-9)
        ]
        assert p[0] < 0.05 < p[1]


def test_binomial_is_not_valid_for_weighted_guesses():
    # 38 guesses of confidence 62/64, 24 right: pure noise does as well in 7.2 % of audits.
    guesses, included = np.full(38, 62 / 64), np.arange(38) < 24
    p = one_run.p_value_weighted(guesses, included, epsilon=0.0, delta=0.0)
    assert p == pytest.approx(stats.binom.sf(23, 38, 0.5), abs=1e-11)
    assert p > 0.07
    assert stats.binom.sf(np.ceil(24 * 62 / 64) - 1, round(38 * 62 / 64), 0.5) < 0.05


def test_weighted_and_rounded_guesses_are_never_overstated_too_often():
    rng = np.random.default_rng(19)
    included = coins(rng, n_canaries=200)
    sign = np.where(randomised_response(rng, included) > 0.5, 1, -1)
    guesses = sign * rng.choice([0.125, 0.5, 1.0], included.shape)
    weighted = sum(
        one_run.p_value_weighted(*pair, epsilon=1.0, delta=0.0) < 0.05
        for pair in zip(guesses, included, strict=True)
    )
    assert 60 < weighted <= MOST_FALSE, weighted
    rounded = one_run.round_guesses(guesses.ravel(), rng=rng).reshape(guesses.shape)
    p = one_run.p_value(
        n_canaries=200,
        n_guesses=np.count_nonzero(rounded, axis=1),
        n_correct=np.count_nonzero(rounded == np.where(included, 1, -1), axis=1),
        epsilon=1.0,
        delta=0.0,
        counts_chosen="from_scores",
    )
    assert 30 < (p < 0.05).sum() <= MOST_FALSE, (p < 0.05).sum()
    assert rounded.mean() == pytest.approx(guesses.mean(), abs=0.01)


def test_choosing_the_count_afterwards_would_lie():
    """Why counts are parameters: on pure noise the best of eleven counts lies far too often."""
    rng = np.random.default_rng(3)
    included = coins(rng)
    scores = rng.standard_normal(included.shape)
    false = np.array([false_bounds(scores, included, 0.0, 0.0, *pair) for pair in GRID])
    assert (false.sum(1) <= MOST_FALSE).all()
    assert false.any(0).sum() > 2 * MOST_FALSE


def test_best_of_a_grid_with_its_correction_is_false_seldom_enough():
    rng = np.random.default_rng(4)
    included = coins(rng)
    scores = included + rng.laplace(size=included.shape)  # 1-DP
    uncorrected = np.array([false_bounds(scores, included, 1.0, 0.0, *pair) for pair in GRID])
    assert uncorrected.any(0).sum() > 2 * MOST_FALSE
    corrected = np.array(
        [
            false_bounds(scores, included, 1.0, 0.0, *pair, significance=0.05 / len(GRID))
            for pair in GRID
        ]
    ).any(0)
    assert 10 < corrected.sum() <= MOST_FALSE
    for row in np.flatnonzero(corrected)[:5].tolist() + np.flatnonzero(~corrected)[:5].tolist():
        best = one_run.best_over_counts(scores[row], included[row], counts=GRID, delta=0.0, rng=rng)
        assert (best.epsilon_lower_bound > 1.0) == corrected[row]
        assert best.n_tests == len(GRID)


def test_choice_on_one_half_and_bound_on_the_other_is_false_seldom_enough():
    rng = np.random.default_rng(5)
    included = coins(rng)
    scores = included + rng.laplace(size=included.shape)
    grid = [pair for pair in GRID if sum(pair) <= 500]
    audits = [
        one_run.split_audit(*pair, counts=grid, delta=0.0, rng=rng)
        for pair in zip(scores, included, strict=True)
    ]
    bounds = np.array([audit.epsilon_lower_bound for audit in audits])
    assert (bounds > 1.0).sum() <= MOST_FALSE
    assert bounds.mean() > 0.2
    assert {audit.n_canaries for audit in audits} == {500}
    assert {audit.counts_chosen for audit in audits} == {"from_scores"}


def test_counts_chosen_from_the_scores_alone_need_no_correction():
    rng = np.random.default_rng(6)
    included = coins(rng)
    scores = included + rng.laplace(size=included.shape)
    # Where the likelihood ratio is as extreme as it gets: as many as the scores say, all of them
    # right with the highest probability that 1-DP allows.
    above, below = scores > 1, scores < 0
    n_positive, n_negative = above.sum(1), below.sum(1)
    n_correct = (above & included).sum(1) + (below & ~included).sum(1)
    bounds = one_run.epsilon_lower_bound(
        n_canaries=1000,
        n_guesses=n_positive + n_negative,
        n_correct=n_correct,
        delta=0.0,
        counts_chosen="from_scores",
    )
    assert 60 < (bounds > 1.0).sum() <= MOST_FALSE, (bounds > 1.0).sum()
    first = one_run.audit(
        scores[0],
        included[0],
        n_positive=int(n_positive[0]),
        n_negative=int(n_negative[0]),
        delta=0.0,
        counts_chosen="from_scores",
        rng=rng,
    )
    assert first.n_correct == n_correct[0]
    assert first.epsilon_lower_bound == pytest.approx(bounds[0], abs=1e-9)


def test_counts_chosen_from_the_scores_pay_for_delta():
    counts = {"n_canaries": 1000, "n_guesses": 100, "n_correct": 90, "delta": 3e-5}
    beforehand = one_run.epsilon_lower_bound(**counts)
    from_scores = one_run.epsilon_lower_bound(**counts, counts_chosen="from_scores")
    # P[Binomial(100, q) ≥ 90] = 0.05 − 1000·3e-5 is Clopper-Pearson's limit at 0.02.
    expected = special.logit(special.betaincinv(90, 11, 0.02))
    assert from_scores == pytest.approx(expected, abs=1e-8)
    assert 0 < from_scores < beforehand


def test_best_of_every_threshold_is_the_largest_of_their_bounds():
    rng = np.random.default_rng(7)
    m = 500
    included = rng.random(m) < 0.5
    for separation, delta in [(3.0, 1e-9), (3.0, 1e-6), (1.0, 0.0), (0.0, 1e-6), (3.0, 1e-2)]:
        scores = separation * included + rng.standard_normal(m)
        best = one_run.best_over_counts(scores, included, delta=delta, rng=rng)
        right = np.cumsum(included[np.argsort(-scores)])
        bounds = one_run.epsilon_lower_bound(
            n_canaries=m,
            n_guesses=np.arange(1, m + 1),
            n_correct=right,
            delta=delta,
            significance=0.05 / m,
        )
        assert best.epsilon_lower_bound == pytest.approx(bounds.max(), abs=1e-9)
        assert (best.n_tests, best.n_negative) == (m, 0)
        if bounds.max() > 0:
            assert best.n_positive == bounds.argmax() + 1
            assert best.n_correct == right[bounds.argmax()]


def random_counts(rng):
    """Counts as ranked canaries give them, or any, in any order and some twice."""
    m = int(rng.choice([1, 10, 50, 200]))
    if rng.random() < 0.5:
        return m, np.arange(1, m + 1), np.cumsum(rng.random(m) < rng.uniform(0.5, 1))
    r = rng.integers(0, m + 1, 15)
    v = np.rint(r * rng.uniform(0.6, 1, 15)).astype(int)
    again = rng.integers(0, 15, 25)
    return m, r[again], v[again]


def first_of_the_largest(m, r, v, delta, significance):
    """Every bound computed; the first of equal counts."""
    bounds = one_run.epsilon_lower_bound(
        n_canaries=m, n_guesses=r, n_correct=v, delta=delta, significance=significance
    )
    best = int(bounds.argmax())
    return int(((r == r[best]) & (v == v[best])).argmax()) if bounds[best] > 0 else 0


def check_largest(seed):
    rng = np.random.default_rng(seed)
    for _ in range(400):
        m, r, v = random_counts(rng)
        delta = float(rng.choice([0.0, 1e-6, 1e-4, 1e-3, 5e-3]))
        significance = float(rng.choice([0.5, 0.05, 0.05 / m]))
        best = one_run.index_of_largest_bound(
            n_canaries=m, n_guesses=r, n_correct=v, delta=delta, significance=significance
        )
        assert best == first_of_the_largest(m, r, v, delta, significance)


def test_largest_bound_is_the_first_of_all_computed():
    check_largest(25)


@pytest.mark.parametrize("vertices", [[0], [0, -1]])
def test_largest_bound_does_not_rest_on_the_hull(monkeypatch, vertices):
    """A vertex need not be the largest: with a hull that leaves it out it is found all the same."""
    monkeypatch.setattr(one_run, "_upper_hull", lambda x, y: np.unique(np.arange(x.size)[vertices]))
    check_largest(26)


def test_upper_hull_is_that_of_every_line():
    rng = np.random.default_rng(27)
    for _ in range(100):
        x = np.unique(rng.integers(0, 30, 12))
        y = rng.integers(0, 10, x.size)
        above = [
            all(
                (y[j] - y[i]) * (x[k] - x[i]) > (y[k] - y[i]) * (x[j] - x[i])
                for i in range(j)
                for k in range(j + 1, x.size)
            )
            for j in range(x.size)
        ]
        assert one_run._upper_hull(x, y).tolist() == np.flatnonzero(above).tolist()


def test_order_is_that_of_scores_then_of_the_tie_breaker():
    for scores in (np.random.default_rng(28).standard_normal(50), np.array([1.0, np.inf] * 9)):
        order = one_run._ascending(scores, np.random.default_rng(29))
        tie_breaker = np.random.default_rng(29).random(scores.size)
        assert order.tolist() == np.lexsort((tie_breaker, scores)).tolist()


def test_every_threshold_of_many_canaries_in_well_under_a_second():
    rng = np.random.default_rng(8)
    included = rng.random(10_000) < 0.5
    scores = 2.7 * included + rng.standard_normal(10_000)
    for delta in (1e-5, 1e-9):
        start = time.process_time()
        one_run.best_over_counts(scores, included, delta=delta, rng=rng)
        assert time.process_time() - start < 1


def test_best_of_a_grid_of_curves():
    rng = np.random.default_rng(9)
    included = rng.random(1000) < 0.5
    scores = 2 * included + rng.standard_normal(1000)
    gaussian = {"delta": 1e-5, "method": "fdp", "family": trade_off.Gaussian()}
    best = one_run.best_over_counts(
        scores, included, counts=[(50, 0), (50, 0), (50, 50)], rng=rng, **gaussian
    )
    assert (best.n_tests, best.family) == (2, "gaussian")
    alone = [
        one_run.audit(
            scores,
            included,
            n_positive=50,
            n_negative=n_negative,
            significance=0.025,
            rng=rng,
            **gaussian,
        ).epsilon_lower_bound
        for n_negative in (0, 50)
    ]
    assert best.epsilon_lower_bound == max(alone)


def test_pairs_by_hand():
    scores = np.array([[3.0, 0.0], [0.0, 2.0], [1.0, 0.0], [5.0, 5.1]])
    included = np.array([[True, False], [False, True], [False, True], [True, False]])
    result = one_run.audit_pairs(
        scores, included, n_guesses=3, delta=0.0, rng=np.random.default_rng(0)
    )
    assert (result.n_canaries, result.n_included, result.n_guesses) == (4, 4, 3)
    assert (result.n_positive, result.n_correct_positive) == (2, 1)
    assert (result.n_negative, result.n_correct_negative) == (1, 1)
    assert result.neighboring == "replace_one"


def correct_pairs(difference, first, n_guesses):
    """(n,) right guesses about pairs, one audit a row, from the differences of their scores."""
    guessed = np.argsort(-np.abs(difference), axis=1)[:, :n_guesses]
    right = (difference > 0) == first
    return np.take_along_axis(right, guessed, axis=1).sum(1)


def test_fixed_size_is_never_overstated_too_often():
    rng = np.random.default_rng(21)
    first = coins(rng, n_canaries=300)
    # 1-DP in what it replaces: randomised response about which of the pair is in.
    difference = randomised_response(rng, first) - 0.5
    bounds = one_run.epsilon_lower_bound(
        n_canaries=300, n_guesses=300, n_correct=correct_pairs(difference, first, 300), delta=0.0
    )
    assert 60 < (bounds > 1.0).sum() <= MOST_FALSE
    # +C or −C along a coordinate, noise of 4·C: replacing one moves the release by C/2·σ.
    gaussian, noise_multiplier = trade_off.Gaussian(), 4.0
    difference = 2 * (np.where(first, 1, -1) + noise_multiplier * rng.standard_normal(first.shape))
    n_correct = correct_pairs(difference, first, 100)
    bounds = one_run.epsilon_lower_bound(
        n_canaries=300, n_guesses=100, n_correct=n_correct, delta=1e-5
    )
    assert (bounds > gaussian.epsilon(noise_multiplier / 2, 1e-5)).sum() <= MOST_FALSE
    refuting = fewest_refuting(gaussian.curve(noise_multiplier / 2), 300, 100)
    assert (n_correct >= refuting).sum() <= MOST_FALSE
    # A claim about adding or removing one, with half the sensitivity, would be refuted too often.
    refuting = fewest_refuting(gaussian.curve(noise_multiplier), 300, 100)
    assert (n_correct >= refuting).sum() > 2 * MOST_FALSE

    result = one_run.audit_pairs(
        np.stack([difference[0], np.zeros(300)], axis=1),
        np.stack([first[0], ~first[0]], axis=1),
        n_guesses=100,
        delta=1e-5,
        rng=rng,
    )
    assert result.n_correct == n_correct[0]
    assert result.epsilon_lower_bound == pytest.approx(bounds[0], abs=1e-9)


def test_ties_of_pairs_are_guessed_at_random():
    rng = np.random.default_rng(22)
    first = rng.random(1000) < 0.5
    result = one_run.audit_pairs(
        np.zeros((1000, 2)),
        np.stack([first, ~first], axis=1),
        n_guesses=1000,
        delta=0.0,
        rng=rng,
    )
    assert abs(result.n_positive - 500) < 70  # 4.4 standard deviations
    assert abs(result.n_correct - 500) < 70


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_correct": 11}, "n_correct = 11 exceeds n_guesses = 10"),
        ({"n_guesses": 101}, "n_guesses = 101 exceeds n_canaries = 100"),
        ({"n_correct": -1}, "n_correct = -1"),
        ({"n_correct": 2.5}, "n_correct = 2.5"),
        ({"delta": -1e-5}, "delta = -1e-05"),
        ({"delta": float("nan")}, "delta = nan"),
        ({"significance": 0.0}, "significance = 0.0"),
        ({"method": "renyi"}, "method = 'renyi'; allowed: steinke, fdp"),
        ({"method": "fdp"}, "family = None; allowed with method fdp"),
        ({"family": trade_off.Gaussian()}, "allowed with method steinke: None"),
        (
            {"method": "fdp", "family": trade_off.Gaussian(), "delta": 0.0},
            r"delta = 0.0; allowed: with method fdp, a number in \(0, 1\]",
        ),
        (
            {
                "method": "fdp",
                "family": trade_off.Gaussian(),
                "counts_chosen": "from_scores",
            },
            "counts_chosen = 'from_scores'; allowed with method fdp: beforehand",
        ),
        ({"counts_chosen": "by_eye"}, "counts_chosen = 'by_eye'; allowed: beforehand, from_scores"),
    ],
)
def test_refuses_by_name(change, words):
    arguments = {"n_canaries": 100, "n_guesses": 10, "n_correct": 9, "delta": 1e-5} | change
    with pytest.raises(WorkbookError, match=words) as caught:
        one_run.epsilon_lower_bound(**arguments)
    assert "\n" not in str(caught.value)


def test_guess_refuses_by_name():
    rng = np.random.default_rng(0)
    with pytest.raises(WorkbookError, match=r"NaN \(first at canary 1\)"):
        one_run.guess(np.array([0.0, np.nan]), n_positive=1, n_negative=0, rng=rng)
    with pytest.raises(WorkbookError, match="n_positive = 2 and n_negative = 1"):
        one_run.guess(np.zeros(2), n_positive=2, n_negative=1, rng=rng)
    with pytest.raises(WorkbookError, match="n_negative = -1"):
        one_run.guess(np.zeros(2), n_positive=1, n_negative=-1, rng=rng)
    with pytest.raises(WorkbookError, match="included is int64"):
        one_run.audit(np.zeros(2), np.array([0, 1]), n_positive=1, n_negative=0, delta=0.0, rng=rng)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda rng: one_run.p_value_biased(
                n_canaries=5,
                n_positive=1,
                n_negative=0,
                n_correct=1,
                inclusion_probability=0.0,
                epsilon=1.0,
                delta=0.0,
            ),
            "inclusion_probability = 0.0",
        ),
        (
            lambda rng: one_run.p_value_weighted(
                np.array([0.5, -1.5]), np.array([True, False]), epsilon=1.0, delta=0.0
            ),
            "guesses = -1.5",
        ),
        (
            lambda rng: one_run.best_over_counts(
                np.zeros(3), np.ones(3, dtype=bool), counts=[], delta=0.0, rng=rng
            ),
            "counts has shape",
        ),
        (
            lambda rng: one_run.best_over_counts(
                np.zeros(3), np.ones(3, dtype=bool), counts=[(1, 1), (2, 2)], delta=0.0, rng=rng
            ),
            "n_positive = 2 and n_negative = 2",
        ),
        (
            lambda rng: one_run.split_audit(
                np.zeros(4), np.ones(4, dtype=bool), counts=[(2, 1)], delta=0.0, rng=rng
            ),
            "n_canaries = 2",
        ),
        (
            lambda rng: one_run.audit_pairs(
                np.zeros((2, 2)), np.ones((2, 2), dtype=bool), n_guesses=1, delta=0.0, rng=rng
            ),
            "included has 2 of a pair in",
        ),
        (
            lambda rng: one_run.audit(
                np.zeros(2),
                np.ones(2, dtype=bool),
                n_positive=1,
                n_negative=0,
                delta=1e-5,
                method="fdp",
                family=trade_off.Gaussian(),
                inclusion_probability=0.1,
                rng=rng,
            ),
            "allowed with biased coins: steinke",
        ),
    ],
)
def test_the_other_audits_refuse_by_name(call, words):
    with pytest.raises(WorkbookError, match=words) as caught:
        call(np.random.default_rng(0))
    assert "\n" not in str(caught.value)


def test_bound_from_runs_told_apart_perfectly():
    """0 of 100 wrong on both sides: each error rate is at most 1 − 0.025^(1/100) = 0.0362."""
    limit = 1 - 0.025 ** (1 / 100)
    bound = one_run.epsilon_lower_bound_from_runs(
        n_first=100, n_wrong_first=0, n_second=100, n_wrong_second=0, delta=1e-5
    )
    assert bound == pytest.approx(math.log((1 - limit - 1e-5) / limit), abs=1e-9)
    assert bound == pytest.approx(3.28, abs=0.005)


@pytest.mark.parametrize(("first", "second"), [(0, 50), (50, 0)])
def test_bound_from_runs_takes_the_better_order(first, second):
    bound = one_run.epsilon_lower_bound_from_runs(
        n_first=100, n_wrong_first=first, n_second=100, n_wrong_second=second, delta=0.01
    )
    few, many = 1 - 0.025 ** (1 / 100), stats.binomtest(50, 100).proportion_ci(0.95).high
    assert bound == pytest.approx(math.log((1 - many - 0.01) / few), abs=1e-6)


def test_bound_from_runs_is_zero_where_nothing_is_told():
    for wrong in ((0, 100), (100, 0), (50, 50), (100, 100)):
        counts = {"n_wrong_first": wrong[0], "n_wrong_second": wrong[1]}
        bound = one_run.epsilon_lower_bound_from_runs(
            n_first=100, n_second=100, delta=1e-5, **counts
        )
        assert bound == 0.0


@pytest.mark.parametrize("rates", [(0.269, 0.269), (0.01, 1 - 0.01 * math.e)])
def test_bound_from_runs_is_rarely_above_the_truth(rates):
    """Mechanisms of ε = 1 exactly: of 2,000 audits at 5 %, 131 are above it by chance 0.1 %."""
    assert math.e * rates[0] + rates[1] == pytest.approx(1.0, abs=1e-3)
    wrong = np.random.default_rng(0).binomial(200, rates, (2000, 2))
    bounds = {
        pair: one_run.epsilon_lower_bound_from_runs(
            n_first=200, n_wrong_first=pair[0], n_second=200, n_wrong_second=pair[1], delta=0.0
        )
        for pair in set(map(tuple, wrong.tolist()))
    }
    n_false = sum(bounds[tuple(pair)] > 1.0 for pair in wrong.tolist())
    assert n_false <= 131


def _bound_of_scores(first, second):
    """Runs on two sets, the rule settled before: above 0 it was the second."""
    return one_run.epsilon_lower_bound_from_runs(
        n_first=first.shape[-1],
        n_wrong_first=(first > 0).sum(axis=-1),
        n_second=second.shape[-1],
        n_wrong_second=(second <= 0).sum(axis=-1),
        delta=0.0,
    )


def test_noise_shows_nothing_in_either_direction():
    """Two samples of 200 draws of N(0, 1), 2,000 seeds; at least 95 % of the bounds must be 0.

    Taking the absolute value of one signed estimate gave 4.65 here (jax-privacy 2.0.0).
    """
    scores = np.random.default_rng(0).standard_normal((2, 2000, 200))
    bounds = _bound_of_scores(*scores)
    assert (bounds > 0).sum() <= 0.05 * 2000
    assert bounds.max() < 0.5


def test_swapped_sets_show_nothing_and_the_tables_say_so():
    """The rule has one direction: reversed evidence is none."""
    noise = np.random.default_rng(0).standard_normal((2, 200))
    first, second = noise[0] - 3, noise[1] + 3
    assert _bound_of_scores(first, second) > 2.5
    assert _bound_of_scores(second, first) == 0.0
    (field,) = [
        each
        for each in study_tables.two_sets_fields("first", "second")
        if each.name == "epsilon_lower_bound"
    ]
    assert "one-sided" in field.meaning


def test_bound_from_runs_refuses_by_name():
    with pytest.raises(WorkbookError, match="21 wrong guesses in 20 runs"):
        one_run.epsilon_lower_bound_from_runs(
            n_first=20, n_wrong_first=21, n_second=20, n_wrong_second=0, delta=0.0
        )


def test_one_run_imports_no_torch():
    code = "import sys; import lib.one_run, lib.trade_off; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
