"""Trade-off curves against closed forms, against the accountant, and against the mechanism."""

import numpy as np
import pytest
from scipy import special, stats

from lib import one_run, trade_off
from lib.errors import WorkbookError

RIGHT = np.concatenate([np.logspace(-7, -1, 13), np.linspace(0.15, 0.45, 4)])


def values(curve, right=RIGHT):
    return np.array([curve(float(x)) for x in right])


def test_gaussian_curve_by_hand():
    curve = trade_off.Gaussian().curve(0.5)
    # Of a test that is right where N(2, 1) exceeds 1, N(0, 1) exceeds it with Φ(−1).
    assert curve(float(stats.norm.sf(-1))) == pytest.approx(stats.norm.sf(1), rel=1e-12)
    assert curve(0.0) == 0
    assert curve(1.0) == 1
    assert curve(1.0001) == np.inf


def test_one_kind_of_guess_halves_both_chances():
    gaussian = trade_off.Gaussian()
    mixed, positive = gaussian.curve(1.0), gaussian.curve(1.0, "positive")
    assert 2 * values(positive) == pytest.approx(values(mixed, 2 * RIGHT), rel=1e-12)
    assert (values(positive) > values(mixed)).all()  # so more is refuted
    assert positive(0.5001) == np.inf


@pytest.mark.parametrize("guesses", trade_off.GUESSES)
@pytest.mark.parametrize(
    ("neighboring", "sensitivity"), [("add_remove", 1.0), ("replace_one", 2.0)]
)
def test_full_batch_is_a_gaussian(guesses, neighboring, sensitivity):
    family = trade_off.SubsampledGaussian(1.0, 25, neighboring)
    exact = trade_off.Gaussian().curve(8.0 / 5 / sensitivity, guesses)
    ours = values(family.curve(8.0, guesses))
    assert ours == pytest.approx(values(exact), rel=1e-3)
    assert (ours <= values(exact)).all()  # rounding errs towards no refutation
    assert family.curve(8.0, guesses)(1.01) > 1


def test_subsampled_step_is_the_neyman_pearson_test():
    sampling_rate, noise_multiplier = 0.2, 0.7
    family = trade_off.SubsampledGaussian(sampling_rate, 1)
    # The likelihood ratio rises in what is released, so the best tests are thresholds.
    threshold = np.linspace(-1.5, 2.5, 9)
    out_above = stats.norm.sf(threshold, 0, noise_multiplier)
    in_above = (1 - sampling_rate) * out_above + sampling_rate * stats.norm.sf(
        threshold, 1, noise_multiplier
    )
    positive = values(family.curve(noise_multiplier, "positive"), in_above / 2)
    assert positive == pytest.approx(out_above / 2, rel=2e-3)
    negative = values(family.curve(noise_multiplier, "negative"), (1 - out_above) / 2)
    assert negative == pytest.approx((1 - in_above) / 2, rel=2e-3)
    assert (positive <= out_above / 2).all()


def test_mixed_guesses_get_the_best_of_both_orders():
    family, noise_multiplier = trade_off.SubsampledGaussian(0.1, 50), 0.9
    mixed, positive, negative = (
        family.curve(noise_multiplier, guesses) for guesses in trade_off.GUESSES
    )
    # Any way to divide what is right among "in" and "out" needs at least this much wrong, and the
    # best way needs no more: the infimal convolution of the two curves.
    for right in (1e-4, 1e-2, 0.1, 0.4, 0.8):
        parts = np.linspace(max(0, right - 0.5), min(right, 0.5), 4001)
        both = [positive(float(part)) + negative(float(right - part)) for part in parts]
        assert mixed(right) == pytest.approx(min(both), rel=2e-3)
        assert mixed(right) <= min(both) * (1 + 1e-9)


def test_mixed_curve_lies_on_or_above_the_lower_envelope():
    family, noise_multiplier = trade_off.SubsampledGaussian(0.1, 50), 0.9
    divergences = [
        trade_off._divergence(noise_multiplier, 0.1, 50, adjacency)
        for adjacency in (trade_off.Adjacency.REMOVE, trade_off.Adjacency.ADD)
    ]
    larger = np.maximum(*divergences)
    envelope = values(trade_off.from_divergence(larger, larger))
    mixed = values(family.curve(noise_multiplier, "mixed"))
    assert (mixed >= envelope * (1 - 1e-9)).all()
    assert mixed[-1] > 1.01 * envelope[-1]


def test_composed_curve_is_what_simulated_runs_do():
    sampling_rate, steps, noise_multiplier = 0.1, 50, 0.9
    rng = np.random.default_rng(0)
    included = np.repeat([True, False], 100_000)
    evidence = np.zeros(included.size)
    for _ in range(steps):
        released = noise_multiplier * rng.standard_normal(included.size)
        released += included & (rng.random(included.size) < sampling_rate)
        ratio = np.exp((released - 0.5) / noise_multiplier**2)
        evidence += np.log1p(sampling_rate * (ratio - 1))
    family = trade_off.SubsampledGaussian(sampling_rate, steps)
    curve = family.curve(noise_multiplier, "positive")
    for threshold in (0.0, 1.0, 2.0):
        said_in = evidence > threshold
        right, wrong = said_in[included].mean(), said_in[~included].mean()
        scatter = np.sqrt(right / 100_000) * np.exp(-threshold) + np.sqrt(wrong / 100_000)
        assert 2 * curve(right / 2) == pytest.approx(wrong, abs=5 * scatter)
        # The other order, or fewer steps, would be seen.
        other = trade_off.SubsampledGaussian(sampling_rate, 40).curve(noise_multiplier, "positive")
        assert 2 * other(right / 2) > wrong + 5 * scatter


