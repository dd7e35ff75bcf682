"""Dataset condensation by distribution matching (DM), and what its theory amounts to.

A few condensed images a class are moved until, in the feature space of random networks, their mean
is that of the class's real images (Zhao and Bilen, arXiv:2110.04181, Algorithm 1). Nothing in it
adds noise or limits what one real image can do. Dong et al. (arXiv:2206.00240) call the outcome
private; Carlini et al. (arXiv:2209.14987) show why neither their measurement nor their theory
supports it. The theory's two statements are at the end of this module.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lib import augmentation, models
from lib.errors import WorkbookError

Features = Callable[[torch.Tensor], torch.Tensor]  # (n, channels, height, width) → (n, features)
Extractor = Callable[[np.random.SeedSequence], Features]  # a fresh one for each seed sequence

PURPOSES = ("start", "extractors", "augmentation", "batches")
# Images in one forward pass. On a processor, activations of many leave its cache: ConvNets of width
# 16 to 128 take longer for an image at 128 than at 32.
CHUNK = {"cpu": 32, "cuda": 2048}
# Images augmented together, as that consists of many small operations; bounds memory.
BLOCK = 2048


@dataclass(frozen=True)
class Condensed:
    """A condensed dataset, in the order of its classes, and how it came about."""

    images: torch.Tensor  # (classes · n_per_class, channels, height, width), on the processor
    labels: torch.Tensor  # (classes · n_per_class,) int64: 0, 0, …, 1, 1, …
    losses: np.ndarray  # (iterations,) float64: the loss before each step


def condense(
    images: torch.Tensor,
    labels: torch.Tensor | np.ndarray,
    *,
    n_per_class: int,
    sequence: np.random.SeedSequence,
    n_iterations: int,
    initial: torch.Tensor | None = None,
    learning_rate: float = 1.0,
    momentum: float = 0.5,
    real_batch: int = 256,
    operations: Sequence[str] = augmentation.OPERATIONS,
    strength: augmentation.Strength | None = None,
    one_each: bool = True,
    fill: float = 0.0,
    width: int = 128,
    extractor: Extractor | None = None,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Condensed:
    """Condense each class of a dataset to ``n_per_class`` images by distribution matching.

    Each iteration draws a feature extractor ψ, for each class a batch of real images and one
    transformation A, and takes one step of gradient descent with momentum on the condensed images:

    .. math:: \\sum_c \\Bigl\\| \\frac{1}{|B_c|} \\sum_{x \\in B_c} \\psi(A_c(x))
        - \\frac{1}{m} \\sum_{s \\in S_c} \\psi(A_c(s)) \\Bigr\\|^2.

    All classes share their forward passes, of which the means are taken class by class: the loss
    of a loop over classes, at less cost. Every class has its own stream for its batches, and a
    class that is not larger than a batch draws nothing: so two datasets that differ in one class
    (D and D′) see the same networks, transformations and batches of the others.

    Args:
        images: (n, channels, height, width) floats, such as :func:`lib.models.normalise` gives.
        labels: (n,) whole numbers 0 … classes − 1; each class has at least one image.
        n_per_class: m ≥ 1, condensed images of each class.
        sequence: where all randomness comes from; equal ones give equal bytes (on one processor).
        n_iterations: at least 0; 20,000 in the paper.
        initial: (classes · m, channels, height, width) images to start from, sorted by class, such
            as real ones; None for :func:`noise_images`.
        learning_rate: above 0, of the images; the loss is a sum over the features.
        momentum: in [0, 1).
        real_batch: real images of each class and iteration, without repetition; a class with no
            more than these is taken whole.
        operations: of the augmentation, see :mod:`lib.augmentation`; those that fit the data, such
            as ``augmentation.DIGITS``. None of them: ``()``.
        strength, one_each: as in :func:`lib.augmentation.draw`.
        fill: as in :func:`lib.augmentation.apply`.
        width: of the ConvNet that is drawn unless ``extractor`` is given.
        extractor: seed sequence → features, in place of :func:`conv_net_extractor`.
        dtype: float32 or float64, of the whole computation and the result.
        device: where it is computed. Draws are made on the processor and are the same everywhere.

    Raises:
        WorkbookError: for a value out of range, images, labels or a start that do not fit each
            other, or a loss that is no longer finite.
    """
    labels = torch.as_tensor(labels)
    _check_numbers(
        n_per_class=n_per_class,
        n_iterations=n_iterations,
        learning_rate=learning_rate,
        momentum=momentum,
        real_batch=real_batch,
    )
    if dtype not in (torch.float32, torch.float64):
        raise WorkbookError(f"dtype = {dtype}; allowed: torch.float32, torch.float64")
    augmentation.check_operations(operations)
    _check_images(images, labels)
    image_shape = (*images.shape[2:], images.shape[1])
    if extractor is None:
        extractor = conv_net_extractor(image_shape, width=width, dtype=dtype, device=device)
    rows_of_class = [(labels == c).nonzero()[:, 0].numpy() for c in range(int(labels.max()) + 1)]
    n_classes = len(rows_of_class)
    start = _start(initial, n_classes * n_per_class, image_shape, sequence)
    condensed = start.detach().to(device, dtype, copy=True).requires_grad_()
    condensed_labels = torch.arange(n_classes).repeat_interleave(n_per_class)
    images = images.to(device, dtype)
    batch_rngs = [np.random.default_rng(_stream(sequence, "batches", c)) for c in range(n_classes)]
    draw_generator = models.generator(_stream(sequence, "augmentation"))
    optimiser = torch.optim.SGD([condensed], lr=learning_rate, momentum=momentum)
    losses = np.empty(n_iterations)
    for i in range(n_iterations):
        features = extractor(_stream(sequence, "extractors", i))
        drawn = augmentation.draw(
            n_classes,
            image_size=image_shape[:2],
            generator=draw_generator,
            operations=operations,
            strength=strength,
            one_each=one_each,
        )
        rows, classes = _real_batch(rows_of_class, real_batch, batch_rngs)
        options = {"n_classes": n_classes, "drawn": drawn, "fill": fill}
        with torch.no_grad():
            real_means = class_means(features, images, classes, rows=rows, **options)
        condensed_means = class_means(features, condensed, condensed_labels, **options)
        loss = (real_means - condensed_means).square().sum()
        losses[i] = loss.item()
        if not math.isfinite(losses[i]):
            raise WorkbookError(
                f"the loss of iteration {i} is {losses[i]}; lower learning_rate = {learning_rate}"
            )
        optimiser.zero_grad()
        loss.backward(inputs=[condensed])
        optimiser.step()
    return Condensed(condensed.detach().cpu(), condensed_labels, losses)


def class_means(
    features: Features,
    images: torch.Tensor,
    classes: torch.Tensor,
    *,
    n_classes: int,
    drawn: augmentation.Draw,
    rows: torch.Tensor | None = None,
    fill: float = 0.0,
) -> torch.Tensor:
    """Mean features of each class's augmented images, with forward passes across classes.

    Args:
        features: (n, channels, height, width) → (n, features), each image alone.
        images: (N, channels, height, width), on any device.
        classes: (n,) int64 on the processor, of the images used; each class at least once.
        n_classes: of them.
        drawn: one transformation for each class.
        rows: (n,) int64, the images used; None for all.
        fill: as in :func:`lib.augmentation.apply`.

    Returns:
        (n_classes, features); gradients flow to ``images``.
    """
    rows = torch.arange(len(images)) if rows is None else rows
    # A matrix product rather than scattered additions, whose order is not fixed on a GPU.
    shares = torch.nn.functional.one_hot(classes, n_classes).to(images.dtype)
    shares = (shares / shares.sum(0)).T.to(images.device)
    means = 0.0
    chunk = CHUNK[images.device.type]
    for block in torch.arange(len(rows)).split(BLOCK):
        chosen = images[rows[block].to(images.device)]
        shown = augmentation.apply(chosen, drawn.of(classes[block]), fill=fill)
        shares_here = shares[:, block.to(images.device)]
        for piece, share in zip(shown.split(chunk), shares_here.split(chunk, 1), strict=True):
            means = means + share @ features(piece)
    return means


def noise_images(
    n: int,
    image_shape: tuple[int, int, int],
    sequence: np.random.SeedSequence,
    *,
    standard_deviation: float = 0.5,
    centred: bool = False,
) -> torch.Tensor:
    """Gaussian noise to start from: independent of every image.

    Args:
        n: images.
        image_shape: (height, width, channels).
        sequence: where they come from.
        standard_deviation: of each pixel; 0.5 is about that of photos in [−1, 1], as the authors'
            standard normal is that of their normalised ones.
        centred: shift all so that their mean is 0, as the second start of arXiv:2206.00240.

    Returns:
        (n, channels, height, width) float32.
    """
    height, width, channels = image_shape
    noise = torch.randn(n, channels, height, width, generator=models.generator(sequence))
    return standard_deviation * (noise - noise.mean(0) if centred else noise)


# ------------------------------------------------------------------------- feature extractors


def conv_net_extractor(
    image_shape: tuple[int, int, int],
    *,
    width: int = 128,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Extractor:
    """Freshly initialised ConvNets of :func:`lib.models.conv_net`, without their classifiers.

    Args:
        image_shape: (height, width, channels).
        width: channels of each block.
        dtype, device: of the images it will get.
    """

    def extractor(sequence: np.random.SeedSequence) -> Features:
        model = models.build("conv_net", image_shape, 1, sequence, width=width)
        model = model.to(device, dtype, memory_format=torch.channels_last).requires_grad_(False)

        def features(images: torch.Tensor) -> torch.Tensor:
            # Channels last: convolutions on a processor are about 1.5 times as fast.
            images = images.contiguous(memory_format=torch.channels_last)
            return models.features(model, images)

        return features

    return extractor


def linear_extractor(
    image_shape: tuple[int, int, int],
    n_features: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Extractor:
    """Random linear maps of the flattened images, those of Proposition 4.4 of arXiv:2206.00240.

    Entries are independent Gaussians of variance 1 / max(k, d), for k features of d pixels, so
    that the squared singular values are at most about 4. Descent on m images a class then contracts
    for learning rates up to about m/4, the faster the more features.

    Args:
        image_shape: (height, width, channels).
        n_features: k ≥ 1; fewer than the pixels also do, as every iteration has its own map.
        dtype, device: of the images it will get.
    """
    if n_features < 1:
        raise WorkbookError(f"n_features = {n_features}; allowed: at least 1")
    n_pixels = math.prod(image_shape)

    def extractor(sequence: np.random.SeedSequence) -> Features:
        entries = torch.randn(
            n_pixels, n_features, generator=models.generator(sequence), dtype=dtype
        )
        matrix = (entries / math.sqrt(max(n_pixels, n_features))).to(device)
        return lambda images: images.flatten(1) @ matrix

    return extractor


# -------------------------------------------------------------- the theory that says nothing


def linear_shift(
    initial: torch.Tensor,
    images: torch.Tensor,
    labels: torch.Tensor | np.ndarray,
    *,
    n_per_class: int,
) -> torch.Tensor:
    """What DM with linear extractors and no augmentation converges to, in closed form.

    Features of a mean are the mean of features, so the loss sees nothing but the difference of the
    two means, and its gradient is the same for every condensed image of a class: they move
    together. The loss is zero once the means agree, hence

    .. math:: s_i^* = s_i + \\frac{1}{|T|} \\sum_{x \\in T} x - \\frac{1}{m} \\sum_j s_j

    (Proposition 4.4 of Dong et al., arXiv:2206.00240, as Carlini et al., arXiv:2209.14987, read
    it; T and S of one class here, with one class for all the proposition itself). Started from
    real images of T the shift is an average over m of them, nearly zero; started from centred
    noise with T centred it is zero: the condensed set is the initial one. An analysis of this map
    cannot explain why training on condensed images should be any better, or more private for the
    images in the start, than training on the start.

    Args:
        initial: (classes · m, channels, height, width), sorted by class.
        images: (n, channels, height, width) real images.
        labels: (n,) whole numbers 0 … classes − 1.
        n_per_class: m.

    Returns:
        The condensed images, of the shape and type of ``initial``.

    Raises:
        WorkbookError: as :func:`condense`.
    """
    labels = torch.as_tensor(labels)
    _check_numbers(n_per_class=n_per_class)
    _check_images(images, labels)
    n_classes = int(labels.max()) + 1
    _check_initial(initial, (n_classes * n_per_class, *images.shape[1:]))
    # Means in double precision: thousands of images are added up.
    real = torch.stack([images[labels == c].double().mean(0) for c in range(n_classes)])
    grouped = initial.double().unflatten(0, (n_classes, n_per_class))
    shift = real - grouped.mean(1)
    return (grouped + shift[:, None]).flatten(0, 1).to(initial.dtype)


def exponential_mechanism_epsilon(*, lowest, highest) -> np.ndarray:
    """ε of a model drawn with density ∝ exp(−Σ l(θ, x)) over the training set, in nats.

    This is Assumption 4.8 of Dong et al. (arXiv:2206.00240); were it true, the training would be
    the exponential mechanism of McSherry and Talwar (FOCS 2007), whose ε is twice the range of l
    (arXiv:2209.14987): replacing an example changes the exponent by at most the range, and the
    normalising constant by as much. So privacy was assumed, with this ε, and not shown.

    Args:
        lowest, highest: smallest and largest loss of any model on any example, in nats; numbers or
            arrays. Those of a few models and examples make the result too small. Without a
            largest loss, as for cross-entropy, it is infinite.

    Raises:
        WorkbookError: for a highest loss below the lowest, or a number that is not one.
    """
    lowest, highest = np.asarray(lowest, dtype=float), np.asarray(highest, dtype=float)
    if not (lowest <= highest).all() or np.isinf(lowest).any():
        raise WorkbookError(
            f"lowest = {lowest}, highest = {highest}; allowed: lowest finite, highest not below it"
        )
    return (2 * (highest - lowest))[()]


# ------------------------------------------------------------------------------------ details


def _stream(sequence: np.random.SeedSequence, purpose: str, *which: int) -> np.random.SeedSequence:
    """A child for one purpose. Unlike ``spawn``, it leaves its parent as it was."""
    key = (*sequence.spawn_key, PURPOSES.index(purpose), *which)
    return np.random.SeedSequence(sequence.entropy, spawn_key=key, pool_size=sequence.pool_size)


def _start(
    initial: torch.Tensor | None,
    n: int,
    image_shape: tuple[int, int, int],
    sequence: np.random.SeedSequence,
) -> torch.Tensor:
    if initial is None:
        return noise_images(n, image_shape, _stream(sequence, "start"))
    height, width, channels = image_shape
    _check_initial(initial, (n, channels, height, width))
    return initial


def _real_batch(
    rows_of_class: list[np.ndarray], size: int, rngs: list[np.random.Generator]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of one iteration's real images and their classes, sorted by class."""
    rows = [
        rows if len(rows) <= size else rng.choice(rows, size, replace=False)
        for rows, rng in zip(rows_of_class, rngs, strict=True)
    ]
    classes = np.repeat(np.arange(len(rows)), [len(of_class) for of_class in rows])
    return torch.from_numpy(np.concatenate(rows)), torch.from_numpy(classes)


