"""How each scheme of study 03 makes a network out of a training set; what its cells share.

All schemes train one ConvNet, from one start for each training set. The random subset and the
condensed images of distribution matching are trained on in the same way: same network, start,
epochs and augmentation, so that a difference between them is the images'.

Nothing of tables or figures is here, so that changing those leaves computed cells valid; and torch
is imported inside functions only.
"""

from __future__ import annotations

import numpy as np

from lib import membership, sweep
from lib.errors import WorkbookError

NO_DEFENCE = "no defence"
SUBSET = "random subset"
DM_REAL = "DM from real images"
DM_NOISE = "DM from noise"
LITTLE_NOISE = "DP-SGD, little noise"
CONDENSED = (SUBSET, DM_REAL, DM_NOISE)
SUBSET_SHARE = 0.01  # |S| over |U|, so that |S| is about 2 % of |T|
# What learning rates of condensed images are meant for: the ConvNet's width, and pixels of standard
# deviation 1, as the authors normalise them. Pixels from −1 to 1 have about half of it.
PAPER_WIDTH, PIXEL_DEVIATION = 128, 0.5
NETWORK = "ConvNet, 3 blocks, instance norm"


def private_name(epsilon: float) -> str:
    """Name of DP-SGD calibrated for an ε."""
    return f"DP-SGD, ε = {epsilon:g}"


# ------------------------------------------------------------------------------ training sets


