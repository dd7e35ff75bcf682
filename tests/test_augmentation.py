"""Augmentation: each operation by hand, one draw for many, gradients, and what is refused."""

import math

import numpy as np
import pytest
import torch

from lib import augmentation, models
from lib.augmentation import DIGITS, OPERATIONS, Draw, Strength
from lib.errors import WorkbookError

NOTHING = Strength(0, 0, 0, 0, 0, 0, 0, 0)


def stream(seed=0):
    return models.generator(np.random.SeedSequence(seed))


def some_images(n, shape=(3, 8, 8), seed=1):
    return torch.rand(n, *shape, generator=stream(seed), dtype=torch.float64) * 2 - 1


def draw(n, *, seed=0, **options):
    return augmentation.draw(n, image_size=(8, 8), generator=stream(seed), **options)


def image(rows):
    return torch.tensor(rows, dtype=torch.float64)[None, None]


# ---------------------------------------------------------------------------- each operation


def test_colour_by_hand():
    """Two pixels of two channels: grey (1, 3), in all 2."""
    images = torch.tensor([[[[0.0, 2.0]], [[2.0, 4.0]]]])

    def coloured(brightness, saturation, contrast):
        numbers = (torch.tensor([float(x)]) for x in (brightness, saturation, contrast))
        return augmentation.colour(images, *numbers)[0, :, 0].tolist()

    assert coloured(0, 1, 1) == [[0, 2], [2, 4]]
    assert coloured(0.5, 1, 1) == [[0.5, 2.5], [2.5, 4.5]]
    assert coloured(0, 0, 1) == [[1, 3], [1, 3]]
    assert coloured(0, 2, 1) == [[-1, 1], [3, 5]]
    assert coloured(0, 1, 0.5) == [[1, 2], [2, 3]]
    # In this order: brightness moves the mean with it, saturation leaves it.
    assert coloured(1, 0, 0.5) == [[2.5, 3.5], [2.5, 3.5]]


def test_crop_by_hand():
    images = image([[1, 2, 3], [4, 5, 6]])
    moved = augmentation.crop(images, torch.tensor([[1, -1]]), fill=-9.0)
    assert moved[0, 0].tolist() == [[-9, 4, 5], [-9, -9, -9]]
    assert torch.equal(augmentation.crop(images, torch.tensor([[0, 0]])), images)
    away = augmentation.crop(images, torch.tensor([[2, 0]]))
    assert (away == 0).all()


