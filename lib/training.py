"""Plain training, the comparison for private training: SGD with momentum on shuffled batches.

Initial weights, batches and augmentation have streams of their own, so that two training sets can
be put through the same start and the same procedure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from lib import augmentation, models
from lib.errors import WorkbookError

MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4  # those of distribution matching's evaluation


def fit(
    model: nn.Module,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    sequence: np.random.SeedSequence,
    operations: Sequence[str] = (),
    fill: float = 0.0,
) -> None:
    """Train ``model`` in place with cross-entropy; the learning rate falls to 0 along a cosine.

    Args:
        model: on the device where it is to be trained.
        inputs: (n, channels, height, width) floats.
        labels: (n,) int64 classes.
        epochs: passes over the inputs, at least 1.
        batch_size: at least 1; the last batch of an epoch may be smaller.
        learning_rate: at the start, above 0.
        sequence: of batches and augmentation.
        operations: of :mod:`lib.augmentation`, one for each image and step; none leaves images
            as they are.
        fill: as in :func:`lib.augmentation.apply`.

    Raises:
        WorkbookError: for a value out of range, or weights that are no longer finite.
    """
    limits = {"epochs": (epochs, 1), "batch_size": (batch_size, 1), "inputs": (len(inputs), 1)}
    for name, (value, least) in limits.items():
        if value < least:
            raise WorkbookError(f"{name} = {value}; allowed: at least {least}")
    if not (math.isfinite(learning_rate) and learning_rate > 0):
        raise WorkbookError(f"learning_rate = {learning_rate}; allowed: a finite number above 0")
    device = next(model.parameters()).device
    # Channels last: convolutions on a processor are about 1.5 times as fast.
    model.to(memory_format=torch.channels_last).train()
    order, drawing = (models.generator(_child(sequence, i)) for i in range(2))
    optimiser = torch.optim.SGD(
        model.parameters(), lr=learning_rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=order).split(batch_size):
            images = inputs[batch].to(device)
            if operations:
                drawn = augmentation.draw(
                    len(batch),
                    image_size=tuple(images.shape[2:]),
                    generator=drawing,
                    operations=operations,
                )
                images = augmentation.apply(images, drawn, fill=fill)
            outputs = model(images.contiguous(memory_format=torch.channels_last))
            optimiser.zero_grad()
            nn.functional.cross_entropy(outputs, labels[batch].to(device)).backward()
            optimiser.step()
        schedule.step()
    if not all(torch.isfinite(p).all() for p in model.parameters()):
        raise WorkbookError(f"training diverged; lower learning_rate = {learning_rate}")


@torch.no_grad()
def outputs(model: nn.Module, inputs: torch.Tensor, *, batch_size: int = 250) -> np.ndarray:
    """(n, classes) float32 outputs before the softmax."""
    device = next(model.parameters()).device
    model.eval()
    pieces = [
        model(piece.to(device).contiguous(memory_format=torch.channels_last)).cpu()
        for piece in inputs.split(batch_size)
    ]
    return torch.cat(pieces).numpy()


def _child(sequence: np.random.SeedSequence, which: int) -> np.random.SeedSequence:
    """A child that leaves its parent as it was."""
    key = (*sequence.spawn_key, which)
    return np.random.SeedSequence(sequence.entropy, spawn_key=key, pool_size=sequence.pool_size)
