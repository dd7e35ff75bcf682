"""Reconstruction attacks: their scores, the idealised mechanism, and real training step by step.

Seeds are fixed. Each statistical check would fail a right program with the chance it states.
"""

import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import special, stats

from lib import accounting, data, intervals, inversion, reconstruction
from lib.errors import WorkbookError

RARE = 1e-5  # two-sided error of one statistical check


def sequence(seed=0):
    return np.random.SeedSequence(seed)


def tuned(sampling_rate, steps=100):
    """The noise of (4, 1e-5)-differential privacy."""
    return accounting.noise_multiplier(
        epsilon=4.0, delta=1e-5, sampling_rate=sampling_rate, steps=steps
    )


def assert_mean(values, truth):
    """The mean of independent values is compatible with the truth."""
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert abs(np.mean(values) - truth) < stats.norm.isf(RARE / 2) * error


# ------------------------------------------------------------------------------ attacks


@pytest.mark.parametrize(
    ("sampling_rate", "steps", "expected"),
    [
        (0.29, 100, 29),  # 28.999999999999996 in floating point
        (0.57, 100, 57),
        (0.01, 100, 1),
        (1.0, 100, 100),
        (0.995, 100, 100),
        (1e-9, 100, 1),
        (0.004, 100, 1),
        (0.025, 100, 3),
        (0.145, 100, 15),  # 14.499999999999998
        (0.1449, 100, 14),
        (0.5, 1, 1),
    ],
)
def test_count_of_top_steps_is_the_nearest_whole_number_and_at_least_one(
    sampling_rate, steps, expected
):
    assert inversion.n_top(sampling_rate, steps) == expected


def test_sum_and_top_scores_by_hand():
    products = np.array([[[3.0, -1.0], [1.0, 5.0], [-9.0, 2.0], [2.0, 0.0]]])
    np.testing.assert_array_equal(inversion.sum_scores(products), [[-3, 6]])
    np.testing.assert_array_equal(inversion.top_scores(products, sampling_rate=0.5), [[5, 7]])
    np.testing.assert_array_equal(inversion.top_scores(products, sampling_rate=0.01), [[3, 5]])
    np.testing.assert_array_equal(inversion.top_scores(products, sampling_rate=1.0), [[-3, 6]])


