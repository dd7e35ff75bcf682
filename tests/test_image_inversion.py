"""Attacks that draw images: their loss against autograd, what they find, and what noise hides."""

import numpy as np
import pytest
import torch
from torch import nn

from lib import image_inversion, inversion
from lib.errors import WorkbookError

N_PIXELS, UNITS, CLASSES, STEPS = 36, 8, 4, 3
SHAPES = ((UNITS, N_PIXELS + 1), (CLASSES, UNITS + 1))
KNOWN, TARGETS = np.arange(6), np.arange(6, 9)


def attacked(noise_multiplier, *, clip_norm=1.0, seed=0):
    """Images, labels, and what an attacker sees of three runs, one a target."""
    rng = np.random.default_rng(seed)
    images = rng.random((9, N_PIXELS)).astype(np.float32)
    labels = rng.integers(CLASSES, size=9)
    initial = inversion.initial_weights(SHAPES, rng, N_PIXELS)
    shape = (len(TARGETS), STEPS, len(initial))
    seen = {name: np.empty(shape, np.float32) for name in ("parameters", "residuals")}

    def note(release):
        seen["parameters"][release.runs, release.step] = release.parameters
        seen["residuals"][release.runs, release.step] = release.gradient - release.ordinary

    inversion.train(
        inputs=images,
        labels=labels,
        known=KNOWN,
        candidates=TARGETS[:, None],
        noise_multiplier=noise_multiplier,
        clip_norm=clip_norm,
        sampling_rate=1.0,
        steps=STEPS,
        learning_rate=0.5,
        hidden_units=UNITS,
        n_classes=CLASSES,
        sequence=np.random.SeedSequence(seed),
        activation="tanh",
        basis="inputs",
        initial=initial,
        on_release=note,
    )
    return images, labels, initial, seen


def clipped_gradient(weights, image, label, clip_norm):
    """By torch's own differentiation of an ordinary network; (d,) in the library's order."""
    hidden, output = np.split(weights, [UNITS * (N_PIXELS + 1)])
    layers = []
    for flat, shape in zip((hidden, output), SHAPES, strict=True):
        layer = nn.Linear(shape[1] - 1, shape[0])
        matrix = torch.from_numpy(flat.reshape(shape))
        layer.weight.data, layer.bias.data = matrix[:, :-1].clone(), matrix[:, -1].clone()
        layers.append(layer)
    scores = layers[1](torch.tanh(layers[0](torch.from_numpy(image)[None])))
    nn.functional.cross_entropy(scores, torch.tensor([label])).backward()
    flat = np.concatenate(
        [torch.cat([x.weight.grad, x.bias.grad[:, None]], dim=1).numpy().ravel() for x in layers]
    )
    return flat * min(1.0, clip_norm / np.linalg.norm(flat))


def problem(seen, labels, clip_norm=1.0):
    one_hot = nn.functional.one_hot(torch.from_numpy(labels[TARGETS]), CLASSES)[:, None].float()
    layers = [image_inversion._layers(torch.from_numpy(x), SHAPES) for x in seen.values()]
    return image_inversion._Seen(*layers, one_hot, clip_norm)


@pytest.mark.parametrize("clip_norm", [1.0, 100.0])  # the latter shortens nothing
def test_loss_is_that_of_the_clipped_gradients(clip_norm):
    _images, labels, _, seen = attacked(0.5, clip_norm=clip_norm)
    candidates = np.random.default_rng(1).random((3, N_PIXELS)).astype(np.float32)
    losses = image_inversion.losses(
        torch.from_numpy(candidates), problem(seen, labels, clip_norm)
    ).numpy()
    for number, target in enumerate(TARGETS):
        expected = 0.0
        for step in range(STEPS):
            weights, residual = (array[number, step] for array in seen.values())
            gradient = clipped_gradient(weights, candidates[number], labels[target], clip_norm)
            expected += np.abs(gradient - residual).sum() - gradient @ residual
        assert losses[number] == pytest.approx(expected, rel=1e-5)


def test_cheap_slope_is_the_slope_of_the_loss():
    _, labels, _, seen = attacked(0.5)
    slopes = []
    for function in (lambda x, s: image_inversion.losses(x, s).sum(), image_inversion._same_slope):
        images = torch.full((3, N_PIXELS), 0.3, requires_grad=True)
        function(images, problem(seen, labels)).backward()
        slopes.append(images.grad.numpy())
    assert slopes[1] == pytest.approx(slopes[0], rel=1e-3, abs=1e-3)
    assert np.abs(slopes[0]).max() > 0.1