def universe(dataset, n_universe: int) -> np.ndarray:
    """U: the first training images of each class, equally many, as (n_universe,) rows.

    Raises:
        WorkbookError: if S, 1 % of U, is not as many images of every class, or a class is short.
    """
    n_classes = len(dataset.class_names)
    step = round(n_classes / SUBSET_SHARE)
    available = np.bincount(dataset.train_labels, minlength=n_classes).min()
    most = int(available * n_classes // step * step)
    if n_universe % step or not step <= n_universe <= most:
        raise WorkbookError(
            f"n_universe = {n_universe}; allowed: multiples of {step} from {step} to {most}, so "
            f"that 1 % of it is as many images of each class of {dataset.name}"
        )
    per_class = n_universe // n_classes
    of_class = (np.flatnonzero(dataset.train_labels == c)[:per_class] for c in range(n_classes))
    return np.sort(np.concatenate(list(of_class)))


def draw(cell: dict, seed: int, labels: np.ndarray) -> dict[str, np.ndarray]:
    """T, S and the samples of the wrong protocol of one model, the same for every scheme.

    Args:
        cell: ``n_universe``, ``pair``, and ``side``: 0 for the coins' T, 1 for its complement.
        seed: of the study.
        labels: (n_universe,) classes of U.

    Returns:
        (n_universe,) booleans by name: ``members`` (T), ``subset`` (S, the same number of each
        class), and S ∪ S′ with S′ from T∖S and from U∖T.
    """
    coins = sweep.Streams(seed, {name: cell[name] for name in ("n_universe", "pair")})
    members = membership.draw_memberships(
        n_pairs=1, n_examples=cell["n_universe"], rng=coins.generator("coins")
    )[cell["side"]]
    own = common_streams(cell, seed)
    classes, counts = np.unique(labels, return_counts=True)
    n_of_class = round(counts[0] * SUBSET_SHARE)
    subset, rng = np.zeros(len(labels), dtype=bool), own.generator("subset")
    for label in classes:
        subset[rng.choice(np.flatnonzero(members & (labels == label)), n_of_class, False)] = True
    samples = {
        where: membership.wrong_protocol_sample(
            subset, members, labels, compared_with=where, rng=own.generator(f"compared {where}")
        )
        for where in (membership.TRAINING_SET, membership.OUTSIDE)
    }
    return {"members": members, "subset": subset} | samples


def common_streams(cell: dict, seed: int) -> sweep.Streams:
    """Streams of one training set that all schemes share: its subset, start, epochs' order."""
    return sweep.Streams(seed, {name: cell[name] for name in ("n_universe", "pair", "side")})


# ------------------------------------------------------------------- from images to a network


def tensors(images: np.ndarray, labels: np.ndarray):
    """Images from −1 to 1 and labels, as torch tensors."""
    import torch

    from lib import models

    return models.normalise(images), torch.from_numpy(np.array(labels, dtype=np.int64))


def augmentation_for(dataset) -> dict:
    """Operations that fit a dataset, and what lies behind an image's border.

    A mirrored digit is none, and digits stand on black.
    """
    from lib import augmentation

    if dataset.name.startswith("mnist"):
        return {"operations": augmentation.DIGITS, "fill": -1.0}
    return {"operations": augmentation.OPERATIONS, "fill": 0.0}


def fresh_network(cell: dict, dataset, sequence: np.random.SeedSequence):
    """An untrained ConvNet of the cell's ``width`` on its ``device``."""
    from lib import models

    shape = dataset.train_images.shape[1:]
    n_classes = cell.get("n_classes", len(dataset.class_names))
    network = models.build("conv_net", shape, n_classes, sequence, width=cell["width"])
    return network.to(cell["device"])


def fit(cell: dict, inputs, labels, streams: sweep.Streams, dataset):
    """Train on a few images, all in each step, as subset and condensed images are.

    Args:
        cell: ``width``, ``epochs``, ``learning_rate``, ``device``; ``batch_size`` if not all,
            ``n_classes`` if not the dataset's.
        inputs, labels: tensors.
        streams: of start ("initialisation") and order ("training").
        dataset: whose augmentation to use.
    """
    from lib import training

    network = fresh_network(cell, dataset, streams.sequence("initialisation"))
    training.fit(
        network,
        inputs,
        labels,
        epochs=cell["epochs"],
        batch_size=cell.get("batch_size", len(inputs)),
        learning_rate=cell["learning_rate"],
        sequence=streams.sequence("training"),
        **augmentation_for(dataset),
    )
    return network


def condense(cell: dict, inputs, labels, sequence, dataset, *, initial=None):
    """Condensed images and labels of distribution matching.

    Args:
        cell: ``n_per_class``, ``n_iterations``, ``real_batch``, ``image_learning_rate``,
            ``width``, ``device``.
        inputs, labels: the training set, tensors.
        sequence: of all randomness of the condensation.
        dataset: whose augmentation to use.
        initial: images to start from, sorted by class; None for noise.
    """
    from lib import condensation

    condensed = condensation.condense(
        inputs,
        labels,
        n_per_class=cell["n_per_class"],
        n_iterations=cell["n_iterations"],
        real_batch=cell["real_batch"],
        learning_rate=image_step(cell["image_learning_rate"], width=cell["width"]),
        width=cell["width"],
        device=cell["device"],
        sequence=sequence,
        initial=initial,
        **augmentation_for(dataset),
    )
    return condensed.images, condensed.labels


def image_step(learning_rate: float, *, width: int) -> float:
    """The learning rate for steps as large, in deviations of a pixel, as the paper's.

    The loss is a sum over features, whose number goes with the width. Instance norm makes features
    blind to the scale s of pixels, so that gradients go with 1/s and steps are to go with s.
    """
    return learning_rate * PAPER_WIDTH / width * PIXEL_DEVIATION**2


def fit_privately(cell: dict, inputs, labels, streams: sweep.Streams, *, network, **hooks):
    """Train ``network`` by DP-SGD, and return it.

    Args:
        cell: ``noise_multiplier``, ``clip_norm``, ``sampling_rate``, ``steps``,
            ``private_learning_rate``, ``expected_batch_size`` (public), ``device``.
        inputs, labels: the training set, tensors.
        streams: of batches and noise.
        network: fresh, on the cell's device.
        hooks: of :func:`lib.dpsgd.train`.
    """
    from lib import dpsgd, models

    dpsgd.train(
        network,
        inputs,
        labels,
        noise_multiplier=cell["noise_multiplier"],
        clip_norm=cell["clip_norm"],
        sampling_rate=cell["sampling_rate"],
        steps=cell["steps"],
        learning_rate=cell["private_learning_rate"],
        expected_batch_size=cell["expected_batch_size"],
        batch_generator=models.generator(streams.sequence("batches")),
        noise_generator=models.generator(streams.sequence("noise"), cell["device"]),
        progress=False,
        **hooks,
    )
    return network


def described(dataset, *, augmented: bool) -> dict:
    """What accuracies and attacks depend on besides the scheme: network, norm, augmentation."""
    operations = augmentation_for(dataset)["operations"] if augmented else ()
    return {"network": NETWORK, "augmentation": ", ".join(operations) or "none"}


def tested(network, dataset, n_test: int) -> dict:
    """Right answers on the first test images, with their number and rate."""
    inputs, labels = tensors(dataset.test_images[:n_test], dataset.test_labels[:n_test])
    return counted_right(network, inputs, labels)


def counted_right(network, inputs, labels) -> dict:
    """Right answers on images, with their number and rate."""
    from lib import models

    n_correct = round(models.accuracy(network, inputs, labels) * len(inputs))
    return {
        "n_test": len(inputs),
        "n_test_correct": n_correct,
        "test_accuracy": n_correct / len(inputs),
    }