def test_cutout_by_hand():
    images = image([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    holed = augmentation.cutout(images, torch.tensor([[1, -1, 3, 2]]), fill=0.0)
    assert holed[0, 0].tolist() == [[1, 2, 3], [0, 0, 6], [0, 0, 9]]
    assert torch.equal(augmentation.cutout(images, torch.tensor([[1, 1, 1, 2]])), images)


def test_scale_by_hand():
    """Showing half of four columns, the middle two, each value is between two neighbours."""
    images = image([[0, 4, 8, 12], [0, 4, 8, 12]])
    # Pixel centres at −1.5, −0.5, 0.5, 1.5 from the middle look at −0.75, −0.25, 0.25, 0.75.
    nearer = augmentation.scale(images, torch.tensor([[1.0, 0.5]], dtype=torch.float64))
    assert nearer[0, 0].tolist() == pytest.approx(np.array([[3, 5, 7, 9]] * 2))
    # Twice the width: at −3, −1, 1, 3, of which the outer two see nothing but the fill.
    farther = augmentation.scale(images, torch.tensor([[1.0, 2.0]], dtype=torch.float64), fill=2.0)
    assert farther[0, 0].tolist() == pytest.approx(np.array([[2, 2, 10, 2]] * 2))


def test_rotate_by_hand():
    images = image([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
    quarter = torch.tensor([math.pi / 2], dtype=torch.float64)
    turned = augmentation.rotate(images, quarter)
    assert turned[0, 0].tolist() == pytest.approx(np.rot90(images[0, 0].numpy()))
    # An oblong turns rigidly: the middle 2 × 2 of 2 × 4 pixels is a square and stays one.
    oblong = image([[1, 2, 3, 4], [5, 6, 7, 8]])
    middle = augmentation.rotate(oblong, quarter)[0, 0, :, 1:3]
    assert middle.tolist() == pytest.approx(np.rot90([[2.0, 3.0], [6.0, 7.0]]))


def test_flip_by_hand():
    images = image([[1, 2, 3]])
    drawn = draw(1, operations=["flip"], strength=Strength(flip=1.0))
    assert augmentation.apply(images, drawn)[0, 0].tolist() == [[3, 2, 1]]


# ----------------------------------------------------------------------------------- the draw


@pytest.mark.parametrize("one_each", [True, False])
def test_no_strength_no_change(one_each):
    images = some_images(40)
    drawn = draw(40, strength=NOTHING, one_each=one_each)
    torch.testing.assert_close(augmentation.apply(images, drawn), images, atol=1e-12, rtol=0)


def test_no_operation_no_change():
    images = some_images(3)
    assert augmentation.apply(images, draw(3, operations=())) is images


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_changes_images_and_only_where_it_is_active(operation):
    images = some_images(12)
    drawn = draw(12, strength=Strength(flip=1.0))
    column = OPERATIONS.index(operation)
    drawn = Draw(**{**vars(drawn), "active": torch.zeros(12, 6, dtype=torch.bool)})
    drawn.active[:7, column] = True
    made = augmentation.apply(images, drawn)
    assert torch.equal(made[7:], images[7:])
    changed = (made[:7] != images[:7]).flatten(1).any(1)
    assert changed.sum() >= 5  # a shift may be none
    assert made.shape == images.shape


def test_one_draw_serves_any_batch():
    """Three classes; real and condensed images of a class get the same transformation."""
    drawn = draw(3)
    one, classes = some_images(1), torch.tensor([0, 0, 1, 2, 2, 2])
    many = augmentation.apply(one.expand(6, -1, -1, -1), drawn.of(classes))
    few = augmentation.apply(one.expand(3, -1, -1, -1), drawn)
    assert torch.equal(many, few[classes])
    assert not torch.equal(few[0], few[1])
    again = augmentation.apply(one.expand(3, -1, -1, -1), draw(3))
    assert torch.equal(again, few)
    other = augmentation.apply(one.expand(3, -1, -1, -1), draw(3, seed=1))
    assert not torch.equal(other, few)


def test_draws_are_as_likely_as_they_should_be():
    n = 6000
    drawn = draw(n)
    # One in six each, and half of the mirror images.
    expected = np.where(np.array(OPERATIONS) == "flip", 1 / 12, 1 / 6)
    errors = 4 * np.sqrt(expected * (1 - expected) / n)
    assert (np.abs(drawn.active.double().mean(0).numpy() - expected) < errors).all()
    assert drawn.active.sum(1).max() == 1
    assert not draw(n, operations=DIGITS).active[:, OPERATIONS.index("flip")].any()
    assert draw(n, one_each=False, strength=Strength(flip=1.0)).active.all()
    # Shifts of at most 1 of 8 pixels, holes of 4 with any centre, edges included.
    assert set(drawn.shift.flatten().tolist()) == {-1, 0, 1}
    top, left, bottom, right = drawn.hole.T
    assert ((bottom - top == 4) & (right - left == 4)).all()
    assert (int(top.min()), int(top.max())) == (-2, 6)
    assert (int(left.min()), int(left.max())) == (-2, 6)
    for numbers, low, high in (
        (drawn.brightness, -0.25, 0.25),
        (drawn.saturation, 0, 2),
        (drawn.contrast, 0.5, 1.5),
        (drawn.zoom, 1 / 1.2, 1.2),
        (drawn.angle, -math.pi / 12, math.pi / 12),
    ):
        assert low <= numbers.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < numbers.max() <= high


def test_operations_do_not_move_the_stream():
    generators = [stream() for _ in range(3)]
    for generator, operations in zip(generators, ((), DIGITS, OPERATIONS), strict=True):
        augmentation.draw(5, image_size=(8, 8), generator=generator, operations=operations)
    states = [generator.get_state() for generator in generators]
    assert torch.equal(states[0], states[1])
    assert torch.equal(states[0], states[2])


def test_global_states_are_left_alone():
    before = torch.get_rng_state()
    augmentation.apply(some_images(20), draw(20))
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("active", [torch.eye(6), torch.ones(6, 6) - torch.eye(6)])
def test_gradients_are_those_of_finite_differences(active):
    """Of each operation alone, and of all but each, one after another."""
    images = some_images(6, shape=(2, 4, 4)).requires_grad_()
    drawn = Draw(**{**vars(draw(6, seed=3)), "active": active.bool()})
    assert torch.autograd.gradcheck(lambda x: augmentation.apply(x, drawn, fill=-1.0), [images])


def test_gradients_reach_every_pixel_shown():
    images = some_images(6).requires_grad_()
    drawn = Draw(**{**vars(draw(6, seed=3)), "active": torch.eye(6, dtype=torch.bool)})
    augmentation.apply(images, drawn).square().sum().backward()
    reached = (images.grad != 0).flatten(1).double().mean(1)
    by_name = dict(zip(OPERATIONS, reached.tolist(), strict=True))
    assert by_name["colour"] == by_name["flip"] == 1
    assert min(by_name.values()) >= 0.7


def test_single_precision_stays_single():
    made = augmentation.apply(some_images(4).float(), draw(4, one_each=False))
    assert made.dtype == torch.float32


def test_refusals():
    with pytest.raises(WorkbookError, match=r"operations = \['blur'\]; allowed: a list from colou"):
        draw(1, operations=["blur"])
    with pytest.raises(WorkbookError, match="operations = 'flip'; allowed: a list"):
        draw(1, operations="flip")
    with pytest.raises(WorkbookError, match="allowed: each once"):
        draw(1, operations=["flip", "flip"])
    with pytest.raises(WorkbookError, match=r"strength of flip = 1\.5; allowed: 0 to 1"):
        Strength(flip=1.5)
    with pytest.raises(WorkbookError, match=r"strength of scale = -0\.1; allowed: a finite number"):
        Strength(scale=-0.1)
    with pytest.raises(WorkbookError, match="strength of rotate = nan; allowed: 0 to 180"):
        Strength(rotate=math.nan)
    with pytest.raises(WorkbookError, match="3 draws for 2 images; allowed: one each"):
        augmentation.apply(some_images(2), draw(3))