def _check_numbers(**numbers: float) -> None:
    allowed = {
        "n_per_class": (lambda x: x == int(x) >= 1, "a whole number of at least 1"),
        "n_iterations": (lambda x: x == int(x) >= 0, "a whole number of at least 0"),
        "learning_rate": (lambda x: x > 0, "a finite number above 0"),
        "momentum": (lambda x: 0 <= x < 1, "a number in [0, 1)"),
        "real_batch": (lambda x: x == int(x) >= 1, "a whole number of at least 1"),
    }
    for name, value in numbers.items():
        fits, description = allowed[name]
        if not (math.isfinite(value) and fits(value)):
            raise WorkbookError(f"{name} = {value}; allowed: {description}")


def _check_images(images: torch.Tensor, labels: torch.Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point() or not torch.isfinite(images).all():
        raise WorkbookError(
            f"images are {images.dtype} of shape {tuple(images.shape)}; allowed: finite floats of "
            "shape (n, channels, height, width)"
        )
    if labels.shape != images.shape[:1] or len(labels) == 0:
        raise WorkbookError(
            f"labels of shape {tuple(labels.shape)} for {len(images)} images; allowed: one each, "
            "at least 1"
        )
    if labels.is_floating_point() or labels.min() < 0:
        raise WorkbookError(
            f"labels are {labels.dtype}, the smallest {labels.min()}; allowed: whole numbers of at "
            "least 0"
        )
    counts = torch.bincount(labels)
    if (counts == 0).any():
        raise WorkbookError(
            f"class {int((counts == 0).nonzero()[0])} of {len(counts)} has no image; allowed: at "
            "least 1 in each"
        )


def _check_initial(initial: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(initial.shape) != shape or not torch.isfinite(initial).all():
        raise WorkbookError(
            f"initial has shape {tuple(initial.shape)}; allowed: finite numbers of shape {shape}, "
            "sorted by class"
        )
