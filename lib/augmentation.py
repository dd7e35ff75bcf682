"""Differentiable augmentation: what is drawn is apart from what is done with it.

Siamese augmentation (Zhao and Bilen, arXiv:2102.08259): real and condensed images of a class go
through one and the same random transformation, and gradients flow back through it. Here a
:class:`Draw` holds everything random, one row a class, and :func:`apply` is a pure function of
images and draw; so that a draw is shared wherever one object is handed over twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch.nn import functional

from lib.errors import WorkbookError

OPERATIONS = ("colour", "crop", "cutout", "flip", "scale", "rotate")
# A mirrored digit is none.
DIGITS = tuple(name for name in OPERATIONS if name != "flip")


@dataclass(frozen=True)
class Strength:
    """How far each operation may go; 0 leaves images as they are.

    The defaults are those of the authors' code, whose pixels have standard deviation 1: there a
    brightness of 0.5 is about 0.25 in pixels from −1 to 1.
    """

    brightness: float = 0.25  # largest shift of all pixels, in their units
    saturation: float = 1.0  # distance to grey times 1 ± this, at most 1
    contrast: float = 0.5  # distance to the image's mean times 1 ± this, at most 1
    crop: float = 0.125  # largest shift of the window, share of the side, at most 1
    cutout: float = 0.5  # side of the hole, share of the image's, at most 1
    flip: float = 0.5  # chance of a mirror image
    scale: float = 0.2  # each axis times 1 + this at most and 1 / (1 + this) at least
    rotate: float = 15.0  # largest angle, degrees, at most 180

    def __post_init__(self):
        highest = {"brightness": math.inf, "scale": math.inf, "rotate": 180.0}
        for field in fields(self):
            value, most = getattr(self, field.name), highest.get(field.name, 1.0)
            if not (0 <= value <= most and math.isfinite(value)):
                limit = "a finite number of at least 0" if most == math.inf else f"0 to {most:g}"
                raise WorkbookError(f"strength of {field.name} = {value}; allowed: {limit}")


@dataclass(frozen=True)
class Draw:
    """One transformation a row; what is not active leaves images alone. All float64 but named."""

    active: torch.Tensor  # (n, 6) bool, in the order of OPERATIONS
    brightness: torch.Tensor  # (n,) added
    saturation: torch.Tensor  # (n,) factor
    contrast: torch.Tensor  # (n,) factor
    shift: torch.Tensor  # (n, 2) int64: pixels the window moves down and right
    hole: torch.Tensor  # (n, 4) int64: first row and column, one past the last row and column
    zoom: torch.Tensor  # (n, 2) factors: height and width of what is shown, in the image's
    angle: torch.Tensor  # (n,) radians

    def __len__(self) -> int:
        """Number of transformations."""
        return len(self.active)

    def of(self, rows: torch.Tensor) -> Draw:
        """The transformations of some rows, for images that share them.

        Args:
            rows: (m,) int64, such as the classes of m images.
        """
        return Draw(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def to(self, device: torch.device | str) -> Draw:
        """The same transformations on a device."""
        return Draw(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


def draw(
    n: int,
    *,
    image_size: tuple[int, int],
    generator: torch.Generator,
    operations: Sequence[str] = OPERATIONS,
    strength: Strength | None = None,
    one_each: bool = True,
) -> Draw:
    """Draw n independent transformations.

    As many numbers leave the generator whatever the operations and strengths.

    Args:
        n: transformations, at least 0.
        image_size: height and width in pixels.
        generator: on the processor.
        operations: those to draw from, in ``OPERATIONS``; none for the identity.
        strength: how far they may go; None for the usual.
        one_each: every transformation is one of the operations, all equally likely, as in the
            authors' code; otherwise all of them one after another.

    Raises:
        WorkbookError: for an operation that is unknown or there twice.
    """
    check_operations(operations)
    strength = strength or Strength()
    height, width = image_size
    u = torch.rand(n, 12, generator=generator, dtype=torch.float64)
    plus_minus = 2 * u - 1
    usable = torch.tensor([name in operations for name in OPERATIONS])
    active = usable.expand(n, -1)
    if one_each and len(operations):
        chosen = usable.nonzero()[:, 0][_whole(u[:, 0], len(operations))]
        active = functional.one_hot(chosen, len(OPERATIONS)).bool()
    flip = torch.tensor([name == "flip" for name in OPERATIONS])
    # A mirror image has no strength but its chance.
    active = active & ~(flip & (u[:, 1] >= strength.flip)[:, None])
    return Draw(
        active=active,
        brightness=strength.brightness * plus_minus[:, 2],
        saturation=1 + strength.saturation * plus_minus[:, 3],
        contrast=1 + strength.contrast * plus_minus[:, 4],
        shift=torch.stack(
            [_shift(u[:, 5], strength.crop, height), _shift(u[:, 6], strength.crop, width)], 1
        ),
        hole=torch.cat(
            [_span(u[:, 7], strength.cutout, height), _span(u[:, 8], strength.cutout, width)], 1
        )[:, [0, 2, 1, 3]],
        zoom=_zoom(u[:, 9:11], strength.scale),
        angle=math.radians(strength.rotate) * plus_minus[:, 11],
    )


def _whole(u: torch.Tensor, n: int) -> torch.Tensor:
    """Whole numbers 0 … n − 1, all equally likely, from uniform numbers in [0, 1)."""
    return (u * n).long().clamp_(max=n - 1)


def _shift(u: torch.Tensor, share: float, side: int) -> torch.Tensor:
    most = int(side * share + 0.5)
    return _whole(u, 2 * most + 1) - most


def _span(u: torch.Tensor, share: float, side: int) -> torch.Tensor:
    """First and one past the last pixel of a hole, whose centre lies anywhere in the image.

    The hole may stick out; an even side has one place more, so that both borders are alike.
    """
    length = int(side * share + 0.5)
    first = _whole(u, side + 1 - length % 2) - length // 2
    return torch.stack([first, first + length], 1)


def _zoom(u: torch.Tensor, strength: float) -> torch.Tensor:
    lowest = 1 / (1 + strength)
    return lowest + (1 + strength - lowest) * u


def check_operations(operations: Sequence[str]) -> None:
    """Refuse operations that are unknown or there twice.

    Raises:
        WorkbookError: naming them.
    """
    if isinstance(operations, str) or not set(operations) <= set(OPERATIONS):
        raise WorkbookError(
            f"operations = {operations!r}; allowed: a list from {', '.join(OPERATIONS)}"
        )
    if len(set(operations)) < len(operations):
        raise WorkbookError(f"operations = {operations!r}; allowed: each once")


# -------------------------------------------------------------------------------- application


def apply(images: torch.Tensor, drawn: Draw, *, fill: float = 0.0) -> torch.Tensor:
    """Transform each image by its row of a draw.

    Pure: nothing random is left, and images of equal rows are treated alike, so that what real and
    condensed images share is visible in what they are given. Gradients flow to every pixel shown.

    Args:
        images: (n, channels, height, width) floats.
        drawn: n rows.
        fill: what shows behind a border or in a hole: 0 is grey where pixels run from −1 to 1;
            digits stand on −1.

    Returns:
        Images of the same shape; rows without an active operation keep their exact values.

    Raises:
        WorkbookError: for another number of draws than of images.
    """
    if len(images) != len(drawn):
        raise WorkbookError(f"{len(drawn)} draws for {len(images)} images; allowed: one each")
    steps = (
        lambda x, d: colour(x, d.brightness, d.saturation, d.contrast),
        lambda x, d: crop(x, d.shift, fill=fill),
        lambda x, d: cutout(x, d.hole, fill=fill),
        lambda x, d: x.flip(-1),
        lambda x, d: scale(x, d.zoom, fill=fill),
        lambda x, d: rotate(x, d.angle, fill=fill),
    )
    given = images
    for active, step in zip(drawn.active.T, steps, strict=True):
        rows = active.nonzero()[:, 0]
        if len(rows) == 0:
            continue
        # Only where it is active: what is left alone stays exact, and costs nothing.
        here, rows = drawn.of(rows).to(images.device), rows.to(images.device)
        if len(rows) == len(images):
            images = step(images, here)
        else:
            images = images.clone() if images is given else images
            images.index_copy_(0, rows, step(images[rows], here))
    return images


def colour(
    images: torch.Tensor,
    brightness: torch.Tensor,
    saturation: torch.Tensor,
    contrast: torch.Tensor,
) -> torch.Tensor:
    """Brightness, then saturation (about each pixel's grey), then contrast (about the mean).

    Args:
        images: (n, channels, height, width).
        brightness: (n,) numbers to add.
        saturation, contrast: (n,) factors.
    """
    images = images + _each(brightness, images)
    images = _about(images, images.mean(1, keepdim=True), saturation)
    return _about(images, images.mean((1, 2, 3), keepdim=True), contrast)


def _about(images: torch.Tensor, centre: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    # Not centre + factor · (images − centre), so that a factor of 1 is exact.
    return images + (_each(factor, images) - 1) * (images - centre)


def _each(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    return values.to(images.dtype).reshape(-1, 1, 1, 1)


def crop(images: torch.Tensor, shift: torch.Tensor, *, fill: float = 0.0) -> torch.Tensor:
    """Move the window over the image; behind its border is ``fill``.

    Args:
        images: (n, channels, height, width).
        shift: (n, 2) int64, pixels down and right.
        fill: pixel value.
    """
    height, width = images.shape[2:]
    rows = torch.arange(height, device=images.device) + shift[:, :1]
    columns = torch.arange(width, device=images.device) + shift[:, 1:]
    inside = _both((rows >= 0) & (rows < height), (columns >= 0) & (columns < width))
    rows, columns = rows.clamp(0, height - 1), columns.clamp(0, width - 1)
    # gather, whose gradient is added up in a fixed order on a processor.
    moved = images.gather(2, rows[:, None, :, None].expand_as(images))
    moved = moved.gather(3, columns[:, None, None, :].expand_as(images))
    return moved.where(inside, fill)


def cutout(images: torch.Tensor, hole: torch.Tensor, *, fill: float = 0.0) -> torch.Tensor:
    """Put ``fill`` in a rectangle.

    Args:
        images: (n, channels, height, width).
        hole: (n, 4) int64: first row and column, one past the last row and column; may stick out.
        fill: pixel value.
    """
    rows = torch.arange(images.shape[2], device=images.device)
    columns = torch.arange(images.shape[3], device=images.device)
    top, left, bottom, right = (edge[:, None] for edge in hole.T)
    inside = _both((rows >= top) & (rows < bottom), (columns >= left) & (columns < right))
    return images.where(~inside, fill)


def _both(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """(n, 1, height, width): pixels of which row and column are chosen."""
    return rows[:, None, :, None] & columns[:, None, None, :]


def scale(images: torch.Tensor, zoom: torch.Tensor, *, fill: float = 0.0) -> torch.Tensor:
    """Show a part of the image, or more than it, in the whole frame; about the centre.

    Args:
        images: (n, channels, height, width).
        zoom: (n, 2): height and width of what is shown, in the image's; below 1 magnifies.
        fill: what lies around the image.
    """
    zero = torch.zeros_like(zoom[:, 0])
    return _resampled(images, torch.stack([zoom[:, 1], zero, zero, zoom[:, 0]], 1), fill)


def rotate(images: torch.Tensor, angle: torch.Tensor, *, fill: float = 0.0) -> torch.Tensor:
    """Turn the image about its centre.

    Args:
        images: (n, channels, height, width).
        angle: (n,) radians, anticlockwise for the eye.
        fill: what lies around the image.
    """
    height, width = images.shape[2:]
    cosine, sine = angle.cos(), angle.sin()
    # Coordinates run from −1 to 1 along either side, so that their units differ on oblongs.
    matrix = [cosine, -sine * height / width, sine * width / height, cosine]
    return _resampled(images, torch.stack(matrix, 1), fill)


def _resampled(images: torch.Tensor, matrix: torch.Tensor, fill: float) -> torch.Tensor:
    """Bilinear values at the places to which (n, 4) matrices (xx, xy, yx, yy) send the pixels."""
    theta = functional.pad(matrix.reshape(-1, 2, 2), (0, 1)).to(images.dtype)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    # Around the image it takes zeros: so the fill is made the zero.
    return functional.grid_sample(images - fill, grid, align_corners=False) + fill
