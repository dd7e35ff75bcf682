"""One audited run, trained or idealised, with the noise before it and the row of counts after.

What the cells of study 01 share.

Nothing of tables or figures is here, so that changing those leaves computed cells valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lib import canaries, one_run

MECHANISM = (
    "epsilon",
    "theoretical_epsilon",
    "delta",
    "sampling_rate",
    "steps",
    "noise_multiplier",
)


def mechanism_row(cell: dict) -> dict:
    """What ``MECHANISM_FIELDS`` of ``study_tables`` holds, from a cell."""
    return {name: cell[name] for name in MECHANISM}


def audit_row(cell: dict, scores: np.ndarray, included: np.ndarray, rng) -> dict:
    """Audit canaries with a cell's numbers of guesses; ``AUDIT_FIELDS`` of ``study_tables``.

    Args:
        cell: holds ``n_positive``, ``n_negative``, ``delta`` and ``significance``.
        scores, included, rng: as in :func:`lib.one_run.audit`.
    """
    result = one_run.audit(
        scores,
        included,
        n_positive=cell["n_positive"],
        n_negative=cell["n_negative"],
        delta=cell["delta"],
        significance=cell["significance"],
        rng=rng,
    )
    return counts_row(result) | {"epsilon_lower_bound": result.epsilon_lower_bound}


def counts_row(result: one_run.Audit) -> dict:
    """An audit's columns but for δ, which its mechanism's row has, and the bound."""
    names = ("significance", "n_canaries", "n_included", "n_positive", "n_negative")
    names += ("n_correct_positive", "n_correct_negative", "n_guesses", "n_correct")
    return {name: getattr(result, name) for name in names}


def settle_noise(cell: dict, *, neighboring: str = "add_remove") -> dict:
    """σ for a cell's (ε, δ, q, T), and the ε that it gives.

    Rounded up, so that the last digits of another processor's arithmetic, which are part of no
    result, do not become part of the cells that draw their randomness from these numbers.
    """
    from lib import accounting

    mechanism = {name: cell[name] for name in ("delta", "sampling_rate", "steps")}
    mechanism["neighboring"] = neighboring
    sigma = rounded_up(accounting.noise_multiplier(epsilon=cell["epsilon"], **mechanism), 4)
    theoretical = accounting.epsilon(noise_multiplier=sigma, **mechanism)
    return {"noise_multiplier": sigma, "theoretical_epsilon": rounded_up(theoretical, 6)}


def rounded_up(value: float, decimals: int) -> float:
    """Leave out the last digits, which differ from processor to processor, on the safe side."""
    return round(math.ceil(value * 10**decimals) / 10**decimals, decimals)


def simulations(cell: dict, streams):
    """(coins, scores) of ``n_simulations`` audits of the idealised mechanism."""
    for number in range(cell["n_simulations"]):
        yield canaries.ideal_scores(
            n_canaries=cell["n_canaries"],
            noise_multiplier=cell["noise_multiplier"],
            sampling_rate=cell["sampling_rate"],
            steps=cell["steps"],
            coin_rng=streams.generator(f"coins {number}"),
            batch_rng=streams.generator(f"batches {number}"),
            noise_rng=streams.generator(f"noise {number}"),
        )


def train_dirac(cell: dict, streams, dataset):
    """:func:`train` with Dirac canaries."""
    return train(
        cell,
        streams,
        dataset,
        lambda n_parameters: canaries.DiracCanaries(
            n_canaries=cell["n_canaries"],
            n_parameters=n_parameters,
            clip_norm=cell["clip_norm"],
            noise_multiplier=cell["noise_multiplier"],
            sampling_rate=cell["sampling_rate"],
            coin_rng=streams.generator("coins"),
            place_rng=streams.generator("places"),
            batch_rng=streams.generator("canary batches"),
        ),
    )


def train(cell: dict, streams, dataset, plant: Callable):
    """Train a network by DP-SGD on a cell's images, with gradient canaries.

    Args:
        cell: ``n_train``, ``network``, ``device``, the mechanism and the optimiser.
        streams, dataset: of the cell.
        plant: number of parameters → canaries, such as :class:`lib.canaries.DiracCanaries`.

    Returns:
        The trained network, the canaries with what they saw, and the (T,) batch sizes.
    """
    import torch

    from lib import dpsgd, models

    chosen = streams.generator("images").permutation(len(dataset.train_images))[: cell["n_train"]]
    inputs = models.normalise(dataset.train_images[np.sort(chosen)])
    labels = torch.from_numpy(dataset.train_labels[np.sort(chosen)])
    device = cell["device"]
    model = fresh_network(cell, streams, dataset).to(device)
    planted = plant(models.n_parameters(model))
    batch_sizes = dpsgd.train(
        model,
        inputs,
        labels,
        noise_multiplier=cell["noise_multiplier"],
        clip_norm=cell["clip_norm"],
        sampling_rate=cell["sampling_rate"],
        steps=cell["steps"],
        learning_rate=cell["learning_rate"],
        expected_batch_size=expected_batch_size(cell),
        batch_generator=models.generator(streams.sequence("batches")),
        noise_generator=models.generator(streams.sequence("noise"), device),
        extra_gradient=planted.gradient,
        on_release=lambda release: planted.observe(release.gradient, release.ordinary),
        progress=False,
    )
    return model, planted, batch_sizes


def fresh_network(cell: dict, streams, dataset):
    """A cell's network before its training; the same one each time."""
    from lib import models

    return models.build(
        cell["network"],
        dataset.train_images.shape[1:],
        len(dataset.class_names),
        streams.sequence("initialisation"),
    )


def expected_batch_size(cell: dict) -> float:
    """What every released gradient is divided by: public, no coin is in it."""
    return cell["sampling_rate"] * cell["n_train"]
