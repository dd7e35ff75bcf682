"""Distribution matching: its loss, its streams, its linear case in closed form, its refusals."""

import random

import numpy as np
import pytest
import torch

from lib import augmentation, condensation, models
from lib import condensation_schemes as schemes
from lib.errors import WorkbookError

# (height, width, channels): the smallest that three halvings leave a pixel of.
SHAPE = (8, 8, 2)


def sequence(seed=0):
    return np.random.SeedSequence(seed)


def dataset(counts, *, seed=1, shape=SHAPE, dtype=torch.float32):
    """Images of different means a class, in mixed order."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    noise = torch.randn(
        len(labels), shape[2], *shape[:2], generator=models.generator(sequence(seed)), dtype=dtype
    )
    images = 0.3 * noise + 0.2 * labels[:, None, None, None]
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    return images[order], labels[order]


def condense(images, labels, **options):
    quick = {"n_per_class": 2, "n_iterations": 3, "width": 4, "sequence": sequence()}
    return condensation.condense(images, labels, **quick | options)


def identity(sequence):
    return lambda images: images.flatten(1)


# ------------------------------------------------------------------------------- the algorithm


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3)])
def test_shapes_types_and_labels(shape):
    images, labels = dataset([3, 1], shape=shape)
    made = condense(images, labels, n_iterations=1)
    assert made.images.shape == (4, shape[2], *shape[:2])
    assert made.images.dtype == torch.float32
    assert not made.images.requires_grad
    assert made.labels.tolist() == [0, 0, 1, 1]
    assert made.losses.shape == (1,)
    assert made.losses.dtype == np.float64


def test_same_seed_same_bytes_and_nothing_else_touched():
    images, labels = dataset([5, 4, 1])
    kept = images.clone(), labels.clone()
    seeds = sequence()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    one = condense(images, labels, real_batch=3, sequence=seeds)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert before[2] == random.getstate()
    assert torch.equal(kept[0], images)
    assert torch.equal(kept[1], labels)
    assert seeds.n_children_spawned == 0
    # Whatever state the global generators are in, and with the same sequence handed over again.
    torch.rand(3), np.random.rand(3), random.random()  # noqa: NPY002
    same = condense(images, labels, real_batch=3, sequence=seeds)
    assert one.images.numpy().tobytes() == same.images.numpy().tobytes()
    assert one.losses.tobytes() == same.losses.tobytes()
    other = condense(images, labels, real_batch=3, sequence=sequence(1))
    assert not torch.equal(one.images, other.images)


def test_no_iteration_gives_the_start_exactly():
    images, labels = dataset([3, 3])
    subset = torch.cat([images[labels == c][:2] for c in (0, 1)])
    made = condense(images, labels, n_iterations=0, initial=subset)
    assert torch.equal(made.images, subset)
    assert made.images.data_ptr() != subset.data_ptr()
    assert made.losses.shape == (0,)
    noise = condense(images, labels, n_iterations=0).images
    assert not torch.equal(
        noise, condense(images, labels, n_iterations=0, sequence=sequence(1)).images
    )
    # Noise sees no image.
    assert torch.equal(noise, condense(images + 1, labels, n_iterations=0).images)


def test_the_start_is_left_alone():
    images, labels = dataset([2, 2])
    start = torch.cat([images[labels == c] for c in (0, 1)]) * 1.5
    kept = start.clone()
    made = condense(images, labels, initial=start)
    assert torch.equal(start, kept)
    assert not torch.equal(made.images, kept)
    assert not start.requires_grad


@pytest.mark.parametrize("chunk", [1, 5, 2048])
def test_loss_and_gradient_are_those_of_a_loop_over_classes(chunk, monkeypatch):
    """One step by the book: a forward pass a class, real and condensed, autograd, one SGD step."""
    monkeypatch.setitem(condensation.CHUNK, "cpu", chunk)
    monkeypatch.setattr(condensation, "BLOCK", max(chunk, 4))
    images, labels = dataset([6, 1, 4], dtype=torch.float64)
    start = condense(images, labels, n_iterations=0, dtype=torch.float64).images
    made = condense(images, labels, n_iterations=1, dtype=torch.float64, learning_rate=0.7)

    stream = condensation._stream
    network = models.build("conv_net", SHAPE, 1, stream(sequence(), "extractors", 0), width=4)
    network = network.double()
    drawn = augmentation.draw(
        3, image_size=(8, 8), generator=models.generator(stream(sequence(), "augmentation"))
    )
    synthetic = start.clone().requires_grad_()
    loss = 0.0
    for c in range(3):
        means = []
        for batch in (images[labels == c], synthetic[2 * c : 2 * c + 2]):
            row = drawn.of(torch.full((len(batch),), c))
            means.append(models.features(network, augmentation.apply(batch, row)).mean(0))
        loss = loss + ((means[0].detach() - means[1]) ** 2).sum()
    loss.backward()
    assert made.losses[0] == pytest.approx(loss.item(), rel=1e-10)
    torch.testing.assert_close(made.images, start - 0.7 * synthetic.grad, rtol=0, atol=1e-10)


def test_momentum():
    """With fixed features f the gradient is known: steps g₁, then g₂ + g₁ / 2, by hand."""
    images, labels = torch.full((1, 1, 1, 1), 3.0), torch.tensor([0])
    options = {"extractor": identity, "operations": (), "n_per_class": 1, "learning_rate": 0.1}
    made = condense(images, labels, initial=torch.zeros(1, 1, 1, 1), n_iterations=2, **options)
    # Gradient 2 (s − 3): −6 at 0, then −4.8 at 0.6, with momentum −7.8.
    assert made.images.item() == pytest.approx(0.6 + 0.78)
    assert made.losses.tolist() == pytest.approx([9, 2.4**2])


def test_steps_in_deviations_of_a_pixel_are_the_papers():
    """Half the pixels' scale, and steps for it: the same images at half the scale."""
    images, labels = dataset([4, 4], shape=(16, 16, 3), dtype=torch.float64)
    options = {"operations": ("flip", "crop"), "dtype": torch.float64, "n_iterations": 2}
    start, scale, width = images[:4], schemes.PIXEL_DEVIATION, 8
    as_published = {"learning_rate": 0.1 * schemes.PAPER_WIDTH / width, "width": width}
    ours = {"learning_rate": schemes.image_step(0.1, width=width), "width": width}
    whole = condense(images, labels, initial=start, **as_published, **options).images
    half = condense(scale * images, labels, initial=scale * start, **ours, **options).images
    moved = (whole - start).abs().max()
    assert moved > 0.05
    # Instance norm adds 1e-5 to variances; steps of another scale would be off by half or more.
    assert (half / scale - whole).abs().max() < 0.1 * moved