@pytest.mark.parametrize("sampling_rate", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("clip_norm", [0.3, 2.0])
def test_map_is_the_posterior_by_enumeration_of_all_batch_memberships(sampling_rate, clip_norm):
    rng = np.random.default_rng(1)
    steps, prior_size, d, sigma = 6, 4, 5, 0.8
    deviation = sigma * clip_norm
    gradients = rng.standard_normal((steps, prior_size, d))
    norms = np.linalg.norm(gradients, axis=2, keepdims=True)
    gradients *= clip_norm * rng.uniform(0.2, 1, norms.shape) / norms  # some much shorter than C
    drawn = rng.random(steps) < sampling_rate
    residual = drawn[:, None] * gradients[:, 2] + deviation * rng.standard_normal((steps, d))

    likelihood = np.zeros(prior_size)
    for i in range(prior_size):
        for memberships in itertools.product((0, 1), repeat=steps):
            inside = np.array(memberships)
            chance = sampling_rate ** inside.sum() * (1 - sampling_rate) ** (steps - inside.sum())
            distances = residual - inside[:, None] * gradients[:, i]
            likelihood[i] += chance * stats.norm.pdf(distances, scale=deviation).prod()

    scores = inversion.map_scores(
        np.einsum("tid,td->ti", gradients, residual)[None],
        (gradients**2).sum(axis=2)[None],
        noise_multiplier=sigma,
        sampling_rate=sampling_rate,
        clip_norm=clip_norm,
    )
    np.testing.assert_allclose(
        inversion.posterior(scores)[0], likelihood / likelihood.sum(), rtol=1e-10
    )
    nothing = stats.norm.pdf(residual, scale=deviation).prod()
    np.testing.assert_allclose(scores[0], np.log(likelihood / nothing), rtol=1e-9)


def test_map_stays_finite_where_exponentials_would_not():
    products = np.array([[[1.0, 0.0], [0.0, -1.0]]])
    scores = inversion.map_scores(
        products,
        np.ones_like(products),
        noise_multiplier=1e-3,
        sampling_rate=0.25,
        clip_norm=1.0,
    )
    # Each step: log(1/4) + 5e5, or log(3/4).
    np.testing.assert_allclose(
        scores, [[math.log(0.25) + 5e5 + math.log(0.75), 2 * math.log(0.75)]], rtol=1e-12
    )
    np.testing.assert_array_equal(inversion.posterior(scores), [[1, 0]])


def test_ties_fall_to_each_candidate_alike_and_only_to_the_best():
    rng = np.random.default_rng(2)
    choices = inversion.choose(np.tile([1.0, 3.0, 3.0, 2.0, 3.0], (6000, 1)), rng)
    counts = np.bincount(choices, minlength=5)
    assert counts[[0, 3]].sum() == 0
    assert stats.chisquare(counts[[1, 2, 4]]).pvalue > RARE


def test_equal_evidence_gives_the_success_of_blind_guessing():
    n_runs, n = 4000, 5
    rng = np.random.default_rng(3)
    places = np.zeros(n_runs, dtype=int)  # the place that an argmax would name
    view = inversion.View(np.ones((n_runs, 3, n)), np.ones((n_runs, 3, n)), places)
    outcomes = inversion.attack(
        view, noise_multiplier=1.0, sampling_rate=0.5, clip_norm=1.0, rng=rng
    )
    for outcome in outcomes.values():
        assert stats.binomtest(int(outcome.correct.sum()), n_runs, 1 / n).pvalue > RARE
        np.testing.assert_allclose(outcome.masses, 1 / n)


def test_outcomes_belong_to_the_choices():
    rng = np.random.default_rng(4)
    view = inversion.View(
        rng.standard_normal((50, 8, 4)), rng.random((50, 8, 4)), rng.integers(4, size=50)
    )
    mechanism = {"noise_multiplier": 0.9, "sampling_rate": 0.3, "clip_norm": 1.0}
    outcomes = inversion.attack(view, rng=rng, **mechanism)
    scores = inversion.map_scores(view.inner_products, view.squared_norms, **mechanism)
    chances = special.softmax(scores, axis=1)
    assert set(outcomes) == set(inversion.ATTACKS)
    for outcome in outcomes.values():
        np.testing.assert_array_equal(outcome.correct, outcome.choices == view.places)
        np.testing.assert_allclose(outcome.masses, chances[np.arange(50), outcome.choices])
    np.testing.assert_allclose(outcomes["map"].masses, chances.max(axis=1))
    np.testing.assert_array_equal(
        outcomes["sum"].choices, view.inner_products.sum(axis=1).argmax(axis=1)
    )


# ---------------------------------------------------------------------- paired comparison


@pytest.mark.parametrize(
    ("first_only", "second_only"),
    [(0.0, 0.0), (0.05, 0.0), (0.1, 0.1), (0.02, 0.06), (0.4, 0.1), (0.5, 0.5), (0.0, 1.0)],
)
def test_paired_interval_covers_as_often_as_it_says_for_every_truth(first_only, second_only):
    n_runs, covered = 30, 0.0
    truth = first_only - second_only
    chances = [first_only, second_only, max(0.0, 1 - first_only - second_only)]
    for a in range(n_runs + 1):
        for b in range(n_runs + 1 - a):
            probability = stats.multinomial.pmf([a, b, n_runs - a - b], n_runs, chances)
            _, lower, upper = inversion.paired_difference(
                n_first_only=a, n_second_only=b, n_runs=n_runs
            )
            covered += probability * (lower <= truth <= upper)
    assert covered >= 0.95 - 1e-9


def test_paired_difference_is_antisymmetric_and_its_sign_is_mcnemars():
    counts = {"n_first_only": 70, "n_second_only": 40, "n_runs": 1000}
    value, lower, upper = inversion.paired_difference(**counts)
    assert value == pytest.approx(0.03)
    assert 0 < lower < value < upper < 0.08
    mirrored = inversion.paired_difference(n_first_only=40, n_second_only=70, n_runs=1000)
    np.testing.assert_allclose(mirrored, (-value, -upper, -lower))
    for wins in range(40, 81):
        _, lower, _ = inversion.paired_difference(n_first_only=wins, n_second_only=40, n_runs=1000)
        one_sided = stats.binomtest(wins, wins + 40, 0.5, alternative="greater").pvalue
        assert (lower > 0) == (one_sided < 0.02)
    assert inversion.paired_difference(n_first_only=0, n_second_only=0, n_runs=1000)[0] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_first_only": -1}, "n_first_only = -1"),
        ({"n_runs": 5}, "n_runs = 5"),
        ({"n_runs": 0, "n_first_only": 0, "n_second_only": 0}, "n_runs = 0"),
        ({"confidence": 1.0}, "confidence = 1.0"),
    ],
)
def test_paired_difference_refuses_counts_that_cannot_be(changes, words):
    counts = {"n_first_only": 4, "n_second_only": 3, "n_runs": 10} | changes
    with pytest.raises(WorkbookError, match=words) as caught:
        inversion.paired_difference(**counts)
    assert "allowed" in str(caught.value)


