"""Two speeds of study 03: shadow models together, and an iteration of distribution matching.

*Shadow models*: models of the random subset, one after another in one process with one thread, and
by as many worker processes of one thread as there are cores, as ``run`` does. Nothing is kept.

*Distribution matching*: one iteration as the study does it, with forward passes across classes,
against the textbook's loop over classes, one forward pass for a class's real images and one for its
condensed ones. Same networks, batches, augmentation and thread; both give the same loss, which is
checked. The loop's images lie in memory as torch has them, and, once more, channels last.

Run it on a quiet machine: python tests/benchmarks/shadow_models.py [rounds]
"""

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import statistics
import sys
import tempfile
import time

import numpy as np
import torch

from lib import augmentation, condensation, data, models, sweep
from lib import condensation_models as networks
from lib import condensation_schemes as schemes

N_MODELS, SHAPE, N_CLASSES, WIDTH, REAL, N_PER_CLASS = 8, (32, 32, 3), 10, 32, 64, 10
PROCESSES = os.cpu_count()


def shadow_cells(turn: int) -> list[dict]:
    """Cells of random subsets, other ones in each turn."""
    common = {"scheme": schemes.SUBSET, "n_universe": 1000, "width": 16, "epochs": 100}
    common |= {"learning_rate": 0.02, "n_per_class": 1, "n_test": 1000, "device": "cpu"}
    pairs = range(turn * N_MODELS, turn * N_MODELS + N_MODELS // 2)
    return [common | {"pair": pair, "side": side} for pair in pairs for side in range(2)]


def train_shadows(dataset, n_jobs: int, turn: int) -> float:
    """Seconds for all models; the workers are there already after the first turn."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        sweep.run(
            networks.trained,
            shadow_cells(turn),
            seed=n_jobs,
            dataset=dataset,
            n_jobs=n_jobs,
            cache_dir=folder,
        )
        return time.perf_counter() - started


def setting(turn: int):
    """Random images, a network and a transformation a class; what they show takes no time."""
    sequence = np.random.SeedSequence(turn)
    generator = models.generator(sequence)
    real = torch.randn(N_CLASSES * REAL, SHAPE[2], *SHAPE[:2], generator=generator)
    small = torch.randn(N_CLASSES * N_PER_CLASS, SHAPE[2], *SHAPE[:2], generator=generator)
    drawn = augmentation.draw(N_CLASSES, image_size=SHAPE[:2], generator=generator)
    return sequence, real, small, drawn


def across_classes(turn: int) -> float:
    """The study's iteration; returns its loss."""
    sequence, real, small, drawn = setting(turn)
    features = condensation.conv_net_extractor(SHAPE, width=WIDTH)(sequence)
    small.requires_grad_()
    options = {"n_classes": N_CLASSES, "drawn": drawn}
    classes = torch.arange(N_CLASSES)
    with torch.no_grad():
        real_means = condensation.class_means(
            features, real, classes.repeat_interleave(REAL), **options
        )
    means = condensation.class_means(
        features, small, classes.repeat_interleave(N_PER_CLASS), **options
    )
    loss = (real_means - means).square().sum()
    loss.backward()
    return loss.item()


def class_by_class(turn: int, memory=torch.contiguous_format) -> float:
    """The textbook's loop; returns its loss."""
    sequence, real, small, drawn = setting(turn)
    network = models.build("conv_net", SHAPE, 1, sequence, width=WIDTH)
    network = network.to(memory_format=memory).requires_grad_(False)
    small.requires_grad_()
    loss = torch.zeros(())
    for c in range(N_CLASSES):
        shown = []
        for images, size in ((real, REAL), (small, N_PER_CLASS)):
            rows = torch.full((size,), c)
            chosen = images[c * size : (c + 1) * size]
            seen = augmentation.apply(chosen, drawn.of(rows)).contiguous(memory_format=memory)
            shown.append(models.features(network, seen).mean(0))
        loss = loss + (shown[0].detach() - shown[1]).square().sum()
    loss.backward()
    return loss.item()


def channels_last_by_class(turn: int) -> float:
    """The loop with the faster layout in memory."""
    return class_by_class(turn, torch.channels_last)


def main(rounds: int) -> None:
    """Time all in turn, after a warm-up, and print ratios."""
    torch.set_num_threads(1)
    dataset = data.load("mnist5k")
    seconds: dict = {n_jobs: [] for n_jobs in (1, PROCESSES)}
    for turn in range(rounds + 1):
        for n_jobs, times in seconds.items():
            took = train_shadows(dataset, n_jobs, turn)
            if turn:
                times.append(took)
    one, several = (statistics.median(times) for times in seconds.values())
    print(
        f"{N_MODELS} shadow models: one after another {one:.1f} s, {PROCESSES} at once "
        f"{several:.1f} s, {one / several:.2f} times"
    )
    contestants = (class_by_class, channels_last_by_class, across_classes)
    taken: dict = {each: [] for each in contestants}
    for turn in range(10 * rounds + 1):
        losses = []
        for contestant, times in taken.items():
            started = time.process_time()
            losses.append(contestant(turn))
            if turn:
                times.append(time.process_time() - started)
        np.testing.assert_allclose(losses, losses[0], rtol=1e-4)
    ours = statistics.median(taken[across_classes])
    for contestant in contestants[:2]:
        theirs = statistics.median(taken[contestant])
        print(
            f"{contestant.__name__}: {1e3 * theirs:.0f} ms an iteration, ours "
            f"{1e3 * ours:.0f} ms, {theirs / ours:.2f} times"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
