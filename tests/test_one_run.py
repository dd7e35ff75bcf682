"""From counts to p-values and bounds: hand cases, reference values, and how often a bound lies."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from lib import one_run
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


def false_bounds(scores, included, truth, delta, n_positive, n_negative):
    """How many of the audits (one a row) claim more than the truth."""
    order = np.argsort(scores, axis=1)
    in_order = np.take_along_axis(included, order, axis=1)
    n_correct = (~in_order[:, :n_negative]).sum(1)
    n_correct += in_order[:, in_order.shape[1] - n_positive :].sum(1)
    bounds = one_run.epsilon_lower_bound(
        n_canaries=included.shape[1],
        n_guesses=n_positive + n_negative,
        n_correct=n_correct,
        delta=delta,
    )
    return bounds > truth


GUESSES = [(50, 0), (0, 50), (200, 0), (200, 200), (500, 500)]


def test_randomised_response_is_never_overstated_too_often():
    rng = np.random.default_rng(1)
    included = rng.random((N_AUDITS, 1000)) < 0.5
    truthful = rng.random(included.shape) < 1 / (1 + np.exp(-1.0))
    # Equal answers are put in random order. Pure 1-DP, the worst case of the theorem.
    scores = np.where(truthful, included, ~included) + 1e-3 * rng.random(included.shape)
    for n_positive, n_negative in GUESSES:
        false = false_bounds(scores, included, 1.0, 0.0, n_positive, n_negative).sum()
        assert false <= MOST_FALSE, (n_positive, n_negative, false)


def test_gaussian_mechanism_is_never_overstated_too_often():
    rng = np.random.default_rng(2)
    included = rng.random((N_AUDITS, 1000)) < 0.5
    scores = included + rng.standard_normal(included.shape)
    for n_positive, n_negative in GUESSES:
        false = false_bounds(scores, included, 4.377, 1e-5, n_positive, n_negative).sum()
        assert false <= MOST_FALSE, (n_positive, n_negative, false)


def test_choosing_the_count_afterwards_would_lie():
    """Why counts are parameters: on pure noise the best of eleven counts lies far too often."""
    rng = np.random.default_rng(3)
    included = rng.random((N_AUDITS, 1000)) < 0.5
    scores = rng.standard_normal(included.shape)
    grid = (5, 10, 20, 50, 100, 150, 200, 250, 300, 400, 500)
    false = np.array([false_bounds(scores, included, 0.0, 0.0, k, k) for k in grid])
    assert (false.sum(1) <= MOST_FALSE).all()
    assert false.any(0).sum() > 2 * MOST_FALSE


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
        ({"method": "renyi"}, "method = 'renyi'; allowed: steinke"),
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