# ------------------------------------------------------------------------ idealised runs


@pytest.mark.parametrize(
    ("sampling_rate", "expected", "bound"),
    [
        (0.01, {"sum": 0.129, "top": 0.159, "map": 0.173}, 0.187),
        (0.1, {"sum": 0.263, "top": 0.237, "map": 0.283}, 0.319),
        (1.0, {"sum": 0.314, "top": 0.314, "map": 0.314}, 0.361),
    ],
)
def test_idealised_success_and_its_bound(sampling_rate, expected, bound):
    # 20,000 runs: a standard error of 0.0033 at most, a third of what is allowed.
    sigma = tuned(sampling_rate)
    mechanism = {"noise_multiplier": sigma, "sampling_rate": sampling_rate, "steps": 100}
    outcomes = inversion.idealised(n_runs=20_000, prior_size=10, sequence=sequence(5), **mechanism)
    limit = reconstruction.success_bound(kappa=0.1, **mechanism)
    assert limit == pytest.approx(bound, abs=1e-3)
    for name, outcome in outcomes.items():
        assert outcome.correct.mean() == pytest.approx(expected[name], abs=0.01)
        assert outcome.masses.mean() == pytest.approx(expected[name], abs=0.01)
        # What counting and posterior say differs by noise alone.
        assert_mean(outcome.correct - outcome.masses, 0.0)
        lower, _ = intervals.rate_interval(int(outcome.correct.sum()), 20_000)
        assert lower < limit
    best = outcomes["map"].masses
    assert all((best >= outcome.masses - 1e-12).all() for outcome in outcomes.values())


def test_bound_is_reached_by_opposite_gradients_in_full_batches():
    # Two candidates ±g with |g| = C lie 2C apart, as far as any two can: their midpoint is
    # pure noise, C from each, just what the bound compares. Error rate 1e-5 for each check.
    sigma, n_runs = tuned(1.0), 40_000
    mechanism = {"noise_multiplier": sigma, "sampling_rate": 1.0, "steps": 100}
    opposite = np.array([[1.0, -1.0], [-1.0, 1.0]])
    outcome = inversion.idealised(
        n_runs=n_runs, prior_size=2, sequence=sequence(6), cosines=opposite, **mechanism
    )["map"]
    bound = reconstruction.success_bound(kappa=0.5, method="gaussian", **mechanism)
    assert bound == pytest.approx(0.8225, abs=5e-4)
    assert stats.binomtest(int(outcome.correct.sum()), n_runs, bound).pvalue > RARE
    assert_mean(outcome.masses, bound)
    # Orthogonal ones are 2^(1/2) times nearer and fall short: Φ((T/2)^(1/2)/σ).
    orthogonal = inversion.idealised(
        n_runs=n_runs, prior_size=2, sequence=sequence(7), **mechanism
    )["map"]
    assert_mean(orthogonal.masses, stats.norm.cdf(math.sqrt(50) / sigma))


def test_idealised_views_have_the_moments_of_their_gradients():
    cosines = np.array([[1, 0.5, -0.2], [0.5, 1, 0.1], [-0.2, 0.1, 1]])
    lengths = np.array([1.0, 0.5, 0.8])
    (view,) = inversion.idealised_views(
        n_runs=20_000,
        prior_size=3,
        steps=2,
        noise_multiplier=0.7,
        sampling_rate=0.3,
        sequence=sequence(8),
        cosines=cosines,
        norms=lengths,
    )
    gram = cosines * lengths[:, None] * lengths
    np.testing.assert_allclose(view.squared_norms[0, 0], np.diag(gram))
    assert stats.chisquare(np.bincount(view.places)).pvalue > RARE
    for place in range(3):
        rows = view.inner_products[view.places == place]
        for i, j in itertools.combinations_with_replacement(range(3), 2):
            means = 0.3 * gram[place]
            assert_mean(rows[:, 0, i], means[i])
            # Noise, and whether the target was drawn.
            covariance = 0.49 * gram[i, j] + 0.3 * 0.7 * gram[place, i] * gram[place, j]
            assert_mean((rows[:, 1, i] - means[i]) * (rows[:, 1, j] - means[j]), covariance)
            assert_mean((rows[:, 0, i] - means[i]) * (rows[:, 1, j] - means[j]), 0.0)


