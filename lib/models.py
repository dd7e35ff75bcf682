"""The few networks the studies train. None uses batch statistics, which mix the examples."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from lib.errors import WorkbookError


def normalise(images: np.ndarray) -> torch.Tensor:
    """Bring images from bytes to [−1, 1] with constants that do not depend on the data.

    Args:
        images: (n, height, width, channels) uint8.

    Returns:
        (n, channels, height, width) float32.
    """
    channels_first = np.ascontiguousarray(images.transpose(0, 3, 1, 2), dtype=np.float32)
    return torch.from_numpy(channels_first).div_(127.5).sub_(1.0)


def small_cnn(image_shape: tuple[int, int, int], n_classes: int) -> nn.Module:
    """Three strided convolutions, about 56,000 parameters: quick, with room for 50,000 canaries.

    Args:
        image_shape: (height, width, channels).
        n_classes: outputs.
    """
    return nn.Sequential(
        nn.Conv2d(image_shape[2], 32, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, n_classes),
    )


class _WideBlock(nn.Module):
    """Residual block of a wide ResNet, group norm in place of batch norm."""

    def __init__(self, n_in: int, n_out: int, stride: int):
        super().__init__()
        self.norm1 = nn.GroupNorm(16, n_in)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(16, n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.shortcut = (
            nn.Identity()
            if n_in == n_out and stride == 1
            else nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated = torch.relu(self.norm1(x))
        residual = self.conv2(torch.relu(self.norm2(self.conv1(activated))))
        return residual + self.shortcut(activated)


def wide_resnet(image_shape: tuple[int, int, int], n_classes: int) -> nn.Module:
    """WRN-16-4 with group norm, as private training uses it (De et al., arXiv:2204.13650).

    Args:
        image_shape: (height, width, channels).
        n_classes: outputs.
    """
    layers: list[nn.Module] = [nn.Conv2d(image_shape[2], 16, 3, padding=1, bias=False)]
    n_in = 16
    for n_out, stride in ((64, 1), (128, 2), (256, 2)):
        layers += [_WideBlock(n_in, n_out, stride), _WideBlock(n_out, n_out, 1)]
        n_in = n_out
    head = [nn.GroupNorm(16, n_in), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *head, nn.Linear(n_in, n_classes))


def conv_net(
    image_shape: tuple[int, int, int], n_classes: int, *, width: int = 128
) -> nn.Sequential:
    """ConvNet of distribution matching: conv, instance norm, ReLU, average pool, three times.

    Zhao and Bilen, arXiv:2110.04181, Section 4.1. Instance norm (group norm with one channel a
    group) treats each image alone, so that private training may use the network too.

    Args:
        image_shape: (height, width, channels). A side that three halvings do not divide is padded
            by the first convolution, 28 to 32 as in the authors' code.
        n_classes: outputs.
        width: channels of each block, at least 1; 128 in the paper.
    """
    if width < 1:
        raise WorkbookError(f"width = {width}; allowed: at least 1")
    sides = np.array(image_shape[:2])
    padding = 1 + (-sides % 8 + 1) // 2
    layers: list[nn.Module] = []
    n_in = image_shape[2]
    for i in range(3):
        layers += [
            nn.Conv2d(n_in, width, 3, padding=1 if i else tuple(padding.tolist())),
            nn.GroupNorm(width, width),
            nn.ReLU(),
            nn.AvgPool2d(2),
        ]
        n_in = width
    n_features = width * int(np.prod((sides + 2 * padding - 2) // 8))
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(n_features, n_classes))


def features(model: nn.Sequential, inputs: torch.Tensor) -> torch.Tensor:
    """Flattened embedding before the classifier, which is the last layer of each network here.

    Args:
        model: from :func:`build`.
        inputs: (n, channels, height, width).

    Returns:
        (n, features); gradients flow.
    """
    return model[:-1](inputs)


NETWORKS = {"small_cnn": small_cnn, "wrn_16_4": wide_resnet, "conv_net": conv_net}
WITH_WIDTH = ("conv_net",)


def build(
    network: str,
    image_shape: tuple[int, int, int],
    n_classes: int,
    sequence: np.random.SeedSequence,
    *,
    width: int | None = None,
) -> nn.Sequential:
    """Make a freshly initialised network from its own stream; global generators stay untouched.

    Args:
        network: a name in ``NETWORKS``.
        image_shape: (height, width, channels).
        n_classes: outputs.
        sequence: where the initial weights come from.
        width: of a network in ``WITH_WIDTH``; None for its usual one.

    Raises:
        WorkbookError: for an unknown name, or a width that the network does not have.
    """
    if network not in NETWORKS:
        raise WorkbookError(f"network = {network!r}; allowed: {', '.join(NETWORKS)}")
    if width is not None and network not in WITH_WIDTH:
        raise WorkbookError(f"width = {width} with {network}; allowed: None, its width is fixed")
    options = {} if width is None else {"width": width}
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator(sequence).get_state())
        return NETWORKS[network](tuple(image_shape), n_classes, **options)


def generator(sequence: np.random.SeedSequence, device: str = "cpu") -> torch.Generator:
    """Torch generator that takes in the whole entropy of a seed sequence.

    ``manual_seed`` keeps only 32 of its 64 bits on the processor, so among ten thousand streams
    two would sooner or later be equal; there the Mersenne twister's full state is written instead.
    """
    made = torch.Generator(device)
    if made.device.type != "cpu":
        return made.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
    state = made.manual_seed(0).get_state()
    # Seed, counters, then the 624 words of the twister, each in 8 bytes.
    state.numpy()[24 : 24 + 624 * 8].view(np.uint64)[:] = sequence.generate_state(624)
    return made.set_state(state)


def n_parameters(model: nn.Module) -> int:
    """Trainable parameters of a model."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@torch.no_grad()
def losses(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    """Cross-entropy of each example, in nats.

    Args:
        model: maps (n, …) inputs to (n, classes) outputs.
        inputs: (n, …).
        labels: (n,) integers.

    Returns:
        (n,) float32.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    pieces = [
        nn.functional.cross_entropy(model(x.to(device)), y.to(device), reduction="none").cpu()
        for x, y in zip(inputs.split(500), labels.split(500), strict=True)
    ]
    model.train(was_training)
    return torch.cat(pieces).numpy()


@torch.no_grad()
def accuracy(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of examples whose largest output is their label.

    Args:
        model: maps (n, …) inputs to (n, classes) outputs.
        inputs: (n, …).
        labels: (n,) integers.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    n_correct = sum(
        int((model(x.to(device)).argmax(1).cpu() == y).sum())
        for x, y in zip(inputs.split(500), labels.split(500), strict=True)
    )
    model.train(was_training)
    return n_correct / len(labels)