def test_epsilon_of_a_curve_is_where_its_tangent_lies():
    # δ(ε) = max over right of right − e^ε·wrong, for both orders at once.
    family, noise_multiplier = trade_off.SubsampledGaussian(0.25, 20), 1.5
    epsilon = family.epsilon(noise_multiplier, 1e-3)
    curve = family.curve(noise_multiplier, "positive")
    right = np.linspace(1e-6, 0.4999, 20_001)
    excess = 2 * (right - np.exp(epsilon) * values(curve, right))
    assert excess.max() == pytest.approx(1e-3, rel=1e-2)


def test_gaussian_epsilon_is_the_known_one():
    assert trade_off.Gaussian().epsilon(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)


def test_smallest_unrefuted_of_a_family_is_refuted_just_below():
    family = trade_off.SubsampledGaussian(0.2, 10)
    counts = {"n_canaries": 1000, "n_guesses": 100, "n_correct": 85}
    bound = one_run.epsilon_lower_bound(
        **counts, delta=1e-5, method="fdp", family=family, guesses="positive"
    )
    low, high = np.log(0.5), np.log(4.0)
    while high - low > 1e-3:
        middle = (low + high) / 2
        if one_run.p_value_fdp(**counts, curve=family.curve(np.exp(middle), "positive")) < 0.05:
            high = middle
        else:
            low = middle
    assert family.epsilon(np.exp(high), 1e-5) <= bound + 1e-3
    assert bound <= family.epsilon(np.exp(low), 1e-5)
    mixed = one_run.epsilon_lower_bound(**counts, delta=1e-5, method="fdp", family=family)
    assert 0 < mixed < bound


def test_full_batch_family_gives_the_gaussian_bound():
    counts = {"n_canaries": 1000, "n_guesses": 100, "n_correct": 90, "delta": 1e-5}
    gaussian = one_run.epsilon_lower_bound(**counts, method="fdp", family=trade_off.Gaussian())
    family = trade_off.SubsampledGaussian(1.0, 4)
    ours = one_run.epsilon_lower_bound(**counts, method="fdp", family=family)
    assert ours == pytest.approx(gaussian, abs=3e-3)


def test_columns_give_what_one_family_at_a_time_gives():
    counts = {"n_canaries": 1000, "n_guesses": 100, "n_correct": 90, "delta": 1e-4}
    steps = np.array([1, 2])
    together = trade_off.smallest_unrefuted_epsilon(
        **counts,
        family_name="subsampled_gaussian",
        guesses="positive",
        sampling_rate=np.array([0.5, 0.2]),
        steps=steps,
    )
    for bound, family in zip(
        together,
        (trade_off.SubsampledGaussian(0.5, 1), trade_off.SubsampledGaussian(0.2, 2)),
        strict=True,
    ):
        alone = one_run.epsilon_lower_bound(
            **counts, method="fdp", family=family, guesses="positive"
        )
        assert bound == alone > 0
    gaussian = trade_off.smallest_unrefuted_epsilon(**counts, family_name="gaussian")
    assert gaussian == one_run.epsilon_lower_bound(
        **counts, method="fdp", family=trade_off.Gaussian()
    )


def test_nothing_refuted_gives_zero():
    counts = {"n_canaries": 100, "n_correct": 5, "delta": 1e-5, "method": "fdp"}
    for family in (trade_off.Gaussian(), trade_off.SubsampledGaussian(0.1, 10)):
        assert one_run.epsilon_lower_bound(**counts, n_guesses=10, family=family) == 0
    none = {**counts, "n_correct": 0, "n_guesses": 0}
    assert one_run.epsilon_lower_bound(**none, family=trade_off.Gaussian()) == 0


def test_curve_from_divergences_and_from_larger_ones():
    epsilon = trade_off.GRID
    exact = special.ndtr(0.5 - epsilon) - np.exp(epsilon) * special.ndtr(-0.5 - epsilon)
    gaussian = values(trade_off.Gaussian().curve(1.0))
    assert values(trade_off.from_divergence(exact, exact)) == pytest.approx(gaussian, rel=1e-4)
    larger = values(trade_off.from_divergence(exact + 1e-3, exact + 1e-3))
    assert (larger <= gaussian).all()
    assert larger == pytest.approx(
        values(trade_off.Gaussian().curve(1.0), np.maximum(RIGHT - 1e-3, 0)), rel=1e-4, abs=1e-12
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: trade_off.family("laplace"), "family = 'laplace'; allowed: gaussian, subsampled"),
        (lambda: trade_off.SubsampledGaussian(0.0, 10), "sampling_rate = 0.0"),
        (lambda: trade_off.SubsampledGaussian(0.1, 0), "steps = 0"),
        (lambda: trade_off.SubsampledGaussian(0.1, 1, "swap"), "neighboring = 'swap'"),
        (lambda: trade_off.Gaussian().curve(0.0), "noise_multiplier = 0.0"),
        (lambda: trade_off.Gaussian().epsilon(-1.0, 1e-5), "noise_multiplier = -1.0"),
        (lambda: trade_off.SubsampledGaussian(0.1, 1).curve(np.nan), "noise_multiplier = nan"),
        (lambda: trade_off.Gaussian().curve(1.0, "both"), "guesses = 'both'; allowed: mixed"),
    ],
)
def test_refuses_by_name(call, words):
    with pytest.raises(WorkbookError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