def test_loss_falls_and_means_come_closer():
    """Beside a run that stands still and so shows what the same networks make of the start."""
    images, labels = dataset([20, 20], shape=(16, 16, 1))
    options = {"n_per_class": 3, "width": 16, "n_iterations": 40}
    moved = condense(images, labels, **options)
    still = condense(images, labels, **options, learning_rate=1e-9)
    assert moved.losses[0] == still.losses[0]
    assert moved.losses[-15:].sum() < 0.7 * still.losses[-15:].sum()

    def distance(condensed):
        grouped = condensed.images.unflatten(0, (2, 3)).mean(1)
        real = torch.stack([images[labels == c].mean(0) for c in (0, 1)])
        return (grouped - real).norm()

    assert distance(moved) < distance(still)


def test_double_precision():
    images, labels = dataset([2, 2], dtype=torch.float64)
    made = condense(images, labels, dtype=torch.float64)
    assert made.images.dtype == torch.float64
    single = condense(images, labels)
    assert single.images.dtype == torch.float32
    torch.testing.assert_close(made.images.float(), single.images, atol=1e-3, rtol=1e-3)


# ----------------------------------------------------------------------------------- streams


def recording(seen):
    """Extractor that keeps what it is shown."""

    def extractor(sequence):
        def features(images):
            seen.append(images.detach().clone())
            return images.flatten(1)

        return features

    return extractor


def test_real_and_condensed_share_each_steps_draw_and_steps_do_not():
    """The one image of a class is also its condensed image: they stay equal through every draw."""
    images, labels = dataset([1, 1, 1])
    start = torch.cat([images[labels == c] for c in range(3)])
    seen = []
    made = condense(
        images,
        labels,
        initial=start,
        n_per_class=1,
        n_iterations=6,
        extractor=recording(seen),
    )
    assert len(seen) == 12
    assert all(torch.equal(real, fake) for real, fake in zip(seen[::2], seen[1::2], strict=True))
    assert (made.losses == 0).all()
    assert torch.equal(made.images, start)
    # Another draw each step and for each class: with 18 draws few can leave an image alone.
    changed = torch.stack(seen[::2]) != start
    assert changed.flatten(2).any(2).sum() >= 9
    assert len({real.numpy().tobytes() for real in seen[::2]}) == 6


