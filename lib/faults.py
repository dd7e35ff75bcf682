"""An audit as a test: DP-SGD implementations with faults that real projects had.

A faulty implementation trains without complaint and reports the ε of a right one. Here a tiny
network is trained by a small trainer of its own, whose faults can be switched on one by one, and
each is audited in the way that suits it. The claimed ε is that of the right implementation. A fault
is *detected* where a lower bound on ε exceeds the claim.

Two things differ from an audit that measures how tight a right implementation is
(:mod:`lib.canaries`), since a fault would hide otherwise:

- canaries enter before the clip, as examples whose gradient is far longer than C and spread over
  all layers;
- the ordinary examples' part of a release is taken off as *right* code gives it, recomputed by
  hand from the weights (:func:`clipped_sum_by_hand`), not as the audited code reports it.

One run with many canaries tests whether training leaks who was in (Steinke et al.,
arXiv:2305.08846). A fault that shows in the scale of a release, not along any canary, takes many
runs on two neighbouring training sets (:func:`detect_by_pairs`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import special

from lib import audited_run, canaries, intervals, one_run
from lib.errors import WorkbookError

if TYPE_CHECKING:
    import torch

RIGHT = "none"
PAIR_FAULT = "data_dependent_divisor"  # the one that two training sets show and one run does not


@dataclass(frozen=True)
class Fault:
    """What an implementation does wrong, how an auditor who suspects it looks, what to expect."""

    meaning: str
    score: str  # of SCORES
    note: str


SCORES = {
    "likelihood_ratio": "sum over steps of the log-likelihood ratio of a release along the canary, "
    "for the suspected signal and noise",
    "own_step": "sum of the releases along the canary at the steps the known order gives it",
    "step_differences": "sum of absolute differences along the canary from step to step, in which "
    "equal noise cancels",
    "last_layer": "largest release along the canary's part in the last layer",
}
FAULTS = {
    "noise_over_batch_size": Fault(
        "noise divided by the batch size once too often: standard deviation σC/B on the sum",
        "likelihood_ratio",
        "Seen: next to no noise is left.",
    ),
    "noise_over_root_batch_size": Fault(
        "noise averaged as if each example had its own: standard deviation σC/√B on the sum",
        "likelihood_ratio",
        "Seen for batches this large; B = 2 would be the factor √2 below.",
    ),
    "noise_without_clip_norm": Fault(
        "standard deviation σ on the sum instead of σC",
        "likelihood_ratio",
        "Seen because C is larger than 1 here. At C = 1 the code is right, and below it adds too "
        "much noise, which costs accuracy and no audit of privacy can object to.",
    ),
    "noise_halved": Fault(
        "noise calibrated for half the sensitivity: standard deviation σC/2 on the sum",
        "likelihood_ratio",
        "Seen in most runs: the bound of one run is far below the true ε, and this fault is about "
        "the smallest that outweighs it.",
    ),
    "noise_over_root_two": Fault(
        "standard deviation σC/√2 on the sum",
        "likelihood_ratio",
        "Missed by most runs: the true ε exceeds the claim, but the bound of one run is so far "
        "below the truth that it does not. More canaries narrow the gap.",
    ),
    "clip_per_batch": Fault(
        "the batch's mean gradient is clipped to C, noise is σC/B on the mean",
        "likelihood_ratio",
        "Seen: one example can fill the whole clip, B times what the noise is made for.",
    ),
    "clip_per_batch_full_noise": Fault(
        "the batch's summed gradient is clipped to C, noise is σC on the sum",
        "likelihood_ratio",
        "Missed by any run with many canaries: those of a batch share one clip, so each moves the "
        "release by less than C. A single far-off example turns the clipped sum around, by up to "
        "2C, twice what is accounted for; to see that takes one canary a run, and so many runs.",
    ),
    "clip_per_layer": Fault(
        "each layer is clipped to C by itself: up to √(number of layers)·C in all",
        "likelihood_ratio",
        "Seen because the canaries are spread over all layers and there are six. Canaries of one "
        "layer would show nothing, and two layers would give the factor √2 above.",
    ),
    PAIR_FAULT: Fault(
        "the sum is divided by floor(q·n) of the training set at hand",
        "likelihood_ratio",
        "Missed by one run: the divisor says how many members there are, not which, and with "
        "hundreds of coins in the air that number tells next to nothing of any one of them. Two "
        "neighbouring training sets on both sides of a whole number q·n differ in the scale of "
        "their noise and are told apart without fail.",
    ),
    "shuffled_batches": Fault(
        "fixed batches from one shuffle, accounted as Poisson samples",
        "own_step",
        "Seen by an auditor who knows the order: without secret sampling there is no "
        "amplification. One who does not know it sees less (arXiv:2411.10614).",
    ),
    "repeated_noise": Fault(
        "the noise generator is seeded anew at each step: the same noise every time",
        "step_differences",
        "Seen: the difference of two steps holds no noise at all.",
    ),
    "no_noise_on_last_layer": Fault(
        "the last layer's gradient is released without noise",
        "last_layer",
        "Seen: there, a single participation is in plain sight.",
    ),
}

# ------------------------------------------------------------------------------- the network

IMAGE_SIDE = 6  # images are averaged down to this many pixels a side, in grey
WIDTHS = (IMAGE_SIDE**2, 40, 40, 40, 40, 100, 10)  # every layer has room for 1,000 canaries
LAYER_SIZES = tuple((n_in + 1) * n_out for n_in, n_out in itertools.pairwise(WIDTHS))
LAYER_ENDS = tuple(itertools.accumulate(LAYER_SIZES))
LAYERS = tuple(
    slice(end - size, end) for size, end in zip(LAYER_SIZES, LAYER_ENDS, strict=True)
)  # of the flat weights; a layer's matrix, row by row, then its biases
N_LAYERS, N_PARAMETERS = len(LAYERS), sum(LAYER_SIZES)
# Raw length of a canary's gradient in clip norms: a batch's other gradients are far shorter.
CANARY_LENGTH = 100.0


@dataclass(frozen=True)
class Setting:
    """One mechanism as it is claimed, the same for the right implementation and every fault."""

    noise_multiplier: float  # σ
    clip_norm: float  # C
    sampling_rate: float  # q
    steps: int  # T
    learning_rate: float
    expected_batch_size: float  # B, the public divisor

    @property
    def n_batches(self) -> int:
        """Batches of one pass over shuffled data."""
        return round(1 / self.sampling_rate)


@dataclass(frozen=True)
class Planted:
    """Canaries: one coordinate in each layer, all their own, so that they are orthogonal."""

    included: np.ndarray  # (m,) booleans, the coins
    places: np.ndarray  # (m, layers) coordinates of the flat gradient
    signs: np.ndarray  # (m, layers) of ±1

    def gradients(self, which: np.ndarray, length: float) -> np.ndarray:
        """(k, d) float32 unclipped gradients of canaries ``which``, each of norm ``length``."""
        rows = np.zeros((which.size, N_PARAMETERS), dtype=np.float32)
        part = self.signs[which] * length / math.sqrt(N_LAYERS)
        np.put_along_axis(rows, self.places[which], part.astype(np.float32), axis=1)
        return rows


@dataclass(frozen=True)
class Release:
    """One step as an auditor sees it, who may know all but the coins, the noise and who was drawn.

    ``batch`` holds ordinary examples alone: they are drawn independently of the coins.
    """

    step: int
    weights: np.ndarray  # (d,) float32, before the step
    batch: np.ndarray  # (b,) positions of the ordinary examples in the batch
    gradient: np.ndarray  # (d,) float32, the released mean gradient


def plant(
    n_canaries: int, *, coin_rng: np.random.Generator, place_rng: np.random.Generator
) -> Planted:
    """Toss the coins and choose the coordinates.

    Args:
        n_canaries: m, at most the smallest layer's number of parameters; 0 for none.
        coin_rng: memberships.
        place_rng: coordinates and signs, which the auditor knows.

    Raises:
        WorkbookError: for more canaries than a layer has room for.
    """
    if not 0 <= n_canaries <= min(LAYER_SIZES):
        raise WorkbookError(
            f"n_canaries = {n_canaries}; allowed: 0 to {min(LAYER_SIZES)}, the parameters of the "
            "smallest layer"
        )
    places = [
        layer.start + place_rng.permutation(layer.stop - layer.start)[:n_canaries]
        for layer in LAYERS
    ]
    return Planted(
        included=coin_rng.random(n_canaries) < 0.5,
        places=np.stack(places, axis=1),
        signs=place_rng.choice([-1.0, 1.0], (n_canaries, N_LAYERS)),
    )


def initial_weights(rng: np.random.Generator) -> np.ndarray:
    """(d,) float32: normal with variance 2/inputs (He et al., arXiv:1502.01852), biases 0."""
    weights = np.zeros(N_PARAMETERS, dtype=np.float32)
    for layer, n_in in zip(LAYERS, WIDTHS, strict=False):
        n_matrix = (layer.stop - layer.start) * n_in // (n_in + 1)
        draws = rng.standard_normal(n_matrix) * math.sqrt(2 / n_in)
        weights[layer.start : layer.start + n_matrix] = draws
    return weights


def shrink(images: np.ndarray) -> np.ndarray:
    """Images as the network takes them: averaged to 6 × 6 grey pixels in [−1, 1], flat.

    Args:
        images: (n, height, width, channels) uint8.

    Returns:
        (n, 36) float32.
    """
    import torch

    from lib import models

    grey = models.normalise(images).mean(dim=1, keepdim=True)
    return torch.nn.functional.adaptive_avg_pool2d(grey, IMAGE_SIDE).flatten(1).numpy()


# -------------------------------------------------------------------------------- the trainer


def train(
    fault: str,
    setting: Setting,
    inputs: np.ndarray,
    labels: np.ndarray,
    planted: Planted,
    *,
    weights: np.ndarray,
    slots: np.ndarray | None = None,
    batch_rng: np.random.Generator,
    noise_generator: torch.Generator,
) -> Iterator[Release]:
    """DP-SGD (Abadi et al., arXiv:1607.00133) with one fault, a release at a time.

    Args:
        fault: a name in ``FAULTS``, or ``RIGHT``.
        setting: the mechanism as claimed.
        inputs: (n, 36) float32 ordinary examples.
        labels: (n,) integer classes.
        planted: the canaries; those that are in are examples like the others.
        weights: (d,) float32 to start from; not changed.
        slots: (n + m,) each example's batch in a pass, examples before canaries; needed by
            ``"shuffled_batches"`` alone.
        batch_rng: draws the Poisson samples.
        noise_generator: draws the noise, on the processor.

    Yields:
        One release a step, ``setting.steps`` in all.

    Raises:
        WorkbookError: for an unknown fault, missing slots, or a training that diverges.
    """
    import torch

    check_fault(fault)
    if fault == "shuffled_batches" and slots is None:
        raise WorkbookError("slots = None; allowed: each example's batch, with shuffled_batches")
    n, initial_state = len(inputs), noise_generator.get_state()
    members = np.concatenate([np.ones(n, dtype=bool), planted.included])
    divisor = setting.expected_batch_size
    if fault == PAIR_FAULT:
        divisor = max(1, math.floor(setting.sampling_rate * members.sum()))
    current = torch.from_numpy(weights.copy())
    for step in range(setting.steps):
        if fault == "shuffled_batches":
            drawn = slots == step % setting.n_batches
        else:
            drawn = batch_rng.random(members.size) < setting.sampling_rate
        batch, canary_batch = (np.flatnonzero(part) for part in np.split(drawn & members, [n]))
        ordinary = _per_example_gradients(current, inputs[batch], labels[batch])
        planted_gradients = planted.gradients(canary_batch, CANARY_LENGTH * setting.clip_norm)
        gradients = torch.cat([ordinary, torch.from_numpy(planted_gradients)])
        if fault == "repeated_noise":
            noise_generator.set_state(initial_state)
        noise = torch.randn(N_PARAMETERS, generator=noise_generator) * noise_std(fault, setting)
        if fault == "no_noise_on_last_layer":
            noise[LAYERS[-1]] = 0
        released = (clipped_sum(fault, setting, gradients) + noise) / divisor
        if not torch.isfinite(released).all():
            raise WorkbookError(
                f"training diverged: step {step} released a gradient that is not finite; lower "
                "learning_rate"
            )
        yield Release(step, current.numpy().copy(), batch, released.numpy())
        current -= setting.learning_rate * released


def noise_std(fault: str, setting: Setting) -> float:
    """Standard deviation of the noise on the summed gradient: σC, if it is done right."""
    right = setting.noise_multiplier * setting.clip_norm
    return {
        "noise_over_batch_size": right / setting.expected_batch_size,
        "noise_over_root_batch_size": right / math.sqrt(setting.expected_batch_size),
        "noise_without_clip_norm": setting.noise_multiplier,
        "noise_halved": right / 2,
        "noise_over_root_two": right / math.sqrt(2),
    }.get(fault, right)


def clipped_sum(fault: str, setting: Setting, gradients: torch.Tensor) -> torch.Tensor:
    """(d,) sum of (k, d) per-example gradients, each clipped to C over all layers, if done right.

    For ``"clip_per_batch"`` it is B times the clipped mean.
    """
    import torch

    clip_norm = setting.clip_norm
    if fault == "clip_per_batch":
        mean = gradients.sum(dim=0) / setting.expected_batch_size
        return _shorten(mean, clip_norm) * setting.expected_batch_size
    if fault == "clip_per_batch_full_noise":
        return _shorten(gradients.sum(dim=0), clip_norm)
    if fault == "clip_per_layer":
        parts = [_shorten(gradients[:, layer], clip_norm) for layer in LAYERS]
        return torch.cat(parts, dim=1).sum(dim=0)
    return _shorten(gradients, clip_norm).sum(dim=0)


def _shorten(vectors: torch.Tensor, length: float) -> torch.Tensor:
    """Vectors along the last axis, those longer than ``length`` brought down to it."""
    norms = vectors.norm(dim=-1, keepdim=True)
    return vectors * (length / norms.clamp(min=length))


def _per_example_gradients(
    weights: torch.Tensor, inputs: np.ndarray, labels: np.ndarray
) -> torch.Tensor:
    """(k, d) gradients of each example's cross-entropy, by automatic differentiation.

    Of the layers' outputs, that is: with the layer's inputs they make the weights' gradients.
    """
    import torch

    values = torch.from_numpy(inputs)
    layer_inputs, outputs = [], []
    for i, part in enumerate(weights.split(LAYER_SIZES)):
        matrix, biases = part.split([WIDTHS[i] * WIDTHS[i + 1], WIDTHS[i + 1]])
        layer_inputs.append(values.detach())
        values = torch.nn.functional.linear(values, matrix.view(-1, WIDTHS[i]), biases)
        outputs.append(values if i else values.requires_grad_())
        values = torch.relu(values)
    loss = torch.nn.functional.cross_entropy(outputs[-1], torch.from_numpy(labels), reduction="sum")
    errors = torch.autograd.grad(loss, outputs)
    parts = [
        part
        for error, layer_input in zip(errors, layer_inputs, strict=True)
        for part in ((error[:, :, None] * layer_input[:, None, :]).flatten(1), error)
    ]
    return torch.cat(parts, dim=1)


# -------------------------------------------------------------------------------- the auditor


def clipped_sum_by_hand(
    weights: np.ndarray, inputs: np.ndarray, labels: np.ndarray, *, clip_norm: float
) -> np.ndarray:
    """What a right implementation adds up over ordinary examples, without the trainer's code.

    Backpropagation written out. An example's gradient in a layer is the outer product of its error
    and the layer's input, so its norm is the product of theirs, and no gradient of a single example
    is ever formed (Goodfellow, arXiv:1510.01799).

    Args:
        weights: (d,).
        inputs: (b, 36); b = 0 gives zeros.
        labels: (b,).
        clip_norm: C.

    Returns:
        (d,) float64.
    """
    matrices, layer_inputs = [], []
    values = inputs.astype(float)
    for i, layer in enumerate(LAYERS):
        matrix = weights[layer].astype(float)
        n_out = WIDTHS[i + 1]
        biases = matrix[-n_out:]
        matrices.append(matrix[:-n_out].reshape(n_out, WIDTHS[i]))
        layer_inputs.append(values)
        outputs = values @ matrices[-1].T + biases
        values = np.maximum(outputs, 0)
    error = special.softmax(outputs, axis=1)
    error[np.arange(len(labels)), labels] -= 1
    errors = [error]
    for matrix, before in zip(matrices[:0:-1], layer_inputs[:0:-1], strict=True):
        errors.insert(0, (errors[0] @ matrix) * (before > 0))
    pairs = list(zip(errors, layer_inputs, strict=True))
    # A bias is a weight whose input is 1.
    squares = sum((e**2).sum(axis=1) * ((v**2).sum(axis=1) + 1) for e, v in pairs)
    scale = clip_norm / np.maximum(np.sqrt(squares), clip_norm)
    sums = [((scale[:, None] * e).T @ v, scale @ e) for e, v in pairs]
    return np.concatenate([part.ravel() for both in sums for part in both])


@dataclass(frozen=True)
class Evidence:
    """Releases along each canary in clip norms, ordinary part off: 1 where a right one holds it."""

    along: np.ndarray  # (steps, m) over all layers
    along_last: np.ndarray  # (steps, m) from the last layer alone


def observe(
    releases: Iterable[Release],
    setting: Setting,
    inputs: np.ndarray,
    labels: np.ndarray,
    planted: Planted,
) -> Evidence:
    """Watch a whole training run.

    Args:
        releases: of :func:`train`.
        setting: the mechanism as claimed.
        inputs, labels: the ordinary examples.
        planted: the canaries; their coins are not looked at.
    """
    along, along_last = [], []
    for release in releases:
        residual = release.gradient * setting.expected_batch_size - clipped_sum_by_hand(
            release.weights,
            inputs[release.batch],
            labels[release.batch],
            clip_norm=setting.clip_norm,
        )
        parts = residual[planted.places] * planted.signs / setting.clip_norm
        along.append(parts.sum(axis=1) / math.sqrt(N_LAYERS))
        along_last.append(parts[:, -1] * math.sqrt(N_LAYERS))
    return Evidence(np.array(along), np.array(along_last))


def score(fault: str, setting: Setting, evidence: Evidence, canary_slots: np.ndarray) -> np.ndarray:
    """Score the canaries as an auditor does who suspects ``fault``; see ``FAULTS`` and ``SCORES``.

    Args:
        fault: a name in ``FAULTS``.
        setting: the mechanism as claimed.
        evidence: from :func:`observe`.
        canary_slots: (m,) each canary's batch in a pass, if batches are fixed.

    Returns:
        (m,) numbers, larger where membership is likelier.
    """
    check_fault(fault)
    kind = FAULTS[fault].score
    if kind == "own_step":
        steps = np.arange(setting.steps)[:, None] % setting.n_batches
        return (evidence.along * (steps == canary_slots)).sum(axis=0)
    if kind == "step_differences":
        return np.abs(np.diff(evidence.along, axis=0)).sum(axis=0)
    if kind == "last_layer":
        return evidence.along_last.max(axis=0)
    signal = math.sqrt(N_LAYERS) if fault == "clip_per_layer" else 1.0
    return canaries.log_likelihood_ratio(
        evidence.along / signal,
        noise_multiplier=noise_std(fault, setting) / (setting.clip_norm * signal),
        sampling_rate=setting.sampling_rate,
    ).sum(axis=0)


# -------------------------------------------------------------------------------------- cells

SETTING = {
    "noise_multiplier": 1.0,
    "clip_norm": 4.0,
    "sampling_rate": 0.01,
    "steps": 100,
    "learning_rate": 0.01,
    "delta": 1e-5,
    "significance": 0.05,
}
# Settled on simulations of the idealised mechanism with half the noise; the same for every fault.
ONE_RUN = SETTING | {"n_ordinary": 2000, "n_canaries": 1000, "n_positive": 50, "n_negative": 0}
# The divisor shows in every release, so few steps do. q·n is 2, and with one example fewer below 2.
PAIRS = SETTING | {"steps": 5, "n_ordinary": 200, "n_runs": 100}


def one_run_cells(*, n_right: int, n_wrong: int, **changes) -> list[dict]:
    """Cells of :func:`detect`: runs of the right implementation, and of every faulty one.

    Args:
        n_right: runs without a fault, each judged by every test.
        n_wrong: runs of each fault, judged by its own test.
        changes: to ``ONE_RUN``.
    """
    return _cells((RIGHT, *FAULTS), n_right, n_wrong, ONE_RUN | changes)


def pair_cells(*, n_right: int, n_wrong: int, **changes) -> list[dict]:
    """Cells of :func:`detect_by_pairs`, likewise; ``changes`` are to ``PAIRS``."""
    return _cells((RIGHT, PAIR_FAULT), n_right, n_wrong, PAIRS | changes)


def _cells(faults: Iterable[str], n_right: int, n_wrong: int, common: dict) -> list[dict]:
    return [
        {"fault": fault, "run": run} | common
        for fault in faults
        for run in range(n_right if fault == RIGHT else n_wrong)
    ]


def detect(cell: dict, streams, dataset) -> list[dict]:
    """Train once with many canaries; one row a test.

    A faulty implementation is judged by the test for its fault, the right one by all of them: a
    test is worth nothing unless it lets the right one pass.

    Args:
        cell: of :func:`one_run_cells`.
        streams: :class:`lib.sweep.Streams` of the cell.
        dataset: :class:`lib.data.Dataset`, whose images are the ordinary examples.
    """
    from lib import models

    setting = _setting(cell)
    inputs, labels = _ordinary(cell["n_ordinary"], streams, dataset)
    n, m = cell["n_ordinary"], cell["n_canaries"]
    planted = plant(m, coin_rng=streams.generator("coins"), place_rng=streams.generator("places"))
    # Every example has a place in the order, in or out, so a coin moves nobody else.
    slots = streams.generator("order").permutation(n + m) % setting.n_batches
    releases = train(
        cell["fault"],
        setting,
        inputs,
        labels,
        planted,
        weights=initial_weights(streams.generator("initialisation")),
        slots=slots,
        batch_rng=streams.generator("batches"),
        noise_generator=models.generator(streams.sequence("noise")),
    )
    evidence = observe(releases, setting, inputs, labels, planted)
    tests = FAULTS if cell["fault"] == RIGHT else (cell["fault"],)
    return [
        _audit_row(
            cell,
            test,
            score(test, setting, evidence, slots[n:]),
            planted.included,
            streams.generator(f"ties {test}"),
        )
        for test in tests
    ]


def detect_by_pairs(cell: dict, streams, dataset) -> list[dict]:
    """Train many times on n examples and on n − 1 of them, and tell which by the noise; one row.

    The auditor guesses "n − 1" where the released gradients' root mean square is above the
    geometric mean of σC/⌊qn⌋ and σC/⌊q(n − 1)⌋, a rule that needs no run.

    Args:
        cell: of :func:`pair_cells`.
        streams, dataset: as in :func:`detect`.

    Raises:
        WorkbookError: for an n whose two divisors are equal.
    """
    setting = _setting(cell)
    n = cell["n_ordinary"]
    divisors = [math.floor(setting.sampling_rate * size) for size in (n, n - 1)]
    if divisors[0] == divisors[1] or divisors[1] < 1:
        raise WorkbookError(
            f"n_ordinary = {n}; allowed: a number whose floor of sampling_rate·n is greater than "
            f"that of one example fewer, and that one at least 1, not {divisors[0]} and "
            f"{divisors[1]}"
        )
    threshold = noise_std(RIGHT, setting) / math.sqrt(divisors[0] * divisors[1])
    inputs, labels = _ordinary(n, streams, dataset)
    n_smaller_guessed = [
        sum(
            _root_mean_square(cell["fault"], setting, inputs[:size], labels[:size], streams, run)
            > threshold
            for run in range(cell["n_runs"])
        )
        for size in (n, n - 1)
    ]
    counts = {
        "n_first": cell["n_runs"],
        "n_wrong_first": n_smaller_guessed[0],
        "n_second": cell["n_runs"],
        "n_wrong_second": cell["n_runs"] - n_smaller_guessed[1],
        "delta": cell["delta"],
        "significance": cell["significance"],
    }
    claim = _claim(cell, PAIR_FAULT)
    bound = one_run.epsilon_lower_bound_from_runs(**counts)
    return [claim | counts | _outcome(bound, claim["claimed_epsilon"])]


def _setting(cell: dict) -> Setting:
    return Setting(
        **{
            name: cell[name]
            for name in (
                "noise_multiplier",
                "clip_norm",
                "sampling_rate",
                "steps",
                "learning_rate",
            )
        },
        expected_batch_size=cell["sampling_rate"] * cell["n_ordinary"],
    )


def _ordinary(n: int, streams, dataset) -> tuple[np.ndarray, np.ndarray]:
    """(n, 36) inputs and (n,) labels of as many training images, chosen at random.

    Raises:
        WorkbookError: for more than there are.
    """
    n_images = len(dataset.train_images)
    if not 1 <= n <= n_images:
        raise WorkbookError(f"n_ordinary = {n}; allowed: 1 to {n_images}, the training images")
    chosen = streams.generator("images").permutation(n_images)[:n]
    return shrink(dataset.train_images[chosen]), dataset.train_labels[chosen]


def _root_mean_square(fault, setting, inputs, labels, streams, run: int) -> float:
    """Root mean square of all that one run without canaries releases."""
    from lib import models

    name = f"{len(inputs)} examples, run {run}"
    nobody = streams.generator("nobody")
    releases = train(
        fault,
        setting,
        inputs,
        labels,
        plant(0, coin_rng=nobody, place_rng=nobody),
        weights=initial_weights(streams.generator("initialisation")),
        batch_rng=streams.generator(f"batches, {name}"),
        noise_generator=models.generator(streams.sequence(f"noise, {name}")),
    )
    return math.sqrt(np.mean([np.mean(release.gradient**2) for release in releases]))


def _claim(cell: dict, test: str) -> dict:
    """What is audited, by which test, and what it claims."""
    mechanism = {
        name: cell[name] for name in ("noise_multiplier", "delta", "sampling_rate", "steps")
    }
    return {
        "fault": cell["fault"],
        "test": test,
        "run": cell["run"],
        "clip_norm": cell["clip_norm"],
        "n_ordinary": cell["n_ordinary"],
        **mechanism,
        "claimed_epsilon": (claimed := _claimed_epsilon(**mechanism)),
        "guarantee": claimed if cell["fault"] == RIGHT else None,
    }


@functools.cache
def _claimed_epsilon(**mechanism) -> float:
    from lib import accounting

    return accounting.epsilon(**mechanism)


def _audit_row(cell: dict, test: str, scores, included, rng) -> dict:
    """Claim, counts and bound of one test of one run."""
    claim = _claim(cell, test)
    audit = audited_run.audit_row(cell, scores, included, rng)
    return claim | audit | _outcome(audit["epsilon_lower_bound"], claim["claimed_epsilon"])


def _outcome(bound: float, claimed: float) -> dict:
    return {"epsilon_lower_bound": bound, "refuted": bool(bound > claimed)}


def check_fault(fault: str) -> None:
    """Refuse unknown faults.

    Raises:
        WorkbookError: naming the allowed ones.
    """
    if fault != RIGHT and fault not in FAULTS:
        raise WorkbookError(f"fault = {fault!r}; allowed: {', '.join((RIGHT, *FAULTS))}")


# ------------------------------------------------------------------------------------ summary


def detections(rows: Iterable[dict] | pd.DataFrame) -> pd.DataFrame:
    """Detection rates, each with its 95 % interval by Clopper and Pearson.

    Args:
        rows: of :func:`detect` or of :func:`detect_by_pairs`, not of both: their tests differ.

    Returns:
        One row a test: claimed ε, how often the fault it is for is refuted, with what mean bound,
        how often the right implementation is (false alarms), and a note.
    """
    rows = pd.DataFrame(rows)
    summary = []
    for test in dict.fromkeys(rows["test"]):
        of_test = rows[rows["test"] == test]
        wrong = of_test[of_test["fault"] != RIGHT]
        right = of_test[of_test["fault"] == RIGHT]
        summary.append(
            {
                "fault": test,
                "score": FAULTS[test].score,
                "claimed ε": of_test["claimed_epsilon"].iloc[0],
                "mean bound": wrong["epsilon_lower_bound"].mean(),
                **_rate("detected", wrong["refuted"]),
                **_rate("false alarms", right["refuted"]),
                "note": FAULTS[test].note,
            }
        )
    return pd.DataFrame(summary)


def _rate(name: str, refuted: pd.Series) -> dict:
    n, k = len(refuted), int(refuted.sum())
    low, high = intervals.rate_interval(k, n) if n else (math.nan, math.nan)
    return {name: k, f"{name}, of": n, f"{name}, low": low, f"{name}, high": high}
