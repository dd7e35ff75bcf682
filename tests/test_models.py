"""Networks, their seeds, and the stream of random numbers behind them."""

import numpy as np
import pytest
import torch

from lib import models
from lib.errors import WorkbookError


def test_generator_is_the_mersenne_twister_of_the_whole_sequence():
    sequence = np.random.SeedSequence(7)
    ours = torch.rand(5, generator=models.generator(sequence)).double().numpy()
    twister = np.random.MT19937()
    state = {"key": sequence.generate_state(624), "pos": 624}
    twister.state = {"bit_generator": "MT19937", "state": state}
    # Torch makes a float of the low 24 bits of each word.
    assert (ours == (twister.random_raw(5) & (2**24 - 1)) / 2**24).all()


def test_generators_differ_where_32_bits_would_not():
    draws = {
        tuple(torch.randn(4, generator=models.generator(np.random.SeedSequence(seed))).tolist())
        for seed in (1, 1 + 2**32, 1 + 2**64, 2)
    }
    assert len(draws) == 4


@pytest.mark.parametrize("network", models.NETWORKS)
def test_same_seed_same_weights_and_nothing_else_touched(network):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = (
        models.build(network, (32, 32, 3), 10, np.random.SeedSequence(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(before, torch.get_rng_state())
    flat = [torch.cat([p.flatten() for p in model.parameters()]) for model in (one, same, other)]
    assert torch.equal(flat[0], flat[1])
    assert not torch.equal(flat[0], flat[2])
    assert one(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_sizes():
    def size(network, shape):
        return models.n_parameters(models.build(network, shape, 10, np.random.SeedSequence(0)))

    assert size("small_cnn", (28, 28, 1)) == 56_394
    assert size("small_cnn", (32, 32, 3)) == 56_970
    assert size("wrn_16_4", (32, 32, 3)) == 2_748_890
    assert size("conv_net", (32, 32, 3)) == 320_010
    # First convolution and classifier, for one colour; the map before it is 4 × 4 in either case.
    assert size("conv_net", (28, 28, 1)) == 320_010 - 2 * 9 * 128


@pytest.mark.parametrize("shape", [(28, 28, 1), (32, 32, 3), (9, 16, 2)])
def test_conv_net_embeds_before_it_classifies(shape):
    model = models.build("conv_net", shape, 5, np.random.SeedSequence(0), width=4)
    images = torch.rand(
        3, shape[2], *shape[:2], generator=models.generator(np.random.SeedSequence(1))
    )
    embedded = models.features(model, images)
    assert embedded.shape == (3, 4 * {28: 16, 32: 16, 9: 4}[shape[0]])
    assert torch.equal(model[-1](embedded), model(images))
    # Instance norm: an image's embedding is its own, whatever stands beside it, ...
    alone = torch.cat([models.features(model, image[None]) for image in images])
    torch.testing.assert_close(alone, embedded)
    # ... and each channel of the first block has mean 0 and variance 1 before its ReLU.
    normed = model[:2](images)
    torch.testing.assert_close(normed.mean((2, 3)), torch.zeros(3, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        normed.var((2, 3), correction=0), torch.ones(3, 4), atol=1e-2, rtol=0
    )


def test_width_where_there_is_none():
    for network, width in (("small_cnn", 8), ("conv_net", 0)):
        with pytest.raises(WorkbookError, match=f"width = {width}.*allowed"):
            models.build(network, (32, 32, 3), 10, np.random.SeedSequence(0), width=width)


def test_normalise_brings_bytes_to_plus_minus_one():
    images = np.zeros((1, 2, 3, 1), dtype=np.uint8)
    images[0, 1, 2, 0] = 255
    out = models.normalise(images)
    assert out.shape == (1, 1, 2, 3)
    assert (out.min(), out.max()) == (-1, 1)
    assert out[0, 0, 1, 2] == 1
    assert images.sum() == 255  # the input is left alone


def test_accuracy_counts():
    inputs = torch.eye(3).repeat(400, 1)
    labels = torch.tensor([0, 1, 0]).repeat(400)
    network = torch.nn.Linear(3, 3, bias=False)
    torch.nn.init.eye_(network.weight)
    assert models.accuracy(network, inputs, labels) == pytest.approx(2 / 3)


def test_losses_by_hand():
    """Outputs (0, 0) cost log 2 whatever the label; (log 3, 0) costs log 4 where the second is."""
    inputs = torch.tensor([[0.0, 0.0], [float(np.log(3.0)), 0.0]], dtype=torch.float32).repeat(
        400, 1
    )
    network = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.eye_(network.weight)
    found = models.losses(network, inputs, torch.tensor([0, 1] * 400))
    np.testing.assert_allclose(found, [np.log(2), np.log(4)] * 400, rtol=1e-6)


def test_unknown_network():
    with pytest.raises(WorkbookError, match="network = 'vgg'; allowed: small_cnn, wrn_16_4"):
        models.build("vgg", (32, 32, 3), 10, np.random.SeedSequence(0))