def test_idealised_runs_do_not_depend_on_the_block_but_on_the_seed():
    options = {
        "n_runs": 50,
        "prior_size": 4,
        "steps": 7,
        "noise_multiplier": 1.0,
        "sampling_rate": 0.4,
        "norms": np.random.default_rng(0).random((50, 7, 4)),
    }
    whole = inversion.idealised(sequence=sequence(0), **options)
    parts = inversion.idealised(sequence=sequence(0), block=100, **options)
    other = inversion.idealised(sequence=sequence(1), **options)
    for name in inversion.ATTACKS:
        for field in ("choices", "correct", "masses"):
            assert getattr(whole[name], field).tobytes() == getattr(parts[name], field).tobytes()
        assert not np.array_equal(whole[name].masses, other[name].masses)
    assert len(list(inversion.idealised_views(sequence=sequence(0), block=1, **options))) == 50


# -------------------------------------------------------------------------- trained runs


def small(*, seed=0, n_inputs=6, n_points=40, n_known=20, n_runs=3, n=4, dtype=np.float64):
    """Points, known ones and candidates of a tiny experiment."""
    rng = np.random.default_rng(seed)
    return {
        "inputs": rng.standard_normal((n_points, n_inputs)).astype(dtype),
        "labels": rng.integers(3, size=n_points),
        "known": np.arange(n_known),
        "candidates": inversion.draw_candidates(
            n_runs=n_runs, prior_size=n, pool=np.arange(n_known, n_points), rng=rng
        ),
    }


def trained(points, *, seed=0, **changes):
    """A short training with all its releases, copied."""
    releases = []

    def keep(release):
        arrays = {
            name: getattr(release, name).copy()
            for name in ("parameters", "gradient", "ordinary", "members")
        }
        releases.append(inversion.Release(release.step, release.runs, **arrays))

    options = {
        "noise_multiplier": 0.5,
        "clip_norm": 0.7,
        "sampling_rate": 0.5,
        "steps": 4,
        "learning_rate": 0.8,
        "hidden_units": 5,
        "n_classes": 3,
        "basis": "inputs",
        "on_release": keep,
    } | changes
    return inversion.train(sequence=sequence(seed), **points, **options), releases


def coordinates(points, basis):
    """Inputs of each run's known points and candidates as its network sees them, bias and all."""
    extended = np.pad(points["inputs"], ((0, 0), (0, 1)), constant_values=1)
    known, candidates = extended[points["known"]], extended[points["candidates"]]
    if basis == "span":
        known, directions = inversion._in_span(known, candidates.shape[1])
        candidates = inversion._candidates_in_span(candidates, directions)
    return known, candidates


def gradients(parameters, inputs, labels, *, hidden_units, n_classes, activation):
    """(points, d) of each point by autograd, one point at a time, and none of them clipped."""
    flat = torch.tensor(parameters, requires_grad=True)
    size = hidden_units * inputs.shape[1]
    first = flat[:size].view(hidden_units, -1)
    second = flat[size:].view(n_classes, hidden_units + 1)
    rows = []
    for x, y in zip(torch.from_numpy(inputs), torch.from_numpy(labels), strict=True):
        hidden = {"relu": torch.relu, "tanh": torch.tanh}[activation](first @ x)
        outputs = second[:, :-1] @ hidden + second[:, -1]
        loss = torch.nn.functional.cross_entropy(outputs[None], y[None])
        rows.append(torch.autograd.grad(loss, flat)[0].numpy())
    return np.array(rows)


def clipped(rows, clip_norm):
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows * np.minimum(1, clip_norm / norms)


@pytest.mark.parametrize("basis", ["inputs", "span"])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("sampling_rate", [0.1, 0.5, 1.0])  # batches collected, weighted, whole
def test_every_step_is_that_of_one_example_at_a_time(sampling_rate, activation, basis):
    points = small(n_inputs=30)
    clip_norm = 2.2  # some gradients are longer and some are not
    sizes = {"hidden_units": 5, "n_classes": 3, "activation": activation}
    result, releases = trained(
        points,
        clip_norm=clip_norm,
        sampling_rate=sampling_rate,
        basis=basis,
        runs_at_once=2,
        **sizes,
    )
    known_inputs, candidate_inputs = coordinates(points, basis)
    assert known_inputs.shape[1] == (24 if basis == "span" else 31)
    labels, candidates = points["labels"], points["candidates"]
    n_clipped = n_drawn = 0
    for release, later in itertools.pairwise([*releases, None]):
        for row, run in enumerate(range(release.runs.start, release.runs.stop)):
            step, members = release.step, release.members[row]
            parameters, place = release.parameters[row], result.view.places[run]
            ordinary = clipped(
                gradients(parameters, known_inputs, labels[points["known"]], **sizes), clip_norm
            )[members[:-1]].sum(axis=0)
            own = gradients(parameters, candidate_inputs[run], labels[candidates[run]], **sizes)
            n_clipped += (np.linalg.norm(own, axis=1) > clip_norm).sum()
            own = clipped(own, clip_norm)
            np.testing.assert_allclose(release.ordinary[row], ordinary, atol=1e-12)
            residual = release.gradient[row] - ordinary
            view = result.view
            np.testing.assert_allclose(view.inner_products[run, step], own @ residual, atol=1e-11)
            np.testing.assert_allclose(view.squared_norms[run, step], (own**2).sum(axis=1))
            np.testing.assert_allclose(
                result.target_products[run, step], own @ own[place], atol=1e-12
            )
            # What is left without the target is this step's noise, the same for any data.
            noise = residual - members[-1] * own[place]
            assert 0.2 < np.std(noise) / (0.5 * clip_norm) < 1.8
            n_drawn += members[-1]
            if later is not None and later.runs == release.runs:
                step_size = 0.8 / (sampling_rate * 21)  # a public number, whatever the batch
                moved = (parameters - later.parameters[row]) / step_size
                np.testing.assert_allclose(moved, release.gradient[row], atol=1e-10)
    assert n_clipped > 0
    assert n_clipped < result.view.squared_norms.size
    assert n_drawn > 0


