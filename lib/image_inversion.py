"""Attacks that draw an image instead of choosing one from a list: from gradients, from a model.

Both are against DP-SGD of a network with one hidden layer, in which one training image is unknown
(Hayes, Mahloujifar, Balle, arXiv:2302.07225, Section 2 and Figure 1):

- :func:`from_gradients` has the full view: all released gradients, the weights before each step and
  all training points but one. It searches for the image whose clipped gradients fit what is left of
  the releases after the known points' share. It knows nothing of what images look like.
- :func:`train_reconstructor` sees the final weights alone, but also many *shadow models*: other
  trainings on the same known points and an image of the attacker's own each. It trains a network
  that tells the image from the weights (Balle, Cherubin, Hayes, arXiv:2201.04845).

Weights are flattened as in :class:`lib.inversion.Release`. Torch computes the derivatives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lib import models

Shapes = tuple[tuple[int, int], tuple[int, int]]  # (outputs, inputs + 1) of both layers

# All settled on other seeds and other images than those reported.
STARTS = (0.5, 0.1)  # grey values of the images from which a search sets out
ITERATIONS = 200
STEP = 0.05  # of a pixel in an iteration, at first
TARGETS_AT_ONCE = 8  # bounds the memory

N_DIRECTIONS = 128  # in the space of weights, which a reconstructor looks at
OVERSAMPLING, POWER_ITERATIONS = 32, 2  # in the search for them
HIDDEN_UNITS = 512
LEARNING_RATE = 1e-3
BATCH_SIZE = 64
EPOCHS = 30
VALIDATION_SHARE = 0.1  # of the shadow models; they decide how many epochs count


# -------------------------------------------------------------------------- from the gradients


@dataclass(frozen=True)
class _Seen:
    """What the attacker knows of some targets, by layers: hidden, output."""

    weights: tuple[torch.Tensor, torch.Tensor]  # (targets, steps, units, inputs + 1) and the like
    residuals: tuple[torch.Tensor, torch.Tensor]
    labels: torch.Tensor  # (targets, 1, classes) 1 at the label, else 0
    clip_norm: float


def from_gradients(
    *,
    parameters: np.ndarray,
    residuals: np.ndarray,
    labels: np.ndarray,
    shapes: Shapes,
    clip_norm: float,
    iterations: int = ITERATIONS,
) -> np.ndarray:
    """Gradient-based reconstruction (arXiv:2302.07225, Equation 1) of a tanh network's target.

    Minimises over images z with pixels in [0, 1] the sum over steps t of

        −⟨clip(∇ℓ(θ_t, z)), r_t⟩ + ‖clip(∇ℓ(θ_t, z)) − r_t‖₁,

    r_t being the released sum less the known points' clipped gradients. The search is by Adam, cut
    off at the bounds, with a step that falls to 0. It sets out from several grey images; the end
    with the smallest loss counts.

    Args:
        parameters: (targets, steps, d) float32 weights before each step.
        residuals: (targets, steps, d) float32 r_t, noise included.
        labels: (targets,) classes of the unknown images, which the attacker knows.
        shapes: (outputs, inputs + 1) of both layers.
        clip_norm: C > 0.
        iterations: of each search.

    Returns:
        (targets, inputs) float32 images.
    """
    found = []
    for start in range(0, len(labels), TARGETS_AT_ONCE):
        rows = slice(start, start + TARGETS_AT_ONCE)
        classes = nn.functional.one_hot(torch.from_numpy(labels[rows]), shapes[1][0])
        seen = _Seen(
            weights=_layers(torch.from_numpy(parameters[rows]), shapes),
            residuals=_layers(torch.from_numpy(residuals[rows]), shapes),
            labels=classes[:, None].float(),
            clip_norm=clip_norm,
        )
        ends = torch.stack([_search(grey, seen, iterations) for grey in STARTS])
        best = torch.stack([losses(end, seen) for end in ends]).argmin(dim=0)
        found.append(ends[best, torch.arange(len(best))].numpy())
    return np.concatenate(found)


def _search(grey: float, seen: _Seen, iterations: int) -> torch.Tensor:
    shape = len(seen.labels), seen.weights[0].shape[-1] - 1
    images = torch.full(shape, grey, requires_grad=True)
    optimiser = torch.optim.Adam([images], lr=STEP)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, iterations)
    for _ in range(iterations):
        optimiser.zero_grad()
        _same_slope(images, seen).backward()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    return images.detach()


def losses(images: torch.Tensor, seen: _Seen) -> torch.Tensor:
    """(targets,) the loss that :func:`from_gradients` minimises, of images (targets, inputs)."""
    total = torch.zeros(len(images))
    for (errors, inputs), residual in zip(_factors(images, seen), seen.residuals, strict=True):
        gradients = errors[..., None] * inputs[:, :, None]
        total = total + ((gradients - residual).abs() - gradients * residual).sum(dim=(1, 2, 3))
    return total


def _same_slope(images: torch.Tensor, seen: _Seen) -> torch.Tensor:
    """A number with the slope of the total loss, for a fraction of its cost.

    The loss changes with a gradient g by sign(g − r) − r, taken as a constant here; and a constant
    matrix times a product of errors and inputs needs no matrix of products.
    """
    total = torch.zeros(())
    for (errors, inputs), residual in zip(_factors(images, seen), seen.residuals, strict=True):
        with torch.no_grad():
            change = errors[..., None] * inputs[:, :, None]
            change.sub_(residual).sign_().sub_(residual)
        total = total + (errors * (change @ inputs[..., None])[..., 0]).sum()
    return total


def _factors(images: torch.Tensor, seen: _Seen) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Clipped gradients at each step: in both layers the products of an error and an input.

    Returns:
        For each layer (targets, steps, outputs) errors and (targets, steps or 1, inputs + 1)
        inputs.
    """
    first, second = seen.weights
    inputs = nn.functional.pad(images, (0, 1), value=1.0)[:, None]
    values = torch.tanh((first @ inputs[..., None])[..., 0])
    hidden = nn.functional.pad(values, (0, 1), value=1.0)
    outputs = (second @ hidden[..., None])[..., 0]
    output_errors = torch.softmax(outputs, dim=-1) - seen.labels
    hidden_errors = (output_errors[..., None, :] @ second[..., :-1])[..., 0, :] * (1 - values**2)
    squares = _squares(hidden_errors) * _squares(inputs) + _squares(output_errors) * _squares(
        hidden
    )
    # A gradient of exactly 0 has no direction, and its norm no derivative.
    norms = squares.clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
    scale = (seen.clip_norm / norms).clamp(max=1.0)
    return [(hidden_errors * scale, inputs), (output_errors * scale, hidden)]


