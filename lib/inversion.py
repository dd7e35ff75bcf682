"""Reconstruction attacks on DP-SGD by an adversary who has a shortlist, and runs to try them on.

The setting is that of Hayes, Mahloujifar and Balle (arXiv:2302.07225): one training point is
unknown but comes from a uniform prior over n candidates. The adversary knows all other points, the
initial weights, which known points were in each batch, and every released gradient; so it knows the
weights at every step, each candidate's clipped gradient g_{t,i} there, and the *residual* r_t, the
released sum less the known points' clipped gradients:

    r_t = b_t·g_{t,target} + N(0, σ²C²·I),   b_t = 1 with chance q, else 0.

Two numbers a step and candidate hold all that r_t says: ⟨g_{t,i}, r_t⟩ and ‖g_{t,i}‖². A
:class:`View` keeps them, the attacks use nothing else:

- ``sum``: Σ_t ⟨g_{t,i}, r_t⟩, the paper's Algorithm 2;
- ``top``: the same over each candidate's qT largest terms, the paper's attack for mini-batches;
- ``map``: the posterior itself, Σ_t log(1 − q + q·exp((2⟨g_{t,i}, r_t⟩ − ‖g_{t,i}‖²)/(2σ²C²))).
  Under the uniform prior no attack with this view is right more often.

Views come from :func:`idealised_views` (no network: gradients of given lengths and angles) and from
:func:`train` (DP-SGD of a network with one hidden layer, many runs together).

NumPy only: its matrix products are quicker here than torch's, and so is the noise made of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from scipy import special

from lib import intervals
from lib.errors import WorkbookError

ATTACKS = {
    "sum": "sum over the steps of the inner products (Algorithm 2)",
    "top": "sum of each candidate's qT largest inner products",
    "map": "exact posterior of each candidate",
}
ACTIVATIONS = {  # function, and its derivative from its value
    "relu": (lambda x: np.maximum(x, 0), lambda value: value > 0),
    "tanh": (np.tanh, lambda value: 1 - value**2),
}
BASES = {
    "inputs": "every weight is there",
    "span": "only the weights that a point can reach, in a basis of the points",
}
BLOCK = 2**20  # numbers handled at a time
NOISE_BLOCK = 2**15  # normal numbers drawn at a time for each run
RUNS_AT_ONCE = 16  # quickest or nearly so on 784 and on 3,072 inputs: the arrays stay in the cache
# From this sampling rate on, all known points go through one matrix product for all runs, and those
# outside a batch get weight 0: quicker than collecting each run's batch.
DENSE_SAMPLING_RATE = 0.25
PURPOSES = ("target", "initialisation", "batches", "noise", "ties")
SHARE_OF_ERROR = 0.2  # of a paired interval's, for how often two attacks differ at all


@dataclass(frozen=True)
class View:
    """What the adversary holds of each run, and the answer.

    Attributes:
        inner_products: (runs, steps, n) ⟨g_{t,i}, r_t⟩, in units of the gradients squared.
        squared_norms: (runs, steps, n) ‖g_{t,i}‖², of clipped gradients: at most C².
        places: (runs,) which candidate was trained on, 0 … n − 1.
    """

    inner_products: np.ndarray
    squared_norms: np.ndarray
    places: np.ndarray


@dataclass(frozen=True)
class Outcome:
    """What one attack did in each run.

    Attributes:
        choices: (runs,) the candidate named.
        correct: (runs,) whether it was the right one.
        masses: (runs,) posterior probability of the candidate named. Its mean estimates the rate
            of success without bias and with less scatter than counting does (Rao and Blackwell);
            :func:`lib.intervals.mean_interval` gives its interval.
    """

    choices: np.ndarray
    correct: np.ndarray
    masses: np.ndarray


# ---------------------------------------------------------------------------------- attacks


def attack(
    view: View,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    clip_norm: float,
    rng: np.random.Generator,
) -> dict[str, Outcome]:
    """Every attack of ``ATTACKS`` on the same runs.

    Args:
        view: what the adversary saw.
        noise_multiplier, sampling_rate, clip_norm: σ > 0, q and C > 0 of the mechanism behind it.
        rng: breaks ties.

    Returns:
        An outcome for each attack.

    Raises:
        WorkbookError: for a value out of range, or a view that is not finite.
    """
    _check_noise(noise_multiplier, zero_allowed=False)
    _check_numbers(sampling_rate=sampling_rate, clip_norm=clip_norm)
    n_runs, steps, prior_size = view.inner_products.shape
    scores = {name: np.empty((n_runs, prior_size)) for name in ATTACKS}
    for rows in _blocks(n_runs, steps * prior_size):
        products, squares = view.inner_products[rows], view.squared_norms[rows]
        if not (np.isfinite(products).all() and np.isfinite(squares).all()):
            raise WorkbookError(
                f"the view of runs {rows.start} to {rows.stop - 1} holds numbers that are not "
                "finite; allowed: finite numbers"
            )
        scores["sum"][rows] = sum_scores(products)
        scores["top"][rows] = top_scores(products, sampling_rate=sampling_rate)
        scores["map"][rows] = map_scores(
            products,
            squares,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            clip_norm=clip_norm,
        )
    chances = posterior(scores["map"])
    outcomes = {}
    for name, score in scores.items():
        choices = choose(score, rng)
        masses = np.take_along_axis(chances, choices[:, None], axis=1)[:, 0]
        outcomes[name] = Outcome(choices, choices == view.places, masses)
    return outcomes


def sum_scores(inner_products: np.ndarray) -> np.ndarray:
    """Algorithm 2 of arXiv:2302.07225: inner products with the residual, added up.

    Args:
        inner_products: (runs, steps, n).

    Returns:
        (runs, n) scores.
    """
    return inner_products.sum(axis=1, dtype=np.float64)


def top_scores(inner_products: np.ndarray, *, sampling_rate: float) -> np.ndarray:
    """The same paper's attack for mini-batches: only each candidate's :func:`n_top` largest.

    Args:
        inner_products: (runs, steps, n).
        sampling_rate: q in (0, 1].

    Returns:
        (runs, n) scores; those of :func:`sum_scores` where every step counts.
    """
    steps = inner_products.shape[1]
    n_left_out = steps - n_top(sampling_rate, steps)
    if n_left_out == 0:
        return sum_scores(inner_products)
    return sum_scores(np.partition(inner_products, n_left_out, axis=1)[:, n_left_out:])


def n_top(sampling_rate: float, steps: int) -> int:
    """How many steps the ``top`` attack counts: qT to the nearest whole number, at least 1.

    Halves go up. q is taken as the decimal it is written as: 0.29 · 100 is 29 here, while in
    floating point it is less and a mere cut would give 28.

    Args:
        sampling_rate: q in (0, 1].
        steps: T ≥ 1.
    """
    _check_numbers(sampling_rate=sampling_rate, steps=steps)
    expected = Fraction(str(float(sampling_rate))) * int(steps)
    return max(1, math.floor(expected + Fraction(1, 2)))


def map_scores(
    inner_products: np.ndarray,
    squared_norms: np.ndarray,
    *,
    noise_multiplier: float,
    sampling_rate: float,
    clip_norm: float,
) -> np.ndarray:
    """Log-likelihood of each candidate, less that of no candidate at all, in nats.

    In each step the residual is N(g, σ²C²) with chance q and N(0, σ²C²) otherwise. Gradients may be
    shorter than C, since clipping only shortens; so their norms are part of the evidence.

    Args:
        inner_products, squared_norms: (runs, steps, n).
        noise_multiplier: σ > 0.
        sampling_rate: q in (0, 1].
        clip_norm: C > 0.

    Returns:
        (runs, n) scores.

    Raises:
        WorkbookError: for a value out of range.
    """
    _check_noise(noise_multiplier, zero_allowed=False)
    _check_numbers(sampling_rate=sampling_rate, clip_norm=clip_norm)
    exponents = 2 * np.asarray(inner_products, dtype=np.float64) - squared_norms
    exponents /= 2 * (noise_multiplier * clip_norm) ** 2
    if sampling_rate < 1:
        exponents += math.log(sampling_rate)
        exponents = np.logaddexp(math.log1p(-sampling_rate), exponents)
    return exponents.sum(axis=1)


def posterior(map_scores: np.ndarray) -> np.ndarray:
    """Probability of each candidate given the view, under the uniform prior.

    Args:
        map_scores: (runs, n) of :func:`map_scores`.

    Returns:
        (runs, n), each row adding up to 1.
    """
    return special.softmax(map_scores, axis=1)


def choose(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The candidate with the largest score; among equals each is as likely.

    Args:
        scores: (runs, n).
        rng: breaks ties; the numbers drawn depend on the shape alone.

    Returns:
        (runs,) places, 0 … n − 1.

    Raises:
        WorkbookError: for a score that is not finite, which no comparison could order.
    """
    if not np.isfinite(scores).all():
        run, place = np.argwhere(~np.isfinite(scores))[0]
        raise WorkbookError(
            f"score of run {run}, candidate {place} is {scores[run, place]}; allowed: finite "
            "numbers"
        )
    lots = rng.random(scores.shape)
    return np.argmax(np.where(scores == scores.max(axis=1, keepdims=True), lots, -1.0), axis=1)