def test_released_gradients_hold_known_points_target_and_noise_and_nothing_else():
    points = small(n_runs=6)
    noiseless, exact = trained(points, noise_multiplier=0.0, steps=1, sampling_rate=0.5)
    _, noisy = trained(points, noise_multiplier=0.3, steps=1, sampling_rate=0.5)
    _, noisier = trained(points, noise_multiplier=0.6, steps=1, sampling_rate=0.5)
    drawn = exact[0].members[:, -1]
    assert 0 < drawn.sum() < 6
    residual = exact[0].gradient - exact[0].ordinary
    assert (residual[~drawn] == 0).all()
    own = noiseless.view.squared_norms[np.arange(6), 0, noiseless.view.places]
    np.testing.assert_allclose((residual**2).sum(axis=1)[drawn], own[drawn])
    # The rest is noise that grows with σ and with nothing else.
    np.testing.assert_allclose(
        noisier[0].gradient - exact[0].gradient,
        2 * (noisy[0].gradient - exact[0].gradient),
        rtol=1e-5,
        atol=1e-9,
    )


def test_noise_is_normal_with_the_right_variance_on_every_coordinate():
    points = small(n_runs=40, dtype=np.float32)
    sigma, clip_norm, steps = 3.0, 0.25, 150
    # Hardly anybody is ever drawn, so releases are noise.
    _, releases = trained(
        points,
        noise_multiplier=sigma,
        clip_norm=clip_norm,
        sampling_rate=1e-9,
        steps=steps,
        learning_rate=1e-9,
        runs_at_once=40,
    )
    noise = np.array([release.gradient for release in releases]) / (sigma * clip_norm)
    n, d = steps * 40, noise.shape[2]
    assert noise.shape == (steps, 40, 5 * 7 + 3 * 6)
    by_coordinate = noise.reshape(n, d).astype(float)
    tails = stats.chi2.sf((by_coordinate**2).sum(axis=0), n)
    assert (np.minimum(tails, 1 - tails) > RARE / d).all()
    assert (np.abs(by_coordinate.mean(axis=0)) * math.sqrt(n) < stats.norm.isf(RARE / d)).all()
    assert stats.kstest(noise.ravel()[:100_000], "norm").pvalue > RARE
    assert 4.2 < np.abs(noise).max() < 6.8
    # No two coordinates, steps or runs share theirs.
    for lines in (
        by_coordinate.T,
        noise.reshape(steps, -1),
        noise.transpose(1, 0, 2).reshape(40, -1),
    ):
        correlation = np.corrcoef(lines) * math.sqrt(lines.shape[1])
        others = correlation[np.triu_indices(len(lines), 1)]
        assert np.abs(others).max() < stats.norm.isf(RARE / others.size)
        squared = np.corrcoef(lines**2) * math.sqrt(lines.shape[1])
        assert np.abs(squared[np.triu_indices(len(lines), 1)]).max() < 7


@pytest.mark.parametrize("sampling_rate", [0.05, 0.3])
def test_batches_are_poisson_samples_of_known_points_and_target(sampling_rate):
    points = small(n_runs=50, dtype=np.float32)
    steps = 80
    _, releases = trained(points, sampling_rate=sampling_rate, steps=steps, noise_multiplier=1.0)
    members = np.concatenate([release.members for release in releases]).astype(float)
    assert members.shape == (steps * 50, 21)
    for point in members.T:
        assert stats.binomtest(int(point.sum()), len(point), sampling_rate).pvalue > RARE / 21
    sizes = members.sum(axis=1)
    assert_mean((sizes - 21 * sampling_rate) ** 2, 21 * sampling_rate * (1 - sampling_rate))