def test_without_noise_the_residual_is_the_targets_gradient_and_gives_it_away():
    images, labels, initial, seen = attacked(0.0)
    assert (seen["parameters"][:, 0] == initial.astype(np.float32)).all()
    for number, target in enumerate(TARGETS):
        gradient = clipped_gradient(
            seen["parameters"][number, 1], images[target], labels[target], 1.0
        )
        assert seen["residuals"][number, 1] == pytest.approx(gradient, abs=1e-5)
    found = image_inversion.from_gradients(
        **seen, labels=labels[TARGETS], shapes=SHAPES, clip_norm=1.0
    )
    assert found.min() >= 0
    assert found.max() <= 1
    assert np.mean((found - images[TARGETS]) ** 2) < 1e-4


def test_much_noise_hides_the_target():
    images, labels, _, seen = attacked(100.0)
    found = image_inversion.from_gradients(
        **seen, labels=labels[TARGETS], shapes=SHAPES, clip_norm=1.0, iterations=50
    )
    assert np.mean((found - images[TARGETS]) ** 2) > 0.1  # two uniform images differ by 1/6


def test_initial_weights_are_checked():
    images = np.zeros((2, 3), np.float32)
    setting = {
        "inputs": images,
        "labels": np.array([0, 1]),
        "known": np.array([0]),
        "candidates": np.array([[1]]),
        "noise_multiplier": 1.0,
        "clip_norm": 1.0,
        "sampling_rate": 1.0,
        "steps": 1,
        "learning_rate": 1.0,
        "hidden_units": 2,
        "n_classes": 2,
        "sequence": np.random.SeedSequence(0),
    }
    with pytest.raises(WorkbookError, match=r"initial of shape \(3,\); allowed: 14 finite"):
        inversion.train(**setting, basis="inputs", initial=np.zeros(3))
    with pytest.raises(WorkbookError, match="allowed: basis = 'inputs'"):
        inversion.train(**setting, basis="span", initial=np.zeros(14))


# --------------------------------------------------------------------------- the reconstructor


def test_main_directions_are_those_of_the_largest_scatter():
    rng = np.random.default_rng(0)
    basis = np.linalg.qr(rng.standard_normal((50, 5)))[0]
    rows = rng.standard_normal((200, 5)) * [5, 4, 3, 2, 1] @ basis.T
    rows += 1e-3 * rng.standard_normal(rows.shape)
    found = image_inversion.main_directions(rows, 3, rng)
    assert found.T @ found == pytest.approx(np.eye(3), abs=1e-9)
    exact = np.linalg.svd(rows, full_matrices=False)[2][:3].T
    assert np.abs((found * exact).sum(axis=0)) == pytest.approx(1.0, abs=1e-4)
    assert image_inversion.main_directions(rows[:2], 3, rng).shape == (50, 2)


def shadow_models(signal, seed=0, n=600):
    """Weights that are the image's pixels, mixed, and noise."""
    rng = np.random.default_rng(seed)
    images = (rng.random((n, 2)) @ np.array([[1, 0.5, 0, 0.2], [0, 0.5, 1, 0.3]])) / 1.5
    mixing = np.random.default_rng(99).standard_normal((4, 30))
    weights = signal * images @ mixing + 0.1 * rng.standard_normal((n, 30)) + 3.0
    return weights.astype(np.float32), images.astype(np.float32)


def errors(signal):
    weights, images = shadow_models(signal)
    attack = image_inversion.train_reconstructor(weights, images, np.random.SeedSequence(1))
    weights, targets = shadow_models(signal, seed=5, n=100)
    found = attack(weights)
    assert found.min() >= 0
    assert found.max() <= 1
    return np.mean((found - targets) ** 2), np.mean((images.mean(axis=0) - targets) ** 2)


def test_reconstructor_reads_what_is_there_and_else_answers_with_the_mean_image():
    error, of_mean = errors(signal=1.0)
    assert error < 0.05 * of_mean
    error, of_mean = errors(signal=0.0)
    assert error == pytest.approx(of_mean, rel=0.05)


def test_reconstructor_depends_on_its_stream_alone():
    before = torch.get_rng_state()
    answers = []
    for seed in (1, 1, 2):
        weights, images = shadow_models(1.0, n=100)
        sequence = np.random.SeedSequence(seed)
        for _ in range(2):  # a sequence that was used before gives the same
            attack = image_inversion.train_reconstructor(weights.copy(), images, sequence)
            answers.append(attack(weights[:3]))
    assert (answers[0] == answers[1]).all()
    assert (answers[0] == answers[2]).all()
    assert (answers[0] != answers[4]).any()
    assert torch.equal(before, torch.get_rng_state())