def paired_difference(
    *, n_first_only: int, n_second_only: int, n_runs: int, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Difference of two attacks' rates of success on the same runs, with a sure interval.

    The rates differ by ρ(2θ − 1): ρ is how often just one attack is right, and θ how often it is
    the first one then. Given how many such runs there were, θ's count is binomial (McNemar's test);
    ρ's is binomial anyway. Clopper and Pearson's intervals for both, with 4/5 and 1/5 of the error
    allowed, hold together at least as often as ``confidence`` says, whatever the truth and n_runs.
    The interval lies above 0 just if θ's lies above one half.

    Args:
        n_first_only: runs in which the first attack was right and the second wrong.
        n_second_only: the other way round.
        n_runs: all runs.
        confidence: in (0, 1).

    Returns:
        First less second rate, lower and upper end.

    Raises:
        WorkbookError: for counts that do not fit together.
    """
    n_differing = n_first_only + n_second_only
    if not (n_runs >= 1 and min(n_first_only, n_second_only) >= 0 and n_differing <= n_runs):
        raise WorkbookError(
            f"n_first_only = {n_first_only}, n_second_only = {n_second_only}, n_runs = {n_runs}; "
            "allowed: counts of at least 0 that together are at most n_runs, and n_runs at least 1"
        )
    if not 0 < confidence < 1:
        raise WorkbookError(f"confidence = {confidence}; allowed: a number in (0, 1)")
    error = 1 - confidence
    shares = intervals.rate_interval(n_differing, n_runs, confidence=1 - SHARE_OF_ERROR * error)
    wins = (0.0, 1.0)
    if n_differing:
        wins = intervals.rate_interval(
            n_first_only, n_differing, confidence=1 - (1 - SHARE_OF_ERROR) * error
        )
    ends = [share * (2 * win - 1) for share in shares for win in wins]
    return float((n_first_only - n_second_only) / n_runs), min(ends), max(ends)


# ---------------------------------------------------------------------------- idealised runs


def idealised(
    *,
    n_runs: int,
    prior_size: int,
    steps: int,
    noise_multiplier: float,
    sampling_rate: float,
    sequence: np.random.SeedSequence,
    cosines: np.ndarray | None = None,
    norms: np.ndarray | float = 1.0,
    block: int = BLOCK,
) -> dict[str, Outcome]:
    """Every attack on idealised runs; arguments as in :func:`idealised_views`.

    Returns:
        An outcome for each attack; the same ones whatever ``block`` is.
    """
    rng = np.random.default_rng(_stream(sequence, "ties"))
    parts = [
        attack(
            view,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            clip_norm=1.0,
            rng=rng,
        )
        for view in idealised_views(
            n_runs=n_runs,
            prior_size=prior_size,
            steps=steps,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            sequence=sequence,
            cosines=cosines,
            norms=norms,
            block=block,
        )
    ]
    return {name: _joined([part[name] for part in parts]) for name in ATTACKS}


def idealised_views(
    *,
    n_runs: int,
    prior_size: int,
    steps: int,
    noise_multiplier: float,
    sampling_rate: float,
    sequence: np.random.SeedSequence,
    cosines: np.ndarray | None = None,
    norms: np.ndarray | float = 1.0,
    block: int = BLOCK,
) -> Iterator[View]:
    """Views of the mechanism on gradients of given lengths and angles; C = 1, no network.

    By default they are orthogonal and of norm C: what attacks would reach if clipping shortened no
    gradient further and no two candidates were alike. The inner products are drawn directly,
    as normal numbers with the gradients' products as covariance.

    Args:
        n_runs, prior_size, steps: numbers of runs, candidates (n) and steps (T).
        noise_multiplier: σ ≥ 0.
        sampling_rate: q in (0, 1].
        sequence: where all randomness comes from, by a stream for each purpose.
        cosines: (n, n) cosines between the candidates' gradients; orthogonal ones if not given.
        norms: the gradients' norms, in units of C; anything that broadcasts to (runs, steps, n).
        block: inner products in one view at most (but at least one run); bounds the memory.

    Yields:
        Views that together hold ``n_runs`` runs. The numbers do not depend on ``block``.

    Raises:
        WorkbookError: for a value out of range.
    """
    _check_numbers(n_runs=n_runs, prior_size=prior_size, steps=steps, block=block)
    _check_noise(noise_multiplier, zero_allowed=True)
    _check_numbers(sampling_rate=sampling_rate)
    cosines = np.eye(prior_size) if cosines is None else np.asarray(cosines, dtype=float)
    orthogonal = np.array_equal(cosines, np.eye(prior_size))
    root = None if orthogonal else _root(cosines, prior_size)
    norms = _norms(norms, (n_runs, steps, prior_size))
    rngs = {name: np.random.default_rng(_stream(sequence, name)) for name in PURPOSES}
    for rows in _blocks(n_runs, steps * prior_size, block):
        length = norms[rows]
        size = len(length)
        places = rngs["target"].integers(prior_size, size=size)
        drawn = rngs["batches"].random((size, steps)) < sampling_rate
        along = rngs["noise"].standard_normal((size, steps, prior_size))
        if root is not None:
            along = along @ root
        along *= noise_multiplier
        own_length = np.take_along_axis(length, places[:, None, None], axis=2)
        along += (drawn[:, :, None] * own_length) * cosines[places][:, None, :]
        yield View(along * length, length**2, places)


def _root(cosines: np.ndarray, prior_size: int) -> np.ndarray:
    """Symmetric square root of a matrix of cosines, which may be singular (opposite vectors)."""
    allowed = f"a symmetric matrix ({prior_size}, {prior_size}) of cosines between vectors"
    shape = (prior_size, prior_size)
    if cosines.shape != shape or not np.allclose(cosines, cosines.T):
        raise WorkbookError(f"cosines of shape {cosines.shape}; allowed: {allowed}")
    values, vectors = np.linalg.eigh(cosines)
    if not np.allclose(np.diag(cosines), 1) or values[0] < -1e-9 * prior_size:
        raise WorkbookError(
            f"cosines with diagonal from {np.diag(cosines).min()} to {np.diag(cosines).max()} and "
            f"smallest eigenvalue {values[0]}; allowed: {allowed}"
        )
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def _norms(norms: np.ndarray | float, shape: tuple[int, int, int]) -> np.ndarray:
    norms = np.asarray(norms, dtype=float)
    try:
        norms = np.broadcast_to(norms, shape)
    except ValueError:
        raise WorkbookError(
            f"norms of shape {norms.shape}; allowed: one that broadcasts to {shape}"
        ) from None
    if not ((norms >= 0) & (norms <= 1 + 1e-6)).all():
        raise WorkbookError(
            f"norms from {norms.min()} to {norms.max()}; allowed: 0 to 1, in units of the clip norm"
        )
    return norms


# ----------------------------------------------------------------------------- trained runs


@dataclass(frozen=True)
class Release:
    """One step of the runs trained together. Arrays are reused: copy what should last.

    Parameters come flattened: weights of the hidden layer (units, inputs + 1), then of the output
    layer (classes, units + 1), each row ending in its bias; those of the hidden layer are written
    in the basis that :func:`train` uses.

    Attributes:
        step: 0 … T − 1.
        runs: which runs these are.
        parameters: (runs, d) before the step.
        gradient: (runs, d) as released: clipped gradients of the batch added up, and noise.
        ordinary: (runs, d) the known points' share of it, without noise.
        members: (runs, known points + 1) who was in the batch; the target comes last.
    """

    step: int
    runs: slice
    parameters: np.ndarray
    gradient: np.ndarray
    ordinary: np.ndarray
    members: np.ndarray


@dataclass(frozen=True)
class Training:
    """What :func:`train` brings back.

    Attributes:
        view: for the attacks.
        target_products: (runs, steps, n) ⟨g_{t,i}, g_{t,target}⟩ of clipped gradients. They say how
            alike the candidates are, and what an attack loses by that:
            ‖g_i − g_target‖² is ``squared_norms`` + the target's − 2 · ``target_products``.
        accuracy: (runs,) share of the known points that the trained network classifies rightly.
    """

    view: View
    target_products: np.ndarray
    accuracy: np.ndarray


def draw_candidates(
    *, n_runs: int, prior_size: int, pool: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """For each run n different points of a pool, all sets equally likely.

    Args:
        n_runs, prior_size: numbers of runs and of candidates n.
        pool: (points,) different indices.
        rng: source of randomness.

    Returns:
        (runs, n) members of the pool.

    Raises:
        WorkbookError: for a pool smaller than n, or a number below 1.
    """
    _check_numbers(n_runs=n_runs, prior_size=prior_size)
    if len(pool) < prior_size:
        raise WorkbookError(f"prior_size = {prior_size}; allowed: at most the pool's {len(pool)}")
    return np.array([rng.choice(pool, prior_size, replace=False) for _ in range(n_runs)])


def train(
    *,
    inputs: np.ndarray,
    labels: np.ndarray,
    known: np.ndarray,
    candidates: np.ndarray,
    noise_multiplier: float,
    clip_norm: float,
    sampling_rate: float,
    steps: int,
    learning_rate: float,
    hidden_units: int,
    n_classes: int,
    sequence: np.random.SeedSequence,
    activation: str = "relu",
    basis: str = "span",
    initial: np.ndarray | None = None,
    runs_at_once: int = RUNS_AT_ONCE,
    on_release: Callable[[Release], None] | None = None,
) -> Training:
    """Independent runs of DP-SGD on the known points and one target each, and what they reveal.

    The network has one hidden layer and is trained with cross-entropy and plain SGD. Each step
    takes each point into the batch with chance q, clips every gradient over all layers together to
    norm C, adds N(0, σ²C²) to each coordinate of the sum, and divides by the public number q·N,
    N = known points + 1. Every run has a target, weights, batches and noise of its own; the known
    points are common to all.

    A layer's gradient for one point is the product of an error and an input, so norms, sums and
    inner products of gradients come from these factors, and no point's gradient is ever written out
    (the target's excepted).

    The hidden layer cannot tell in which orthonormal basis its inputs, the bias's 1 among them, are
    written: outputs, norms and inner products stay the same if its weights are written in that
    basis too, and normal noise and normal initial weights look alike in all. So ``span`` writes
    each run's points in a basis of their own span, known points first, and leaves out the
    coordinates beyond it: no point reaches those weights, and nothing depends on them. What comes
    back has the same distribution as with ``inputs``, which keeps every coordinate.

    Memory: about 4·runs_at_once·(4d + (batch + n)·inputs) bytes beside the points and the result,
    with the largest batch below ``DENSE_SAMPLING_RATE`` and without it from there on.

    Args:
        inputs: (points, inputs) float32 or float64, in which all is then computed, except that
            noise has the resolution of float32.
        labels: (points,) integer classes.
        known: (known,) indices of the points that the adversary knows, all different.
        candidates: (runs, n) indices of other points, different in each run; the target is one of
            these, drawn uniformly.
        noise_multiplier: σ ≥ 0.
        clip_norm: C > 0.
        sampling_rate: q in (0, 1].
        steps: T ≥ 1.
        learning_rate: > 0.
        hidden_units, n_classes: sizes of the two layers.
        sequence: where all randomness comes from: a stream for each run and purpose.
        activation: a name in ``ACTIVATIONS``.
        basis: a name in ``BASES``; ``span`` is quicker, and the same as ``inputs`` where known
            points and candidates are as many as the inputs.
        initial: (d,) weights that every run starts from, as in :class:`Release`, with the basis
            ``inputs``; by default each run draws its own.
        runs_at_once: bounds the memory. Draws do not depend on it; sums may in their last digits.
        on_release: called with each step's :class:`Release`.

    Returns:
        Statistics of all runs.

    Raises:
        WorkbookError: for a value out of range, or a training that diverges.
    """
    _check_numbers(clip_norm=clip_norm, sampling_rate=sampling_rate, steps=steps)
    _check_noise(noise_multiplier, zero_allowed=True)
    _check_numbers(learning_rate=learning_rate, hidden_units=hidden_units, n_classes=n_classes)
    _check_numbers(runs_at_once=runs_at_once)
    if activation not in ACTIVATIONS:
        raise WorkbookError(f"activation = {activation!r}; allowed: {', '.join(ACTIVATIONS)}")
    if basis not in BASES:
        raise WorkbookError(f"basis = {basis!r}; allowed: {', '.join(BASES)}")
    points = _checked_points(inputs, labels, n_classes)
    known, candidates = _checked_indices(known, candidates, len(points.inputs))
    n_runs, prior_size = candidates.shape
    known_inputs, directions = points.inputs[known], None
    if basis == "span" and len(known) + prior_size < points.inputs.shape[1]:
        known_inputs, directions = _in_span(known_inputs, prior_size)
    setting = _Setting(
        sigma=float(noise_multiplier * clip_norm),
        clip_norm=float(clip_norm),
        sampling_rate=float(sampling_rate),
        steps=int(steps),
        step_size=float(learning_rate / (sampling_rate * (len(known) + 1))),
        n_inputs=points.inputs.shape[1] - 1,
        shapes=((hidden_units, known_inputs.shape[1]), (n_classes, hidden_units + 1)),
        activation=activation,
    )
    world = _World(
        points,
        _points(known_inputs, points.targets[:, known]),
        directions,
        setting,
        _checked_initial(initial, basis, setting),
    )
    found = np.empty((3, n_runs, setting.steps, prior_size), points.inputs.dtype)
    places, accuracy = np.empty(n_runs, dtype=int), np.empty(n_runs)
    for rows in _blocks(n_runs, 1, runs_at_once):
        runs = _begin(rows, candidates[rows], world, sequence)
        places[rows] = runs.places
        for step in range(setting.steps):
            with np.errstate(over="ignore", invalid="ignore"):  # told of here, in one line
                found[:, rows, step] = _step(step, runs, world, on_release)
            if not np.isfinite(found[:, rows, step]).all():
                raise WorkbookError(
                    f"training diverged by step {step}: a gradient is not finite; lower "
                    f"learning_rate = {learning_rate}"
                )
        accuracy[rows] = _accuracy(runs.parameters, world)
    return Training(View(found[0], found[1], places), found[2], accuracy)


def initial_weights(
    shapes: tuple[tuple[int, int], tuple[int, int]], rng: np.random.Generator, n_inputs: int
) -> np.ndarray:
    """Weights of both layers: normal, of the variance of torch's, a third over a layer's inputs.

    Args:
        shapes: (units, inputs + 1 or what their basis has) and (classes, units + 1).
        rng: source of randomness.
        n_inputs: of the network, without the bias.

    Returns:
        (d,) weights, flattened as in :class:`Release`.
    """
    scales = [(3 * n) ** -0.5 for n in (n_inputs, shapes[1][1] - 1)]
    weights = [
        rng.standard_normal(shape).ravel() * scale
        for shape, scale in zip(shapes, scales, strict=True)
    ]
    return np.concatenate(weights)


@dataclass(frozen=True)
class _Setting:
    """What all runs share; numbers as plain floats, which leave an array's type as it is."""

    sigma: float  # the noise's standard deviation, σC
    clip_norm: float
    sampling_rate: float
    steps: int
    step_size: float  # learning rate over the public divisor
    n_inputs: int  # as given, without the bias
    shapes: tuple[tuple[int, int], tuple[int, int]]  # of the layers' weights, biases included
    activation: str


@dataclass(frozen=True)
class _Points:
    """Examples as the products need them, a row or a column each."""

    inputs: np.ndarray  # (points, inputs + 1), ending in 1 for the bias, in any basis
    targets: np.ndarray  # (classes, points) 1 at the label, else 0
    squares: np.ndarray  # (points,) squared lengths of the inputs


@dataclass(frozen=True)
class _World:
    """What all runs have in common."""

    points: _Points  # all of them, as given
    known: _Points  # in the basis that is used
    directions: np.ndarray | None  # (inputs + 1, known) orthonormal columns; None: as given
    setting: _Setting
    initial: np.ndarray | None  # (d,) weights; None: each run has its own


@dataclass(frozen=True)
class _Runs:
    """The runs trained together; ``parameters`` and ``noise`` are changed in place."""

    rows: slice
    candidates: _Points  # with a leading axis of runs
    places: np.ndarray  # (runs,)
    alike: np.ndarray  # (runs, n) inner products of the candidates' inputs with the target's
    parameters: np.ndarray  # (runs, d)
    members: np.ndarray  # (runs, steps, known + 1)
    sources: list[np.random.SFC64]  # of noise, one a run
    noise: np.ndarray  # (runs, steps in advance, d)


@dataclass(frozen=True)
class _Factors:
    """Gradients of many points: in each layer the product of an error and an input."""

    hidden_errors: np.ndarray  # (runs, units, points)
    inputs: np.ndarray  # (points, inputs + 1), or with a leading axis of runs
    output_errors: np.ndarray  # (runs, classes, points)
    hidden: np.ndarray  # (runs, units + 1, points)
    squared_norms: np.ndarray  # (runs, points), before clipping


def _in_span(known_inputs: np.ndarray, n_more: int) -> tuple[np.ndarray, np.ndarray]:
    """Write the known points in a basis of their span.

    Returns:
        (known, known + n_more) coordinates, 0 in the last ones, which are for points to come; and
        (inputs + 1, known) the basis.
    """
    directions, upper = np.linalg.qr(known_inputs.T.astype(np.float64))
    dtype = known_inputs.dtype
    return np.pad(upper.T, ((0, 0), (0, n_more))).astype(dtype), directions.astype(dtype)


def _candidates_in_span(inputs: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Write each run's candidates in the known points' basis and as many directions of their own.

    Args:
        inputs: (runs, n, inputs + 1) as given.
        directions: (inputs + 1, known).

    Returns:
        (runs, n, known + n) coordinates.
    """
    flat = inputs.reshape(-1, inputs.shape[2])  # one product for all runs
    inside = flat @ directions
    outside = (flat - inside @ directions.T).reshape(inputs.shape)
    upper = np.linalg.qr(outside.transpose(0, 2, 1), mode="r")
    return np.concatenate([inside.reshape(*inputs.shape[:2], -1), upper.transpose(0, 2, 1)], axis=2)


def _begin(rows: slice, candidates: np.ndarray, world: _World, sequence) -> _Runs:
    """Draw all that is drawn before the first step, each run from its own streams."""
    setting, dtype = world.setting, world.points.inputs.dtype
    places, parameters, members, sources = [], [], [], []
    for run in range(rows.start, rows.stop):
        names = ("target", "initialisation", "batches")
        rngs = {name: np.random.default_rng(_stream(sequence, name, run)) for name in names}
        places.append(rngs["target"].integers(candidates.shape[1]))
        weights = world.initial
        if weights is None:
            weights = initial_weights(setting.shapes, rngs["initialisation"], setting.n_inputs)
        parameters.append(weights.astype(dtype))
        draws = rngs["batches"].random((setting.steps, len(world.known.inputs) + 1))
        members.append(draws < setting.sampling_rate)
        sources.append(np.random.SFC64(_stream(sequence, "noise", run)))
    inputs = world.points.inputs[candidates]
    if world.directions is not None:
        inputs = _candidates_in_span(inputs, world.directions)
    in_advance = min(setting.steps, max(1, NOISE_BLOCK // parameters[0].size))
    return _Runs(
        rows=rows,
        candidates=_points(inputs, _targets_of(world.points, candidates)),
        places=np.array(places),
        alike=np.einsum("rni,ri->rn", inputs, inputs[np.arange(len(places)), places]),
        parameters=np.array(parameters),
        members=np.array(members),
        sources=sources,
        noise=np.empty((len(places), in_advance, parameters[0].size), dtype),
    )


def _step(step: int, runs: _Runs, world: _World, on_release) -> tuple:
    """One release of each run, what it says of the candidates, and the update.

    Returns:
        Three arrays (runs, n): inner products with the residual, squared norms, inner products with
        the target's gradient; all of clipped gradients.
    """
    setting = world.setting
    members = runs.members[:, step]
    drawn = members[:, -1]
    factors, released = _candidates_and_known_sum(runs, world, members[:, :-1])
    ordinary = released.copy() if on_release is not None else None
    scale = _clip_factors(factors, setting)
    noise = _noise(runs, step, setting)
    _add_targets(released, factors, scale, runs.places, drawn, setting)
    released += noise
    if on_release is not None:
        on_release(Release(step, runs.rows, runs.parameters, released, ordinary, members))
    # Released less ordinary is the noise, and the target's gradient where it was drawn.
    target_products = _target_products(factors, scale, runs)
    products = scale * _inner_products(noise, factors, setting) + drawn[:, None] * target_products
    released *= setting.step_size
    runs.parameters[...] -= released
    return products, scale**2 * factors.squared_norms, target_products


def _noise(runs: _Runs, step: int, setting: _Setting) -> np.ndarray:
    """(runs, d) this step's noise, N(0, σ²C²); drawn a few steps at a time."""
    in_advance = runs.noise.shape[1]
    if step % in_advance == 0:
        for source, numbers in zip(runs.sources, runs.noise, strict=True):
            _fill_normal(source, setting.sigma, numbers.reshape(-1))
    return runs.noise[:, step % in_advance]


def _candidates_and_known_sum(
    runs: _Runs, world: _World, members: np.ndarray
) -> tuple[_Factors, np.ndarray]:
    """The candidates' gradients, and (runs, d) the clipped ones of the known points in the batch.

    Small batches go through the network together with the candidates.
    """
    setting = world.setting
    if setting.sampling_rate >= DENSE_SAMPLING_RATE:
        known = _factors(runs.parameters, world.known, setting)
        total = _clipped_sum(known, members, setting)
        return _factors(runs.parameters, runs.candidates, setting), total
    index, weights = _padded(members)
    batch = world.known.inputs[index], _targets_of(world.known, index), world.known.squares[index]
    points = _Points(
        np.concatenate([runs.candidates.inputs, batch[0]], axis=1),
        np.concatenate([runs.candidates.targets, batch[1]], axis=2),
        np.concatenate([runs.candidates.squares, batch[2]], axis=1),
    )
    factors = _factors(runs.parameters, points, setting)
    n = runs.candidates.squares.shape[1]
    total = _clipped_sum(_part(factors, slice(n, None)), weights, setting)
    return _part(factors, slice(n)), total


def _clipped_sum(factors: _Factors, weights: np.ndarray, setting: _Setting) -> np.ndarray:
    """(runs, d) clipped gradients, times (runs, points) weights, added up."""
    weights = _clip_factors(factors, setting) * weights
    (units, n_inputs), (classes, n_hidden) = setting.shapes
    total = np.empty((len(weights), units * n_inputs + classes * n_hidden), weights.dtype)
    hidden, output = _layers(total, setting)
    errors = factors.hidden_errors * weights[:, None]
    if factors.inputs.ndim == 2:  # one product for all runs
        hidden[...] = (errors.reshape(-1, errors.shape[2]) @ factors.inputs).reshape(hidden.shape)
    else:
        np.matmul(errors, factors.inputs, out=hidden)
    errors = factors.output_errors * weights[:, None]
    np.matmul(errors, factors.hidden.transpose(0, 2, 1), out=output)
    return total


def _part(factors: _Factors, points: slice) -> _Factors:
    """Some of the points, where each run has its own."""
    return _Factors(
        factors.hidden_errors[:, :, points],
        factors.inputs[:, points],
        factors.output_errors[:, :, points],
        factors.hidden[:, :, points],
        factors.squared_norms[:, points],
    )


def _padded(members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Batches of unequal size as rows of one length.

    Args:
        members: (runs, points) who is in.

    Returns:
        (runs, largest batch) indices of the members, then zeros; and 1 for members, 0 for the rest.
    """
    run, point = np.nonzero(members)
    sizes = members.sum(axis=1)
    place = np.arange(run.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    index = np.zeros((len(members), sizes.max()), dtype=int)
    index[run, place] = point
    return index, np.arange(index.shape[1]) < sizes[:, None]


def _points(inputs: np.ndarray, targets: np.ndarray) -> _Points:
    return _Points(inputs, targets, np.einsum("...i,...i->...", inputs, inputs))


def _targets_of(points: _Points, index: np.ndarray) -> np.ndarray:
    """(runs, classes, chosen) targets of each run's own choice, by (runs, chosen) indices."""
    return points.targets.T[index].transpose(0, 2, 1)


def _factors(parameters: np.ndarray, points: _Points, setting: _Setting) -> _Factors:
    """Forward and backward pass of each run's network, point by point."""
    first, second = _layers(parameters, setting)
    function, derivative = ACTIVATIONS[setting.activation]
    value = function(_times(first, points.inputs))
    hidden = np.concatenate([value, np.ones_like(value[:, :1])], axis=1)
    outputs = second @ hidden
    outputs -= outputs.max(axis=1, keepdims=True)
    np.exp(outputs, out=outputs)
    outputs /= outputs.sum(axis=1, keepdims=True)
    outputs -= points.targets  # the derivative of the cross-entropy
    errors = second[:, :, :-1].transpose(0, 2, 1) @ outputs
    errors *= derivative(value)
    squares = _squares(errors) * points.squares + _squares(outputs) * _squares(hidden)
    return _Factors(errors, points.inputs, outputs, hidden, squares)


def _times(weights: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """(runs, units, points): weights (runs, units, inputs) times common or each run's points."""
    if inputs.ndim == 2:  # one product for all runs
        flat = weights.reshape(-1, weights.shape[2]) @ inputs.T
        return flat.reshape(*weights.shape[:2], len(inputs))
    return weights @ inputs.transpose(0, 2, 1)


def _squares(vectors: np.ndarray) -> np.ndarray:
    """Squared lengths along the middle axis."""
    return np.einsum("rup,rup->rp", vectors, vectors)


def _clip_factors(factors: _Factors, setting: _Setting) -> np.ndarray:
    """(runs, points) by what each gradient is multiplied, at most 1."""
    norms = np.sqrt(factors.squared_norms)
    return setting.clip_norm / np.maximum(norms, setting.clip_norm)


def _layers(flat: np.ndarray, setting: _Setting) -> tuple[np.ndarray, np.ndarray]:
    """Views of (runs, d) vectors as both layers' weights."""
    (units, inputs), output = setting.shapes
    size = units * inputs
    return flat[:, :size].reshape(-1, units, inputs), flat[:, size:].reshape(-1, *output)


def _add_targets(released, factors: _Factors, scale, places, drawn, setting: _Setting) -> None:
    """Add the target's clipped gradient to the sum of each run that drew it."""
    hidden, output = _layers(released, setting)
    for run in np.flatnonzero(drawn):
        at = run, slice(None), places[run]
        factor = scale[run, places[run]]
        hidden[run] += np.outer(
            factor * factors.hidden_errors[at], factors.inputs[run, places[run]]
        )
        output[run] += np.outer(factor * factors.output_errors[at], factors.hidden[at])


def _inner_products(vectors: np.ndarray, factors: _Factors, setting: _Setting) -> np.ndarray:
    """(runs, points) of vectors (runs, d) with each point's gradient, not clipped."""
    hidden, output = _layers(vectors, setting)
    return np.einsum("rup,rup->rp", _times(hidden, factors.inputs), factors.hidden_errors) + (
        np.einsum("rcp,rcp->rp", output @ factors.hidden, factors.output_errors)
    )


def _target_products(factors: _Factors, scale: np.ndarray, runs: _Runs) -> np.ndarray:
    """(runs, n) inner products of the candidates' clipped gradients with the target's."""
    number = np.arange(len(runs.places))

    def with_target(vectors):
        return np.einsum("rup,ru->rp", vectors, vectors[number, :, runs.places])

    products = with_target(factors.hidden_errors) * runs.alike
    products += with_target(factors.output_errors) * with_target(factors.hidden)
    return products * scale * scale[number, runs.places][:, None]


def _fill_normal(source: np.random.SFC64, sigma: float, out: np.ndarray) -> None:
    """Fill a vector with numbers from N(0, σ²) by the method of Box and Muller.

    Several times as fast as NumPy's own normal numbers, and noise is most of a run's cost where q
    is small. 32 random bits each for angle and radius: no number beyond 6.8σ, steps of float32.
    """
    half = (out.size + 1) // 2
    angle, radius = source.random_raw(half).view(np.int32).reshape(2, half).astype(np.float32)
    np.abs(radius, out=radius)
    radius += np.float32(0.5)  # never 0; all but 0 are hit from both signs
    radius *= np.float32(2**-31)
    np.log(radius, out=radius)
    radius *= np.float32(-2 * sigma**2)
    np.sqrt(radius, out=radius)
    angle *= np.float32(math.pi * 2**-31)
    np.multiply(np.cos(angle), radius, out=out[:half])
    np.multiply(np.sin(angle[: out.size - half]), radius[: out.size - half], out=out[half:])


def _accuracy(parameters: np.ndarray, world: _World) -> np.ndarray:
    """(runs,) share of the known points classified rightly."""
    first, second = _layers(parameters, world.setting)
    points = world.known
    value = ACTIVATIONS[world.setting.activation][0](_times(first, points.inputs))
    outputs = second[:, :, :-1] @ value + second[:, :, -1:]
    return np.mean(outputs.argmax(axis=1) == points.targets.argmax(axis=0), axis=1)


# ---------------------------------------------------------------------------------- helpers


def _stream(sequence: np.random.SeedSequence, purpose: str, *run: int) -> np.random.SeedSequence:
    """A child for one purpose. Unlike ``spawn``, it leaves its parent as it was."""
    key = (*sequence.spawn_key, PURPOSES.index(purpose), *run)
    return np.random.SeedSequence(sequence.entropy, spawn_key=key, pool_size=sequence.pool_size)


def _blocks(n_runs: int, numbers_a_run: int, block: int = BLOCK) -> Iterator[slice]:
    """Slices of runs that hold at most ``block`` numbers each, but at least one run."""
    size = max(1, block // numbers_a_run)
    for start in range(0, n_runs, size):
        yield slice(start, min(start + size, n_runs))


def _joined(outcomes: list[Outcome]) -> Outcome:
    names = ("choices", "correct", "masses")
    return Outcome(*(np.concatenate([getattr(o, name) for o in outcomes]) for name in names))


def _checked_points(inputs: np.ndarray, labels: np.ndarray, n_classes: int) -> _Points:
    """Examples of :func:`train` as the products need them, with a 1 for the bias."""
    inputs, labels = np.asarray(inputs), np.asarray(labels)
    if inputs.dtype not in (np.float32, np.float64) or inputs.ndim != 2 or 0 in inputs.shape:
        raise WorkbookError(
            f"inputs are {inputs.dtype} of shape {inputs.shape}; allowed: float32 or float64 of "
            "shape (points, inputs), neither 0"
        )
    if not np.isfinite(inputs).all():
        bad = int(np.argmin(np.isfinite(inputs).all(axis=1)))
        raise WorkbookError(
            f"inputs are not finite (first at point {bad}); allowed: finite numbers"
        )
    if labels.shape != inputs.shape[:1] or labels.dtype.kind not in "iu":
        raise WorkbookError(
            f"labels are {labels.dtype} of shape {labels.shape}; allowed: integers of shape "
            f"{inputs.shape[:1]}"
        )
    if not ((labels >= 0) & (labels < n_classes)).all():
        raise WorkbookError(
            f"labels run from {labels.min()} to {labels.max()}; allowed: 0 to {n_classes - 1} "
            f"(n_classes = {n_classes})"
        )
    extended = np.concatenate([inputs, np.ones_like(inputs[:, :1])], axis=1)
    targets = (labels == np.arange(n_classes)[:, None]).astype(inputs.dtype)
    return _points(extended, targets)


def _checked_indices(known, candidates, n_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Refuse indices that name no point, or the same point twice."""
    known, candidates = np.asarray(known), np.asarray(candidates)
    for name, index, axes in (
        ("known", known, "(known,)"),
        ("candidates", candidates, "(runs, n)"),
    ):
        if index.ndim != len(axes.split()) or index.size == 0 or index.dtype.kind not in "iu":
            raise WorkbookError(
                f"{name} are {index.dtype} of shape {index.shape}; allowed: integers of shape "
                f"{axes}, at least 1"
            )
        if not ((index >= 0) & (index < n_points)).all():
            raise WorkbookError(
                f"{name} run from {index.min()} to {index.max()}; allowed: indices from 0 to "
                f"{n_points - 1}"
            )
        in_order = np.sort(index, axis=-1)
        again = in_order[..., 1:][in_order[..., 1:] == in_order[..., :-1]]
        if again.size:
            raise WorkbookError(f"{name} hold point {again[0]} twice; allowed: different points")
    both = np.intersect1d(known, candidates)
    if both.size:
        raise WorkbookError(
            f"candidates hold point {both[0]}, which is known; allowed: points that are not known"
        )
    return known, candidates


def _checked_initial(initial, basis: str, setting: _Setting) -> np.ndarray | None:
    if initial is None:
        return None
    if basis != "inputs":
        raise WorkbookError(f"initial with basis = {basis!r}; allowed: basis = 'inputs'")
    initial = np.asarray(initial)
    size = sum(math.prod(shape) for shape in setting.shapes)
    if initial.shape != (size,) or not np.isfinite(initial).all():
        raise WorkbookError(
            f"initial of shape {initial.shape}; allowed: {size} finite numbers, the network's "
            "weights"
        )
    return initial


def _check_noise(noise_multiplier: float, *, zero_allowed: bool) -> None:
    """Refuse noise that is not a number, or none at all where it is divided by."""
    enough = noise_multiplier >= 0 if zero_allowed else noise_multiplier > 0
    if not (math.isfinite(noise_multiplier) and enough):
        least = "of at least 0" if zero_allowed else "greater than 0"
        raise WorkbookError(
            f"noise_multiplier = {noise_multiplier}; allowed: a finite number {least}"
        )


def _check_numbers(**numbers: float) -> None:
    others = {
        "sampling_rate": (lambda x: 0 < x <= 1, "a number in (0, 1]"),
        "clip_norm": (lambda x: x > 0, "a finite number greater than 0"),
        "learning_rate": (lambda x: x > 0, "a finite number greater than 0"),
    }
    whole = (lambda x: x == int(x) >= 1, "a whole number of at least 1")
    for name, value in numbers.items():
        test, description = others.get(name, whole)
        if isinstance(value, bool) or not (math.isfinite(value) and test(value)):
            raise WorkbookError(f"{name} = {value}; allowed: {description}")
