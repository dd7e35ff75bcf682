"""DP-SGD: what is released, how often, with how much noise, and what is refused."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lib import dpsgd, models
from lib.errors import WorkbookError


def sequence(seed):
    return np.random.SeedSequence(seed)


def train(model, inputs, labels, *, seed=0, **changes):
    """A short training with all its releases."""
    releases = []
    options = {
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling_rate": 0.5,
        "steps": 5,
        "learning_rate": 0.1,
        "expected_batch_size": 10.0,
        "batch_generator": models.generator(sequence([seed, 1])),
        "noise_generator": models.generator(sequence([seed, 2])),
        "on_release": releases.append,
        "progress": False,
    } | changes
    batch_sizes = dpsgd.train(model, inputs, labels, **options)
    return batch_sizes, releases


def linear(n_in=20, n_out=3):
    model = nn.Linear(n_in, n_out)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def examples(n=40, n_in=20, n_out=3):
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.standard_normal((n, n_in)).astype(np.float32))
    return inputs, torch.from_numpy(rng.integers(0, n_out, n))


class Silent(nn.Module):
    """A model whose per-example gradients are all zero."""

    def __init__(self, n_parameters):
        super().__init__()
        self.layer = nn.Linear(n_parameters - 1, 1)

    def forward(self, x):
        return torch.cat([self.layer(x) * 0, torch.zeros(len(x), 1)], dim=1)


@pytest.mark.parametrize("micro_batch_size", [1, 7, 1000])
def test_noise_is_sigma_times_clip_norm_whatever_the_micro_batches(micro_batch_size):
    _, releases = train(
        Silent(26_000),
        torch.ones(50, 25_999),
        torch.zeros(50, dtype=torch.int64),
        noise_multiplier=1.1,
        clip_norm=2.0,
        sampling_rate=1.0,
        steps=1,
        micro_batch_size=micro_batch_size,
    )
    # Three standard errors of a standard deviation from 26,000 draws are 1.3 %.
    assert releases[0].gradient.std() == pytest.approx(2.2, rel=0.0132)
    assert not releases[0].ordinary.any()


def test_the_step_taken_is_the_release_over_the_public_divisor():
    model = linear()
    inputs, labels = examples()
    _, releases = train(model, inputs, labels, steps=1, expected_batch_size=16.0, learning_rate=0.3)
    moved = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    np.testing.assert_allclose(moved, -0.3 * releases[0].gradient / 16.0, rtol=1e-5)


def test_divisor_and_noise_do_not_depend_on_the_data():
    # One example fewer, a batch size that rounds to another floor: same noise, same divisor.
    moves = []
    for n in (200, 199):
        model = Silent(26_000)
        before = model.layer.weight.detach().clone()
        train(
            model,
            torch.ones(n, 25_999),
            torch.zeros(n, dtype=torch.int64),
            sampling_rate=0.01,
            steps=1,
            expected_batch_size=2.0,
        )
        moves.append((model.layer.weight.detach() - before).std())
    assert moves[0] / moves[1] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("micro_batch_size", [3, 1000])
def test_clipped_sum_is_recomputed_by_independent_code(micro_batch_size):
    shape = (8, 8, 1)
    model = models.build("small_cnn", shape, 10, sequence(3))
    rng = np.random.default_rng(4)
    inputs = torch.from_numpy(rng.standard_normal((12, 1, 8, 8)).astype(np.float32)) * 3
    labels = torch.from_numpy(rng.integers(0, 10, 12))
    expected = 0
    n_clipped = 0
    for x, y in zip(inputs, labels, strict=True):
        loss = nn.functional.cross_entropy(model(x[None]), y[None])
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
        norm = gradient.double().norm()  # over all layers jointly
        n_clipped += int(norm > 0.7)
        expected = expected + gradient.double() * min(1.0, 0.7 / norm)
    _, releases = train(
        model,
        inputs,
        labels,
        clip_norm=0.7,
        sampling_rate=1.0,
        steps=1,
        micro_batch_size=micro_batch_size,
    )
    assert n_clipped > 0
    np.testing.assert_allclose(releases[0].ordinary, expected.numpy(), atol=2e-5)


def test_two_large_examples_move_the_sum_by_at_most_twice_the_norm():
    inputs, labels = examples(2)
    _, releases = train(linear(), inputs * 1e4, labels, sampling_rate=1.0, clip_norm=2.0, steps=1)
    assert np.linalg.norm(releases[0].ordinary) <= 4.0 * (1 + 1e-6)


def test_empty_batches_are_steps_of_pure_noise():
    inputs, labels = examples(100)
    batch_sizes, releases = train(
        linear(), inputs, labels, sampling_rate=0.01, steps=100, micro_batch_size=1, seed=1
    )
    # P(empty) = 0.366: 37 ± 4 standard deviations of 100.
    n_empty = int((batch_sizes == 0).sum())
    assert 17 <= n_empty <= 57
    assert [release.step for release in releases] == list(range(100))
    empty = [release for release in releases if batch_sizes[release.step] == 0]
    assert not np.concatenate([release.ordinary for release in empty]).any()
    noise = np.concatenate([release.gradient for release in empty])
    assert noise.std() == pytest.approx(1.0, abs=4 / math.sqrt(2 * noise.size))


def test_first_batch_empty_and_integer_inputs():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 3))
    inputs = torch.randint(0, 5, (4, 2), generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(4, dtype=torch.int64)
    batch_sizes, releases = train(model, inputs, labels, sampling_rate=0.05, steps=30)
    assert batch_sizes[0] == 0
    assert batch_sizes.max() > 0
    assert len(releases) == 30


def test_batches_are_poisson_samples():
    inputs, labels = examples(1000, n_in=2)
    batch_sizes, _ = train(linear(2), inputs, labels, sampling_rate=0.05, steps=400)
    assert len(batch_sizes) == 400
    assert batch_sizes.mean() == pytest.approx(50, abs=4 * 6.89 / 20)
    # Four standard errors of a standard deviation from 400 draws: 14 %. A shuffle has 0.
    assert batch_sizes.std() == pytest.approx(6.89, rel=0.14)


def test_each_example_is_drawn_binomially_often():
    # Example i moves weight i alone, so the ordinary sums show who was drawn.
    n, steps = 500, 400
    model = nn.Linear(n, 2, bias=False)
    nn.init.zeros_(model.weight)
    _, releases = train(
        model,
        torch.eye(n) * 100,
        torch.zeros(n, dtype=torch.int64),
        sampling_rate=0.05,
        steps=steps,
        learning_rate=1e-9,
    )
    drawn = sum((release.ordinary[:n] != 0).astype(int) for release in releases)
    assert drawn.mean() == pytest.approx(20, abs=4 * math.sqrt(19 / n))
    assert drawn.var() == pytest.approx(19, rel=4 * math.sqrt(2 / n))


def test_extra_gradient_enters_before_the_noise_and_only_there():
    inputs, labels = examples()
    d = sum(p.numel() for p in linear().parameters())
    extra = np.arange(d, dtype=np.float32)
    _, without = train(linear(), inputs, labels, steps=1)
    _, with_extra = train(linear(), inputs, labels, steps=1, extra_gradient=lambda step: extra)
    np.testing.assert_array_equal(without[0].ordinary, with_extra[0].ordinary)
    np.testing.assert_allclose(with_extra[0].gradient - without[0].gradient, extra, atol=1e-4)


def test_same_seeds_same_weights_and_global_generators_untouched():
    inputs, labels = examples()
    trained = [(seed, linear()) for seed in (0, 0, 1)]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for seed, model in trained:
        train(model, inputs, labels, seed=seed)
    assert torch.equal(before, torch.get_rng_state())
    weights = [model.weight for _, model in trained]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_model_is_left_as_it_came():
    model = linear()
    inputs, labels = examples()
    train(model, inputs, labels)
    assert all(p.grad is None for p in model.parameters())
    model(inputs).sum().backward()  # no hook is left behind
    assert model.weight.grad.shape == model.weight.shape


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier = -1.0"),
        ({"noise_multiplier": math.nan}, "noise_multiplier = nan"),
        ({"clip_norm": 0.0}, "clip_norm = 0.0"),
        ({"sampling_rate": 0.0}, "sampling_rate = 0.0"),
        ({"sampling_rate": 1.5}, "sampling_rate = 1.5"),
        ({"steps": 0}, "steps = 0"),
        ({"expected_batch_size": 0.0}, "expected_batch_size = 0.0"),
        ({"micro_batch_size": 0}, "micro_batch_size = 0"),
        ({"learning_rate": math.inf}, "learning_rate = inf"),
    ],
)
def test_refuses_numbers_by_name(change, words):
    with pytest.raises(WorkbookError, match=words):
        train(linear(), *examples(), **change)


def test_refuses_models_and_examples_by_name():
    inputs, labels = examples()
    mixing = nn.Sequential(nn.Linear(20, 3), nn.BatchNorm1d(3))
    with pytest.raises(WorkbookError, match="layer '1' is BatchNorm1d"):
        train(mixing, inputs, labels)
    with pytest.raises(WorkbookError, match="no trainable parameter"):
        train(linear().requires_grad_(False), inputs, labels)
    poisoned = inputs.clone()
    poisoned[3, 2] = math.nan
    with pytest.raises(WorkbookError, match=r"not finite \(first at example 3\)"):
        train(linear(), poisoned, labels)
    with pytest.raises(WorkbookError, match="40 inputs and 39 labels"):
        train(linear(), inputs, labels[:-1])
    with pytest.raises(WorkbookError, match=r"labels are torch.float32"):
        train(linear(), inputs, labels.float())


def test_divergence_is_told_in_one_line():
    inputs, labels = examples()
    with pytest.raises(WorkbookError, match="training diverged: step"):
        train(linear(), inputs * 1e3, labels, learning_rate=1e38, steps=20)
