"""What an audit adds to a private training run: audited against Opacus alone, in turn.

Processor time of one thread, which other work on the machine disturbs less than the clock.

Run it on a quiet machine: python tests/benchmarks/audit_overhead.py [rounds]
"""

import statistics
import sys
import time
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch.utils.data import DataLoader, TensorDataset

from lib import canaries, dpsgd, models

N_IMAGES, SAMPLING_RATE, STEPS, MICRO_BATCH, N_CANARIES, NOISE = 2000, 0.25, 8, 128, 50_000, 2.0


def fresh():
    """The same network and images for every contestant."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(N_IMAGES, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (N_IMAGES,), generator=generator)
    return models.build("small_cnn", (32, 32, 3), 10, np.random.SeedSequence(0)), images, labels


def opacus_alone() -> int:
    """Opacus's own engine and loader, micro-batches of the same size; returns steps done."""
    model, images, labels = fresh()
    loader = DataLoader(TensorDataset(images, labels), batch_size=int(N_IMAGES * SAMPLING_RATE))
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=loader,
        noise_multiplier=NOISE,
        max_grad_norm=1.0,
    )
    done = 0
    while done < STEPS:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=MICRO_BATCH, optimizer=optimizer
        ) as batches:
            for x, y in batches:
                optimizer.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
                done += not optimizer._is_last_step_skipped
                if done == STEPS:
                    break
    return done


def ours(audited: bool) -> int:
    """This workbook's training, with or without canaries and all four scores."""
    model, images, labels = fresh()
    streams = np.random.SeedSequence(1).spawn(5)
    hooks = {}
    if audited:
        planted = canaries.DiracCanaries(
            n_canaries=N_CANARIES,
            n_parameters=models.n_parameters(model),
            clip_norm=1.0,
            noise_multiplier=NOISE,
            sampling_rate=SAMPLING_RATE,
            coin_rng=np.random.default_rng(streams[0]),
            place_rng=np.random.default_rng(streams[1]),
            batch_rng=np.random.default_rng(streams[2]),
        )
        hooks = {
            "extra_gradient": planted.gradient,
            "on_release": lambda release: planted.observe(release.gradient, release.ordinary),
        }
    batch_sizes = dpsgd.train(
        model,
        images,
        labels,
        noise_multiplier=NOISE,
        clip_norm=1.0,
        sampling_rate=SAMPLING_RATE,
        steps=STEPS,
        learning_rate=0.5,
        expected_batch_size=N_IMAGES * SAMPLING_RATE,
        batch_generator=models.generator(streams[3]),
        noise_generator=models.generator(streams[4]),
        micro_batch_size=MICRO_BATCH,
        progress=False,
        **hooks,
    )
    return len(batch_sizes)


CONTESTANTS = {
    "Opacus alone": opacus_alone,
    "ours, no audit": lambda: ours(audited=False),
    "ours, audited": lambda: ours(audited=True),
}


def main(rounds: int) -> None:
    """Time the contestants in turn, `rounds` times after a warm-up, and print ratios."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    seconds = {name: [] for name in CONTESTANTS}
    for turn in range(rounds + 1):
        for name, contestant in CONTESTANTS.items():
            started = time.process_time()
            steps = contestant()
            elapsed = (time.process_time() - started) / steps
            if turn:
                seconds[name].append(elapsed)
    print(
        f"{N_CANARIES} canaries, {N_IMAGES} images, q = {SAMPLING_RATE}, {rounds} rounds, 1 thread"
    )
    # Other work on the machine only ever adds time: the fastest round is nearest to the truth.
    for name, times in seconds.items():
        print(
            f"{name:15s} {min(times) * 1e3:7.1f} ms a step at best, "
            f"{statistics.median(times) * 1e3:.1f} in the median round"
        )
    audited = seconds["ours, audited"]
    for base in ("Opacus alone", "ours, no audit"):
        ratios = [a / b for a, b in zip(audited, seconds[base], strict=True)]
        print(
            f"audited over {base}: {min(audited) / min(seconds[base]):.3f} at best, "
            f"{statistics.median(ratios):.3f} in the median round"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
