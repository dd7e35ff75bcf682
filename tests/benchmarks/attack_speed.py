"""One attacked training run: ours, many together, against Opacus's own loop, in turn.

Both train the same network with one hidden layer on 499 known points and a target for T = 100
steps, and take in every step the inner product of each of n = 10 candidates' clipped gradients with
the residual gradient. Opacus does so with per-sample gradients: one more backward pass a step, for
the candidates; what it clips and adds up itself is not computed again. Ours is a 96th part of a
call for 96 runs, with all that these have in common and the scores of all attacks; once with the
coordinates that a point can reach, which gives the same distribution, and once with every one.

Processor time of one thread, which other work on the machine disturbs less than the clock.

Run it on a quiet machine: python tests/benchmarks/attack_speed.py [rounds]
"""

import os

os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import functools
import statistics
import sys
import time
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

from lib import inversion

SETTINGS = ((0.01, 0.5905), (0.1, 1.386), (1.0, 10.812))  # q, and σ of (4, 1e-5) in T steps
N_KNOWN, N_POOL, PRIOR_SIZE, STEPS, HIDDEN, N_CLASSES = 499, 1000, 10, 100, 10, 10
CLIP_NORM, LEARNING_RATE, N_TOGETHER = 1.0, 0.5, 96


def examples(n_inputs: int):
    """The same random points for both; the time does not depend on what they show."""
    rng = np.random.default_rng(0)
    inputs = rng.random((N_KNOWN + N_POOL, n_inputs), dtype=np.float32)
    return inputs, rng.integers(0, N_CLASSES, len(inputs))


def opacus_loop(inputs, labels, rate: float, sigma: float, turn: int) -> int:
    """Opacus's engine and loader; returns the number of runs done."""
    x, y = torch.from_numpy(inputs), torch.from_numpy(labels)
    target = N_KNOWN  # also the first candidate
    candidates = slice(N_KNOWN, N_KNOWN + PRIOR_SIZE)
    members = TensorDataset(x[: target + 1], y[: target + 1], torch.arange(target + 1))
    network = torch.nn.Sequential(
        torch.nn.Linear(inputs.shape[1], HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, N_CLASSES),
    )
    model, optimizer, loader = PrivacyEngine().make_private(
        module=network,
        optimizer=torch.optim.SGD(network.parameters(), lr=LEARNING_RATE),
        data_loader=DataLoader(members, batch_size=round(len(members) * rate)),
        noise_multiplier=sigma,
        max_grad_norm=CLIP_NORM,
    )
    products = []
    while len(products) < STEPS:
        for images, classes, numbers in loader:
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(x[candidates]), y[candidates]).backward()
            gradients = torch.cat([p.grad_sample.flatten(1) for p in optimizer.params], dim=1)
            gradients *= (CLIP_NORM / (gradients.norm(dim=1) + 1e-6)).clamp(max=1)[:, None]
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.cross_entropy(model(images), classes).backward()
            optimizer.clip_and_accumulate()
            optimizer.add_noise()
            # The known points' sum is that of the batch, less the target's gradient if in it.
            residual = torch.cat([(p.grad - p.summed_grad).flatten() for p in optimizer.params])
            if (numbers == target).any():
                residual += gradients[0]
            products.append(gradients @ residual)
            optimizer.scale_grad()
            optimizer.original_optimizer.step()
            if len(products) == STEPS:
                break
    return 1


def ours(inputs, labels, rate: float, sigma: float, turn: int, basis: str = "span") -> int:
    """This workbook's runs, with the attacks; returns the number of runs done."""
    rng = np.random.default_rng(turn)
    pool = np.arange(N_KNOWN, len(inputs))
    candidates = inversion.draw_candidates(
        n_runs=N_TOGETHER, prior_size=PRIOR_SIZE, pool=pool, rng=rng
    )
    mechanism = {"noise_multiplier": sigma, "sampling_rate": rate, "clip_norm": CLIP_NORM}
    training = inversion.train(
        inputs=inputs,
        labels=labels,
        known=np.arange(N_KNOWN),
        candidates=candidates,
        steps=STEPS,
        learning_rate=LEARNING_RATE,
        hidden_units=HIDDEN,
        n_classes=N_CLASSES,
        sequence=np.random.SeedSequence(turn),
        basis=basis,
        **mechanism,
    )
    inversion.attack(training.view, rng=rng, **mechanism)
    return N_TOGETHER


CONTESTANTS = {
    "Opacus's loop": opacus_loop,
    "ours": ours,
    "ours, every coordinate": functools.partial(ours, basis="inputs"),
}


def main(rounds: int) -> None:
    """Time the contestants in turn, `rounds` times after a warm-up, and print ratios."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    print(f"{N_KNOWN} known points, n = {PRIOR_SIZE}, T = {STEPS}, {rounds} rounds, 1 thread")
    for n_inputs in (28 * 28, 32 * 32 * 3):
        inputs, labels = examples(n_inputs)
        for rate, sigma in SETTINGS:
            seconds = {name: [] for name in CONTESTANTS}
            for turn in range(rounds + 1):
                for name, contestant in CONTESTANTS.items():
                    started = time.process_time()
                    n_runs = contestant(inputs, labels, rate, sigma, turn)
                    if turn:
                        seconds[name].append((time.process_time() - started) / n_runs)
            theirs = seconds.pop("Opacus's loop")
            print(f"{n_inputs} inputs, q = {rate}: Opacus's loop {min(theirs) * 1e3:.1f} ms a run")
            # Other work on the machine only ever adds time: the fastest is nearest to the truth.
            for name, times in seconds.items():
                ratios = [a / b for a, b in zip(theirs, times, strict=True)]
                print(
                    f"    {name:22s} {min(times) * 1e3:5.1f} ms, {min(theirs) / min(times):5.1f} "
                    f"times at best, {statistics.median(ratios):.1f} in the median round"
                )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