def test_extractors_are_fresh_each_iteration():
    images, labels = dataset([2, 2])
    seeds = []

    def extractor(sequence):
        seeds.append(tuple(sequence.generate_state(4)))
        return lambda images: images.flatten(1)

    condense(images, labels, n_iterations=5, extractor=extractor)
    assert len(set(seeds)) == 5
    network = condensation.conv_net_extractor(SHAPE, width=4)
    one, same, other = (network(sequence(seed))(images) for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_batches_are_without_repetition_and_their_own_class():
    images, labels = dataset([10, 3, 1])
    images = images + torch.arange(14.0)[:, None, None, None] * 100  # each can be told
    seen = []
    options = {"real_batch": 4, "operations": (), "learning_rate": 1e-6}
    condense(images, labels, n_iterations=8, extractor=recording(seen), **options)
    drawn = set()
    for shown in seen[::2]:
        rows = [int((images == image).flatten(1).all(1).nonzero()) for image in shown]
        assert labels[rows].tolist() == [0] * 4 + [1] * 3 + [2]
        assert len(set(rows)) == 8
        drawn.add(tuple(rows[:4]))
    assert len(drawn) > 1


def test_another_size_of_one_class_moves_nothing_of_the_others():
    """D and D′ of the worst-case audit: class 0 with one image or two."""
    images, labels = dataset([2, 9, 9], dtype=torch.float64)
    second = (labels == 0).nonzero()[1, 0]
    without = torch.arange(len(images)) != second
    options = {"real_batch": 4, "dtype": torch.float64, "n_iterations": 4}
    larger = condense(images, labels, **options).images
    smaller = condense(images[without], labels[without], **options).images
    torch.testing.assert_close(larger[2:], smaller[2:], rtol=0, atol=1e-12)
    assert (larger[:2] - smaller[:2]).abs().max() > 1e-3


def test_a_single_image_of_a_class_is_approached():
    images, labels = dataset([1, 5])
    options = {"operations": (), "extractor": identity, "n_iterations": 60}
    made = condense(images, labels, **options)
    target = images[labels == 0][0]
    torch.testing.assert_close(made.images[:2].mean(0), target, atol=1e-4, rtol=0)


def test_operations_reach_the_images():
    images, labels = dataset([3, 3])
    default = condense(images, labels)
    for options in (
        {"operations": ()},
        {"operations": augmentation.DIGITS},
        {"one_each": False},
        {"strength": augmentation.Strength(rotate=90, crop=0.5, brightness=3)},
        {"fill": -1.0},
    ):
        assert not torch.equal(
            condense(images, labels, **options, n_iterations=8).images,
            condense(images, labels, n_iterations=8).images,
        )
    assert default.losses.shape == (3,)


def test_noise():
    noise = condensation.noise_images(500, SHAPE, sequence())
    assert noise.shape == (500, 2, 8, 8)
    # 64,000 numbers: within four standard errors.
    assert abs(noise.mean()) < 4 * 0.5 / np.sqrt(64_000)
    assert abs(noise.std() - 0.5) < 4 * 0.5 / np.sqrt(2 * 64_000)
    centred = condensation.noise_images(3, SHAPE, sequence(), standard_deviation=1, centred=True)
    torch.testing.assert_close(centred.mean(0), torch.zeros(2, 8, 8), atol=1e-6, rtol=0)


# ------------------------------------------------------------------------------ linear theory


@pytest.mark.parametrize("n_features", [32, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_features_only_shift_the_start(n_features, dtype):
    """Proposition 4.4, to 1e-4, though every iteration has another map and 32 features see 128."""
    images, labels = dataset([7, 1], shape=SHAPE)
    start = condensation.noise_images(8, SHAPE, sequence(5))
    options = {"operations": (), "initial": start, "n_per_class": 4, "dtype": dtype}
    extractor = condensation.linear_extractor(SHAPE, n_features, dtype=dtype)
    made = condense(images, labels, n_iterations=200, extractor=extractor, **options)
    closed = condensation.linear_shift(start, images, labels, n_per_class=4)
    torch.testing.assert_close(made.images, closed.to(dtype), atol=1e-4, rtol=0)
    assert made.losses[-1] < 1e-8 < made.losses[0]
    assert (closed - start).abs().max() > 0.1


def test_linear_shift_by_hand():
    images = torch.tensor([1.0, 3.0, 10.0]).reshape(3, 1, 1, 1)
    labels = [0, 0, 1]
    initial = torch.tensor([0.0, 1.0, 5.0, 7.0]).reshape(4, 1, 1, 1)
    moved = condensation.linear_shift(initial, images, labels, n_per_class=2)
    # Means 2 and 10 in place of 0.5 and 6.
    assert moved.flatten().tolist() == [1.5, 2.5, 9.0, 11.0]


def test_linear_shift_is_small_from_real_images_and_none_from_centred_noise():
    images, _ = dataset([400])
    labels = torch.zeros(400, dtype=torch.int64)
    real = images[:50]
    shift = condensation.linear_shift(real, images, labels, n_per_class=50) - real
    # A mean of 50 of 400 pixels of standard deviation 0.3 is off by 0.04.
    expected = 0.3 * np.sqrt(1 / 50 - 1 / 400)
    assert shift[0].square().mean().sqrt().item() == pytest.approx(expected, rel=0.3)
    noise = condensation.noise_images(10, SHAPE, sequence(), centred=True)
    same = condensation.linear_shift(noise, images - images.mean(0), labels, n_per_class=10)
    torch.testing.assert_close(same, noise, atol=1e-6, rtol=0)


# -------------------------------------------------------------------- the exponential mechanism


def test_exponential_mechanism_is_twice_the_range_and_no_less():
    """Exact worst ratio over many neighbours: never above ε, and as good as ε for a rare model."""
    highest = 0.8
    epsilon = condensation.exponential_mechanism_epsilon(lowest=0.0, highest=highest)
    assert epsilon == pytest.approx(1.6)
    rng = np.random.default_rng(0)

    def worst(prior, one, other):
        rates = [prior * np.exp(-losses) for losses in (one, other)]
        logs = [np.log(rate / rate.sum()) for rate in rates]
        return np.abs(logs[0] - logs[1]).max()

    for _ in range(200):
        prior = rng.dirichlet(np.ones(6))
        rest = rng.uniform(0, 5 * highest, 6)
        one, other = rng.uniform(0, highest, (2, 6))
        assert worst(prior, rest + one, rest + other) <= epsilon + 1e-9
    rare = np.array([1e-9, 1 - 1e-9])
    found = worst(rare, np.array([0.0, highest]), np.array([highest, 0.0]))
    assert found == pytest.approx(epsilon, abs=1e-6)


def test_exponential_mechanism_of_arrays():
    found = condensation.exponential_mechanism_epsilon(
        lowest=[0.0, 1.0, 0.0], highest=[2.5, 1.0, np.inf]
    )
    assert found.tolist() == [5.0, 0.0, np.inf]


# ----------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_per_class": 0}, "n_per_class = 0; allowed: a whole number of at least 1"),
        ({"n_iterations": -1}, "n_iterations = -1; allowed: a whole number of at least 0"),
        ({"learning_rate": 0.0}, "learning_rate = 0.0; allowed: a finite number above 0"),
        ({"momentum": 1.0}, "momentum = 1.0; allowed: a number in [0, 1)"),
        ({"real_batch": 0}, "real_batch = 0; allowed: a whole number of at least 1"),
        ({"dtype": torch.float16}, "dtype = torch.float16; allowed: torch.float32, torch.float64"),
        ({"operations": ["mirror"]}, "operations = ['mirror']; allowed: a list from"),
        ({"width": 0}, "width = 0; allowed: at least 1"),
        ({"initial": torch.zeros(3, 2, 8, 8)}, "initial has shape (3, 2, 8, 8); allowed: finite"),
        ({"initial": torch.full((4, 2, 8, 8), np.nan)}, "allowed: finite numbers of shape (4, 2,"),
        ({"learning_rate": 1e30}, "lower learning_rate = 1e+30"),
    ],
)
def test_refused_options(options, message):
    images, labels = dataset([2, 2])
    with pytest.raises(WorkbookError) as caught:
        condense(images, labels, **options)
    assert message in str(caught.value)


def test_refused_data():
    images, labels = dataset([2, 2])
    for bad, message in (
        (
            (images[0], labels),
            "images are torch.float32 of shape (2, 8, 8); allowed: finite floats",
        ),
        ((images.long(), labels), "images are torch.int64"),
        ((images * np.inf, labels), "allowed: finite floats"),
        ((images, labels[:3]), "labels of shape (3,) for 4 images; allowed: one each"),
        ((images[:0], labels[:0]), "labels of shape (0,) for 0 images"),
        ((images, labels.float()), "labels are torch.float32"),
        ((images, labels - 1), "the smallest -1; allowed: whole numbers of at least 0"),
        ((images, 2 * labels), "class 1 of 3 has no image; allowed: at least 1 in each"),
    ):
        with pytest.raises(WorkbookError) as caught:
            condense(*bad)
        assert message in str(caught.value)


def test_refused_theory():
    with pytest.raises(WorkbookError, match=r"lowest = 2\.0, highest = 1\.0; allowed: lowest fin"):
        condensation.exponential_mechanism_epsilon(lowest=2, highest=1)
    with pytest.raises(WorkbookError, match="highest = nan"):
        condensation.exponential_mechanism_epsilon(lowest=0, highest=np.nan)
    with pytest.raises(WorkbookError, match="n_features = 0; allowed: at least 1"):
        condensation.linear_extractor(SHAPE, 0)
    images, labels = dataset([2, 2])
    with pytest.raises(WorkbookError, match="initial has shape"):
        condensation.linear_shift(images[:3], images, labels, n_per_class=2)