def test_a_basis_of_the_span_keeps_every_inner_product():
    points = small(n_inputs=50, n_known=12, n_runs=5, n=6)
    before = coordinates(points, "inputs")
    after = coordinates(points, "span")
    assert after[0].shape == (12, 18)
    for run in range(5):
        given = np.concatenate([before[0], before[1][run]])
        written = np.concatenate([after[0], after[1][run]])
        np.testing.assert_allclose(written @ written.T, given @ given.T, atol=1e-11)
    # Also where known points repeat each other and candidates lie among them.
    points["inputs"][1] = points["inputs"][0]
    points["inputs"][20:] = points["inputs"][0] * 0.5 + points["inputs"][2] * 0.5
    given = np.concatenate(
        [part[0] if part.ndim == 3 else part for part in coordinates(points, "inputs")]
    )
    written = np.concatenate(
        [part[0] if part.ndim == 3 else part for part in coordinates(points, "span")]
    )
    np.testing.assert_allclose(written @ written.T, given @ given.T, atol=1e-11)


def test_both_bases_give_the_same_distribution():
    points = small(n_inputs=40, n_known=10, n_runs=1500, n=3, dtype=np.float32)
    found = {}
    for seed, basis in enumerate(("inputs", "span")):
        mechanism = {"noise_multiplier": 0.8, "sampling_rate": 0.4, "clip_norm": 0.7}
        result, _ = trained(
            points, basis=basis, seed=seed, steps=6, on_release=None, runs_at_once=100, **mechanism
        )
        outcomes = inversion.attack(result.view, rng=np.random.default_rng(0), **mechanism)
        found[basis] = (
            outcomes["map"].masses,
            result.accuracy,
            result.view.squared_norms.mean(axis=(1, 2)),
            result.target_products[:, -1].mean(axis=1),
            result.view.inner_products.std(axis=(1, 2)),
        )
    for first, second in zip(found["inputs"], found["span"], strict=True):
        assert stats.ks_2samp(first, second).pvalue > RARE


def test_norms_never_exceed_the_clip_norm():
    points = small(dtype=np.float32, n_runs=10)
    points["inputs"] *= np.float32(50)
    result, _ = trained(points, clip_norm=0.7)
    assert result.view.squared_norms.max() <= 0.7**2 * (1 + 1e-6)
    assert result.view.squared_norms.dtype == np.float32


def test_targets_are_drawn_uniformly_and_named_when_there_is_little_noise():
    points = small(n_runs=800, n_points=60, n=4, dtype=np.float32)
    mechanism = {"noise_multiplier": 0.01, "sampling_rate": 0.5, "clip_norm": 0.7}
    result, _ = trained(points, on_release=None, runs_at_once=100, steps=12, **mechanism)
    assert stats.chisquare(np.bincount(result.view.places, minlength=4)).pvalue > RARE
    outcomes = inversion.attack(result.view, rng=np.random.default_rng(0), **mechanism)
    assert outcomes["map"].correct.mean() > 0.97
    assert outcomes["map"].masses.mean() > 0.97


def test_training_learns():
    rng = np.random.default_rng(0)
    labels = rng.integers(3, size=80)
    inputs = 3 * np.eye(6)[labels] + 0.3 * rng.standard_normal((80, 6))
    points = small() | {"inputs": inputs, "labels": labels, "known": np.arange(60)}
    points["candidates"] = np.array([[60, 61], [62, 63]])
    quick = {"noise_multiplier": 0.1, "steps": 60, "learning_rate": 2.0, "on_release": None}
    assert trained(points, **quick)[0].accuracy.min() > 0.9
    idle = {"noise_multiplier": 0.1, "steps": 1, "learning_rate": 1e-9, "on_release": None}
    assert trained(points, **idle)[0].accuracy.max() < 0.9


def assert_same(first, second, **tolerance):
    pairs = (
        (first.view.inner_products, second.view.inner_products),
        (first.view.squared_norms, second.view.squared_norms),
        (first.view.places, second.view.places),
        (first.target_products, second.target_products),
        (first.accuracy, second.accuracy),
    )
    for a, b in pairs:
        if tolerance:
            np.testing.assert_allclose(a, b, **tolerance)
        else:
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("sampling_rate", [0.1, 0.5])
def test_same_seed_same_bytes_whoever_else_draws_random_numbers(sampling_rate):
    points = small(n_inputs=30, n_runs=5, dtype=np.float32)
    options = {"sampling_rate": sampling_rate, "on_release": None, "basis": "span"}
    before = np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()  # noqa: NPY002
    first, _ = trained(points, **options)
    after = np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()  # noqa: NPY002
    assert before == after
    assert_same(first, trained(points, **options)[0])
    assert not np.array_equal(
        first.view.inner_products, trained(points, seed=1, **options)[0].view.inner_products
    )
    # Draws belong to a run, not to the company it is computed in.
    assert_same(first, trained(points, runs_at_once=2, **options)[0], rtol=1e-3, atol=1e-5)
    fewer = points | {"candidates": points["candidates"][:3]}
    alone = trained(fewer, **options)[0].view
    np.testing.assert_array_equal(alone.places, first.view.places[:3])
    np.testing.assert_allclose(
        alone.inner_products, first.view.inner_products[:3], rtol=1e-3, atol=1e-5
    )