def _squares(vectors: torch.Tensor) -> torch.Tensor:
    return (vectors**2).sum(dim=-1, keepdim=True)


def _layers(flat: torch.Tensor, shapes: Shapes) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of vectors (targets, steps, d) as both layers' weights."""
    size = shapes[0][0] * shapes[0][1]
    leading = flat.shape[:-1]
    return flat[..., :size].reshape(*leading, *shapes[0]), flat[..., size:].reshape(
        *leading, *shapes[1]
    )


# ------------------------------------------------------------------------ from the final model


def train_reconstructor(
    weights: np.ndarray, images: np.ndarray, sequence: np.random.SeedSequence
) -> Callable[[np.ndarray], np.ndarray]:
    """Model-based reconstruction: a network from the final weights of a model to an image.

    Weights are seen along the directions in which shadow models differ most; the network then has
    one hidden layer and pixels in [0, 1], and minimises the mean squared error. It begins at the
    mean image. A share of the shadow models is kept apart, and the epoch that is best on these
    counts: where the noise hides all, that is the first, with next to nothing learnt.

    Args:
        weights: (shadow models, d) final weights; used up (centred in place).
        images: (shadow models, inputs) the image that each was trained on, pixels in [0, 1].
        sequence: where all randomness comes from.

    Returns:
        Function from (models, d) weights to (models, inputs) images.
    """
    streams = [_child(sequence, number) for number in range(3)]
    centre = weights.mean(axis=0)
    weights -= centre
    directions = main_directions(weights, N_DIRECTIONS, np.random.default_rng(streams[0]))
    coordinates = weights @ directions
    directions /= coordinates.std()
    coordinates = torch.from_numpy(coordinates / coordinates.std())
    network = _network(coordinates.shape[1], images.mean(axis=0), streams[1])
    network = _fitted(network, coordinates, torch.from_numpy(images), streams[2])

    @torch.no_grad()
    def reconstruct(models_weights: np.ndarray) -> np.ndarray:
        return network(torch.from_numpy((models_weights - centre) @ directions)).numpy()

    return reconstruct


def main_directions(rows: np.ndarray, n_directions: int, rng: np.random.Generator) -> np.ndarray:
    """Directions in which centred rows scatter most (a randomised method; arXiv:0909.4061).

    Args:
        rows: (n, d).
        n_directions: how many, at most min(n, d).
        rng: source of randomness.

    Returns:
        (d, n_directions) orthonormal columns, the first one first.
    """
    n_directions = min(n_directions, *rows.shape)
    width = min(n_directions + OVERSAMPLING, *rows.shape)
    basis = rng.standard_normal((rows.shape[1], width)).astype(rows.dtype)
    for _ in range(POWER_ITERATIONS):
        basis = np.linalg.qr(rows.T @ (rows @ basis))[0]
    along = rows @ basis
    _, vectors = np.linalg.eigh(along.T @ along)
    return basis @ vectors[:, ::-1][:, :n_directions]


def _network(n_inputs: int, mean_image: np.ndarray, sequence: np.random.SeedSequence) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(models.generator(sequence).get_state())
        last = nn.Linear(HIDDEN_UNITS, len(mean_image))
        network = nn.Sequential(nn.Linear(n_inputs, HIDDEN_UNITS), nn.ReLU(), last, nn.Sigmoid())
    with torch.no_grad():
        last.weight.mul_(0.1)
        last.bias.copy_(torch.logit(torch.from_numpy(mean_image), eps=0.01))
    return network


def _fitted(
    network: nn.Module,
    coordinates: torch.Tensor,
    images: torch.Tensor,
    sequence: np.random.SeedSequence,
) -> nn.Module:
    """The network of the best epoch, by the shadow models kept apart."""
    rng = np.random.default_rng(sequence)
    n_kept = max(1, round(VALIDATION_SHARE * len(images)))
    kept, used = np.split(rng.permutation(len(images)), [n_kept])
    optimiser = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
    best, smallest = network, np.inf
    for epoch in range(EPOCHS + 1):
        if epoch > 0:
            for batch in np.split(rng.permutation(used), range(BATCH_SIZE, len(used), BATCH_SIZE)):
                optimiser.zero_grad()
                nn.functional.mse_loss(network(coordinates[batch]), images[batch]).backward()
                optimiser.step()
        with torch.no_grad():
            error = float(nn.functional.mse_loss(network(coordinates[kept]), images[kept]))
        if error < smallest:
            best, smallest = copy.deepcopy(network), error
    return best


def _child(sequence: np.random.SeedSequence, number: int) -> np.random.SeedSequence:
    """Like ``spawn``, which would leave its parent changed."""
    key = (*sequence.spawn_key, number)
    return np.random.SeedSequence(sequence.entropy, spawn_key=key, pool_size=sequence.pool_size)