def test_a_seed_sequence_is_left_as_it_was():
    given = sequence(3)
    points = small()
    options = {"steps": 2, "hidden_units": 2, "n_classes": 3, "learning_rate": 0.1}
    mechanism = {"noise_multiplier": 1.0, "sampling_rate": 0.5}
    results = [
        inversion.train(sequence=given, clip_norm=1.0, **points, **options, **mechanism)
        for _ in range(2)
    ]
    assert_same(*results)
    assert given.n_children_spawned == 0


def test_candidates_are_drawn_without_repeats_and_evenly():
    pool = np.arange(100, 112)
    drawn = inversion.draw_candidates(
        n_runs=3000, prior_size=4, pool=pool, rng=np.random.default_rng(0)
    )
    assert drawn.shape == (3000, 4)
    assert all(len(set(row)) == 4 for row in drawn.tolist())
    for column in drawn.T:
        assert stats.chisquare(np.bincount(column - 100, minlength=12)).pvalue > RARE


@pytest.fixture(scope="module")
def digits():
    """A real experiment, small: 100 known digits, 400 runs."""
    images = data.load("mnist5k")
    inputs = images.train_images.reshape(len(images.train_images), -1).astype(np.float32) / 255
    rng = np.random.default_rng(0)
    order = rng.permutation(len(inputs))
    return {
        "inputs": inputs,
        "labels": images.train_labels,
        "known": order[:100],
        "candidates": inversion.draw_candidates(
            n_runs=400, prior_size=10, pool=order[100:], rng=rng
        ),
    }


@pytest.mark.parametrize("sampling_rate", [0.05, 1.0])
def test_no_attack_on_real_gradients_beats_the_bound(digits, sampling_rate):
    mechanism = {"noise_multiplier": tuned(sampling_rate, 40), "sampling_rate": sampling_rate}
    result = inversion.train(
        steps=40,
        clip_norm=1.0,
        learning_rate=0.5,
        hidden_units=10,
        n_classes=10,
        sequence=sequence(1),
        **digits,
        **mechanism,
    )
    bound = reconstruction.success_bound(kappa=0.1, steps=40, **mechanism)
    outcomes = inversion.attack(
        result.view, clip_norm=1.0, rng=np.random.default_rng(0), **mechanism
    )
    for outcome in outcomes.values():
        lower, _ = intervals.rate_interval(int(outcome.correct.sum()), 400, confidence=1 - RARE)
        assert lower < bound
        _, lower, _ = intervals.mean_interval(outcome.masses, outcome.masses, confidence=1 - RARE)
        assert lower < bound
        assert_mean(outcome.correct - outcome.masses, 0.0)
    # And the best is far better than a blind guess, though no better than on ideal gradients.
    assert outcomes["map"].masses.mean() > 0.13
    ideal = inversion.idealised(
        n_runs=4000, prior_size=10, steps=40, sequence=sequence(2), **mechanism
    )
    assert outcomes["map"].masses.mean() < ideal["map"].masses.mean() + 0.02


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise_multiplier": -0.1}, "noise_multiplier = -0.1"),
        ({"noise_multiplier": math.inf}, "noise_multiplier = inf"),
        ({"clip_norm": 0}, "clip_norm = 0"),
        ({"sampling_rate": 0}, "sampling_rate = 0"),
        ({"sampling_rate": 1.01}, "sampling_rate = 1.01"),
        ({"steps": 0}, "steps = 0"),
        ({"steps": 2.5}, "steps = 2.5"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0"),
        ({"learning_rate": math.nan}, "learning_rate = nan"),
        ({"hidden_units": 0}, "hidden_units = 0"),
        ({"runs_at_once": 0}, "runs_at_once = 0"),
        ({"activation": "gelu"}, "activation = 'gelu'"),
        ({"basis": "fourier"}, "basis = 'fourier'"),
        ({"n_classes": 2}, "n_classes = 2"),
    ],
)
def test_training_refuses_values_out_of_range(changes, words):
    with pytest.raises(WorkbookError, match=words) as caught:
        trained(small(), **changes)
    assert "allowed" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("inputs", lambda x: (255 * x).astype(np.uint8), "uint8"),
        ("inputs", lambda x: np.where(x == x[3, 2], np.nan, x), "first at point 3"),
        ("inputs", lambda x: x[:, :, None], r"shape \(40, 6, 1\)"),
        ("labels", lambda y: y[:-1], r"shape \(39,\)"),
        ("labels", lambda y: y * 1.0, "float64"),
        ("labels", lambda y: y - 1, "from -1"),
        ("known", lambda k: np.append(k, 40), "known run from 0 to 40"),
        ("known", lambda k: np.append(k, 7), "known hold point 7 twice"),
        ("known", lambda k: k[None], r"known are int64 of shape \(1, 20\)"),
        ("candidates", lambda c: c - 21, "candidates run from -"),
        ("candidates", lambda c: c[0], r"shape \(4,\)"),
        ("candidates", lambda c: np.zeros_like(c) + 25, "candidates hold point 25 twice"),
        ("candidates", lambda c: np.where(c == c[0, 0], 11, c), "point 11, which is known"),
    ],
)
def test_training_refuses_points_that_do_not_fit(name, change, words):
    points = small()
    points[name] = change(points[name])
    with pytest.raises(WorkbookError, match=words) as caught:
        trained(points)
    assert "allowed" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_training_that_diverges_says_so():
    points = small(dtype=np.float32)
    with pytest.raises(WorkbookError, match=r"diverged by step \d+.*lower learning_rate = 1e\+38"):
        trained(points, learning_rate=1e38, steps=20)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise_multiplier": 0}, "noise_multiplier = 0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier = nan"),
        ({"sampling_rate": 0}, "sampling_rate = 0"),
        ({"clip_norm": -1.0}, "clip_norm = -1.0"),
    ],
)
def test_attacks_refuse_mechanisms_without_a_likelihood(changes, words):
    view = inversion.View(np.ones((2, 3, 4)), np.ones((2, 3, 4)), np.zeros(2, dtype=int))
    mechanism = {"noise_multiplier": 1.0, "sampling_rate": 0.5, "clip_norm": 1.0} | changes
    with pytest.raises(WorkbookError, match=words):
        inversion.attack(view, rng=np.random.default_rng(0), **mechanism)


def test_a_view_that_is_not_finite_is_refused():
    products = np.ones((2, 3, 4))
    products[1, 0, 2] = np.nan
    with pytest.raises(WorkbookError, match="run 1, candidate 2 is nan"):
        inversion.choose(inversion.sum_scores(products), np.random.default_rng(0))
    view = inversion.View(products, np.ones((2, 3, 4)), np.zeros(2, dtype=int))
    with pytest.raises(WorkbookError, match="runs 0 to 1 holds numbers that are not finite"):
        inversion.attack(
            view,
            noise_multiplier=1.0,
            sampling_rate=0.5,
            clip_norm=1.0,
            rng=np.random.default_rng(0),
        )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"n_runs": 0}, "n_runs = 0"),
        ({"prior_size": 0}, "prior_size = 0"),
        ({"prior_size": True}, "prior_size = True"),
        ({"steps": -1}, "steps = -1"),
        ({"block": 0}, "block = 0"),
        ({"noise_multiplier": -1}, "noise_multiplier = -1"),
        ({"noise_multiplier": 0}, "noise_multiplier = 0"),
        ({"cosines": np.eye(2)}, r"cosines of shape \(2, 2\)"),
        ({"cosines": 2 * np.eye(3)}, "diagonal from 2.0"),
        ({"cosines": 2 * np.eye(3) - np.ones((3, 3))}, "smallest eigenvalue -1"),
        ({"norms": np.ones(2)}, r"norms of shape \(2,\)"),
        ({"norms": 1.1}, "norms from 1.1"),
    ],
)
def test_idealised_runs_refuse_values_out_of_range(changes, words):
    options = {
        "n_runs": 4,
        "prior_size": 3,
        "steps": 2,
        "noise_multiplier": 1.0,
        "sampling_rate": 0.5,
    } | changes
    with pytest.raises(WorkbookError, match=words) as caught:
        inversion.idealised(sequence=sequence(), **options)
    assert "allowed" in str(caught.value)


def test_a_pool_smaller_than_the_prior_is_refused():
    with pytest.raises(WorkbookError, match="prior_size = 5; allowed: at most the pool's 4"):
        inversion.draw_candidates(
            n_runs=2, prior_size=5, pool=np.arange(4), rng=np.random.default_rng(0)
        )


def test_the_module_imports_without_torch():
    code = "import sys, lib.inversion; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
