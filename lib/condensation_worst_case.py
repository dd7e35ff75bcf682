"""Study 03, the worst case: D and D′ differ in one image, and class 0 has no other but one.

Class 0 is reduced to one image in D and to two in D′ (arXiv:2209.14987, its audit of distribution
matching). Many models are made from either set through a whole scheme; whoever asks one of them
about the second image guesses which set it was. Sign and threshold come from pilot models that are
not counted, and rates become a lower bound on ε by Clopper and Pearson's limits.

Private training is asked with more: its adversary may see every release and knows all of D. The
score is the likelihood ratio of the second image's gradient in the releases, which no other beats.
"""

from __future__ import annotations

import dataclasses
import textwrap

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import audited_run, figures, intervals, membership, one_run
from lib import condensation_models as networks
from lib import condensation_schemes as schemes
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import (
    BOUND_BELOW_TRUTH,
    SIGNIFICANCE,
    in_per_cent,
    two_sets_fields,
    verdict_row,
)
from lib.tables import Field, Table, recipe

ONE, TWO = "D", "D′"
ENOUGH = 0.99  # share of models that should be told apart, where the paper says 100 %
QUARTER = 0.25  # of the noise, in the copy of private training that breaks its claim
LOGIT, RELEASES = "logit of the second image", "likelihood ratio of the releases"

PARAMETERS = {
    "worst_n_models": Parameter("int", "models on each of D and D′, counted", minimum=2),
    "worst_n_pilots": Parameter("int", "pilot models on each, not counted", minimum=8),
    "worst_n_others": Parameter("int", "images of each class but class 0", minimum=1),
    "worst_width": Parameter("int", "channels of each block of the ConvNet", minimum=1),
    "worst_n_per_class": Parameter("int", "condensed images of each class", minimum=1),
    "worst_n_iterations": Parameter("int", "iterations of distribution matching", minimum=0),
    "worst_epochs": Parameter("int", "epochs on the condensed images", minimum=1),
    "worst_epsilons": Parameter(
        "floats",
        "theoretical ε of DP-SGD; the first also with a quarter of its noise",
        above=0,
        maximum=100,
    ),
    "worst_sampling_rate": Parameter("float", "sampling rate q of DP-SGD", above=0, maximum=1),
    "worst_steps": Parameter("int", "steps T of DP-SGD", minimum=1),
}


def check_subset(p) -> None:
    """Refuse more condensed images of a class than it has real ones.

    Raises:
        WorkbookError: naming the parameter.
    """
    if p.worst_n_per_class > p.worst_n_others:
        raise WorkbookError(
            f"worst_n_per_class = {p.worst_n_per_class}; allowed: at most worst_n_others, "
            f"which is {p.worst_n_others}"
        )


def check_images(session) -> None:
    """Refuse more images of a class than the dataset has."""
    neighbours(session.dataset, session.p.worst_n_others)


RULES = (check_subset,)
DATA_RULES = (check_images,)


# ------------------------------------------------------------------------------------- cells


def settled(cell: dict, streams, dataset: None) -> list[dict]:
    """Noise of one private scheme: calibrated, then multiplied by the cell's ``noise_share``."""
    from lib import accounting

    mechanism = {name: cell[name] for name in ("delta", "sampling_rate", "steps")}

    def of(sigma: float) -> dict:
        epsilon = accounting.epsilon(noise_multiplier=sigma, **mechanism)
        return {
            "noise_multiplier": sigma,
            "theoretical_epsilon": audited_run.rounded_up(epsilon, 6),
        }

    if cell["epsilon"] is None:
        noise = of(cell["noise_multiplier"])
    else:
        noise = audited_run.settle_noise(cell)
    claimed = noise["theoretical_epsilon"]
    if cell["noise_share"] != 1:
        sigma = audited_run.rounded_up(cell["noise_share"] * noise["noise_multiplier"], 4)
        noise = of(sigma)
    return [cell | noise | {"claimed_epsilon": claimed}]


def model(cell: dict, streams, dataset) -> list[dict]:
    """Make one model from D or D′ and score the second image of class 0."""
    rows, second = neighbours(dataset, cell["n_others"])
    inputs, labels = schemes.tensors(dataset.train_images[rows], dataset.train_labels[rows])
    target = schemes.tensors(dataset.train_images[[second]], dataset.train_labels[[second]])
    if "noise_multiplier" in cell:
        network, score = _private(cell, streams, dataset, inputs, labels, target)
        name = RELEASES
    else:
        network = _condensed(cell, streams, dataset, inputs, labels, target)
        name, score = LOGIT, None
    logit = _logit(network, *target)
    names = ("scheme", "set", "pilot", "number", "width", "n_per_class", "n_iterations")
    return [
        {each: cell.get(each) for each in names}
        | schemes.described(dataset, augmented="epochs" in cell)
        | {"score": name, "value": logit if score is None else score, "logit": logit}
        | schemes.tested(network, dataset, cell["n_test"])
    ]


def neighbours(dataset, n_others: int) -> tuple[np.ndarray, int]:
    """Rows of D, class 0's single image first, and the row that D′ has besides.

    The first images of each class: nothing is chosen by what it shows.

    Raises:
        WorkbookError: for a class with too few.
    """
    labels = dataset.train_labels
    of_class = [np.flatnonzero(labels == c) for c in range(len(dataset.class_names))]
    most = min(map(len, of_class))
    if n_others > most:
        raise WorkbookError(
            f"worst_n_others = {n_others}; allowed: at most {most}, the training images of a "
            f"class of {dataset.name}"
        )
    kept = [of_class[0][:1], *(rows[:n_others] for rows in of_class[1:])]
    return np.concatenate(kept), int(of_class[0][1])


def _condensed(cell: dict, streams, dataset, inputs, labels, target):
    """Train on what a scheme makes of D or D′."""
    import torch

    if cell["set"] == TWO:
        inputs, labels = torch.cat([inputs, target[0]]), torch.cat([labels, target[1]])
    if cell["scheme"] == schemes.SUBSET:
        kept = _subset(labels.numpy(), cell["n_per_class"], streams.generator("subset"))
        return schemes.fit(cell, inputs[kept], labels[kept], streams, dataset)
    if cell["scheme"] == schemes.NO_DEFENCE:
        return schemes.fit(cell, inputs, labels, streams, dataset)
    initial = None
    if cell["scheme"] == schemes.DM_REAL:
        initial = inputs[_start(labels.numpy(), cell["n_per_class"], streams.generator("start"))]
    condensed = schemes.condense(
        cell, inputs, labels, streams.sequence("condensation"), dataset, initial=initial
    )
    return schemes.fit(cell, *condensed, streams, dataset)


def _subset(labels: np.ndarray, n_per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of a random subset: one image of class 0, as that is all D has."""
    chosen = [
        rng.choice(np.flatnonzero(labels == c), n_per_class if c else 1, replace=False)
        for c in np.unique(labels)
    ]
    return np.concatenate(chosen)


def _start(labels: np.ndarray, n_per_class: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of as many real images of every class; those of class 0 repeat the one or two."""
    chosen = [
        rng.choice(np.flatnonzero(labels == c), n_per_class, replace=c == 0)
        for c in np.unique(labels)
    ]
    return np.concatenate(chosen)


def _private(cell: dict, streams, dataset, inputs, labels, target):
    """Train by DP-SGD on D or D′, and the likelihood ratio of the second image in the releases.

    It is sampled and added apart from the others, which is the same mechanism: so is known what
    the batch would have released without it, which the adversary of differential privacy knows.
    """
    network = schemes.fresh_network(cell, dataset, streams.sequence("initialisation"))
    witness = _Witness(
        network,
        *target,
        clip_norm=cell["clip_norm"],
        noise_multiplier=cell["noise_multiplier"],
        sampling_rate=cell["sampling_rate"],
        present=cell["set"] == TWO,
        rng=streams.generator("second image"),
    )
    schemes.fit_privately(
        cell,
        inputs,
        labels,
        streams,
        network=network,
        extra_gradient=witness.gradient,
        on_release=witness.observe,
    )
    return network, witness.score


class _Witness:
    """The second image in private training: its part of each release, and the evidence for it."""

    def __init__(
        self,
        network,
        inputs,
        labels,
        *,
        clip_norm,
        noise_multiplier,
        sampling_rate,
        present,
        rng,
    ):
        import copy

        # Apart from the network in training, whose gradients are recorded example by example.
        self.network, self.twin = network, copy.deepcopy(network)
        device = next(network.parameters()).device
        self.inputs, self.labels = inputs.to(device), labels.to(device)
        self.clip_norm, self.sampling_rate = clip_norm, sampling_rate
        self.noise_multiplier = noise_multiplier
        self.present, self.rng, self.score = present, rng, 0.0
        self.own = np.zeros(0)

    def gradient(self, step: int) -> np.ndarray:
        """What the image adds to this step's sum: its clipped gradient, or nothing."""
        import torch

        self.twin.load_state_dict(self.network.state_dict())
        loss = torch.nn.functional.cross_entropy(self.twin(self.inputs), self.labels)
        parts = torch.autograd.grad(loss, list(self.twin.parameters()))
        own = torch.cat([part.reshape(-1) for part in parts])
        own = own * (self.clip_norm / (own.norm() + 1e-12)).clamp(max=1)
        self.own = own.double().cpu().numpy()
        sampled = self.rng.random() < self.sampling_rate
        return (self.own * (self.present and sampled)).astype(np.float32)

    def observe(self, release) -> None:
        """Add up the evidence of one release, of which the rest is known."""
        from lib import canaries

        length = float(np.linalg.norm(self.own))
        residual = release.gradient.astype(float) - release.ordinary
        if length > 0:
            self.score += float(
                canaries.log_likelihood_ratio(
                    np.array(residual @ self.own / length**2),
                    noise_multiplier=self.noise_multiplier * self.clip_norm / length,
                    sampling_rate=self.sampling_rate,
                )
            )


def _logit(network, inputs, labels) -> float:
    from lib import training

    return float(membership.label_logits(training.outputs(network, inputs), labels.numpy())[0])


# --------------------------------------------------------------------- from parameters to cells


def settled_cells(session) -> list[dict]:
    """One cell for each private scheme, and one for the broken copy of the first."""
    p = session.p
    mechanism = {
        "delta": p.delta,
        "significance": p.significance,
        "sampling_rate": p.worst_sampling_rate,
        "steps": p.worst_steps,
    }
    honest = [
        {"scheme": schemes.private_name(e), "epsilon": e, "noise_share": 1.0}
        for e in p.worst_epsilons
    ]
    first = honest[0]
    broken = first | {"scheme": broken_name(first["scheme"]), "noise_share": QUARTER}
    little = {"scheme": schemes.LITTLE_NOISE, "epsilon": None, "noise_share": 1.0}
    little["noise_multiplier"] = p.little_noise_multiplier
    return [mechanism | each for each in (*honest, broken, little)]


def broken_name(scheme: str) -> str:
    """Name of the copy that adds a quarter of the noise it claims."""
    return f"{scheme} claimed, a quarter of its noise"


def model_cells(session) -> list[dict]:
    """One cell for each scheme, set and number, pilots first."""
    p = session.p
    return [
        scheme | which
        for scheme in _scheme_cells(session)
        for which in numbered(p.worst_n_pilots, p.worst_n_models)
    ]


def numbered(n_pilots: int, n_models: int) -> list[dict]:
    """Which model a cell makes: on either set, pilots and counted ones."""
    return [
        {"set": name, "pilot": pilot, "number": number}
        for name in (ONE, TWO)
        for pilot, n in ((True, n_pilots), (False, n_models))
        for number in range(n)
    ]


def common(session) -> dict:
    """What the cells of all schemes share."""
    p = session.p
    names = ("n_test", "device")
    return {name: getattr(p, name) for name in names} | {
        "n_others": p.worst_n_others,
        "width": p.worst_width,
    }


def few(session) -> dict:
    """What the random subset and condensation share."""
    p = session.p
    return common(session) | {
        "n_per_class": p.worst_n_per_class,
        "epochs": p.worst_epochs,
        "learning_rate": p.learning_rate,
    }


def matching(session) -> dict:
    """What condensation needs besides."""
    p = session.p
    return {
        "n_iterations": p.worst_n_iterations,
        "real_batch": p.real_batch,
        "image_learning_rate": p.image_learning_rate,
    }


def _scheme_cells(session) -> list[dict]:
    p = session.p
    n_classes = len(session.dataset.class_names)
    private = common(session) | {
        "clip_norm": p.clip_norm,
        "private_learning_rate": p.dp_learning_rate,
        # That of D, a public number: the same on D′.
        "expected_batch_size": p.worst_sampling_rate * (1 + p.worst_n_others * (n_classes - 1)),
    }
    names = ["scheme", "sampling_rate", "steps", "noise_multiplier"]
    everything = few(session) | {"scheme": schemes.NO_DEFENCE, "n_per_class": None}
    everything |= {"epochs": p.full_epochs, "batch_size": p.full_batch_size}
    return [
        everything,
        few(session) | {"scheme": schemes.SUBSET},
        few(session) | matching(session) | {"scheme": schemes.DM_REAL},
        few(session) | matching(session) | {"scheme": schemes.DM_NOISE},
        *(private | row for row in session.tables["worst_mechanisms"][names].to_dict("records")),
    ]


# ------------------------------------------------------------------------ from scores to bounds


def threshold_from_pilots(first: np.ndarray, second: np.ndarray) -> tuple[int, float]:
    """Sign and threshold that tell two samples apart, to be used on others.

    "D′" is guessed where sign · score is at least the threshold: halfway between two neighbouring
    pilots, where the pilots' ratio of rates is largest, in one or the other direction, with half a
    model added to each count so that none of a few is not taken for never. Of equal places the
    widest gap.

    Args:
        first, second: (n,) and (m,) scores of the pilots of D and D′.

    Returns:
        1 or −1, and the threshold.
    """
    sign = 1 if np.median(second) >= np.median(first) else -1
    low, high = sign * np.asarray(first), sign * np.asarray(second)
    places = np.unique(np.concatenate([low, high]))
    if len(places) == 1:
        return sign, float(places[0])
    middles, gaps = (places[1:] + places[:-1]) / 2, np.diff(places)
    above = [(scores[:, None] >= middles).sum(0) + 0.5 for scores in (low, high)]
    n_low, n_high = len(low) + 1, len(high) + 1
    ratio = np.maximum(
        np.log(above[1] / n_high) - np.log(above[0] / n_low),
        np.log1p(-above[0] / n_low) - np.log1p(-above[1] / n_high),
    )
    # Rounded, so that equal counts are equal ratios.
    return sign, float(middles[np.lexsort((gaps, ratio.round(9)))[-1]])


def detection(models: pd.DataFrame, *, delta: float, significance: float) -> dict:
    """Guess the set of each counted model of one scheme, and what the counts allow to claim."""
    by = {
        (name, pilot): rows["value"].to_numpy()
        for (name, pilot), rows in models.groupby(["set", "pilot"])
    }
    sign, threshold = threshold_from_pilots(by[ONE, True], by[TWO, True])
    guesses = {name: sign * by[name, False] >= threshold for name in (ONE, TWO)}
    counts = {
        "n_first": len(guesses[ONE]),
        "n_wrong_first": int(guesses[ONE].sum()),
        "n_second": len(guesses[TWO]),
        "n_wrong_second": int((~guesses[TWO]).sum()),
    }
    claim = {"delta": delta, "significance": significance}
    n = counts["n_first"] + counts["n_second"]
    n_right = n - counts["n_wrong_first"] - counts["n_wrong_second"]
    return (
        {"score": models["score"].iloc[0], "n_pilots": len(by[ONE, True])}
        | {"sign": sign, "threshold": threshold}
        | claim
        | counts
        | {"epsilon_lower_bound": one_run.epsilon_lower_bound_from_runs(**counts, **claim)}
        | {
            "largest_bound": membership.largest_epsilon_from_runs(
                n_first=counts["n_first"], n_second=counts["n_second"], **claim
            )
        }
        | {"n_models": n, "n_right": n_right, "detection_rate": n_right / n}
        | dict(zip(("rate_low", "rate_high"), intervals.rate_interval(n_right, n), strict=True))
    )


def detection_rows(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """One row a scheme; table ``detections``."""
    models, mechanisms = tables["worst_models"], tables["worst_mechanisms"]
    # One δ and significance for all, those that the private schemes were settled with.
    claim = {name: float(mechanisms[name].iloc[0]) for name in ("delta", "significance")}
    rows = []
    for scheme, of_scheme in models.groupby("scheme", sort=False):
        row = mechanisms[mechanisms["scheme"] == scheme]
        names = ("theoretical_epsilon", "claimed_epsilon")
        allowed = {name: float(row[name].iloc[0]) if len(row) else None for name in names}
        rows.append({"scheme": scheme} | allowed | detection(of_scheme, **claim))
    return rows


# ------------------------------------------------------------------------------------ tables

MODEL_FIELDS = (
    Field("set", "string", "", "D or D′"),
    Field("pilot", "boolean", "", "settles the threshold, and is not counted"),
    Field("number", "integer", "", "number of the model", minimum=0),
    Field("width", "integer", "", "channels of each block", minimum=1),
    Field("n_per_class", "integer", "", "images a class trained on", required=False, minimum=1),
    Field("n_iterations", "integer", "", "iterations of matching", required=False, minimum=0),
    *networks.NETWORK_FIELDS,
    Field("score", "string", "", "what the value is"),
    Field("value", "number", "", "score by which the set is guessed"),
    Field("logit", "number", "", "log p/(1 − p) of class 0 for the second image"),
    *networks.TESTED_FIELDS,
)
# The same where every model is made from condensed images, whose sizes are part of its name.
SIZED_MODEL_FIELDS = tuple(
    dataclasses.replace(field, required=True)
    if field.name in ("n_per_class", "n_iterations")
    else field
    for field in MODEL_FIELDS
)


def _rate_field(name: str, function: str, meaning: str) -> Field:
    return Field(
        name,
        "number",
        "",
        meaning,
        minimum=0,
        maximum=1,
        recipe=recipe(f"intervals.{function}", n_successes="n_right", n_trials="n_models"),
    )


DETECTION_FIELDS = (
    Field("score", "string", "", "by what the set is guessed"),
    Field("n_pilots", "integer", "", "pilot models a set, not counted", minimum=1),
    Field("sign", "integer", "", "1 where D′ scores higher, else −1; from the pilots"),
    Field("threshold", "number", "", "least sign · score taken for D′; from the pilots"),
    Field("delta", "number", "", "δ of the claim", minimum=0, maximum=1),
    SIGNIFICANCE,
    *two_sets_fields("on D", "on D′"),
    Field("largest_bound", "number", "nats", "the bound, had no guess been wrong", minimum=0),
    Field("n_models", "integer", "", "models counted", minimum=2),
    Field("n_right", "integer", "", "of these, guessed right", minimum=0),
    _rate_field("detection_rate", "rate", "share of right guesses"),
    _rate_field("rate_low", "rate_lower", "lower end of its 95 % interval"),
    _rate_field("rate_high", "rate_upper", "upper end"),
)
SCHEME = Field("scheme", "string", "", "how a network is made from D or D′")

TABLES = {
    "worst_mechanisms": Table(
        fields=(
            SCHEME,
            Field("epsilon", "number", "nats", "ε calibrated for", required=False, minimum=0),
            Field("noise_share", "number", "", "share of the noise that is added", minimum=0),
            Field("claimed_epsilon", "number", "nats", "ε with all of it", minimum=0),
            Field(
                "theoretical_epsilon",
                "number",
                "nats",
                "ε with what is added",
                minimum=0,
                recipe=recipe(
                    "accounting.epsilon_of_rows",
                    *("noise_multiplier", "delta", "sampling_rate", "steps"),
                ),
            ),
            Field("delta", "number", "", "δ of the claim", minimum=0, maximum=1),
            SIGNIFICANCE,
            Field("sampling_rate", "number", "", "Poisson sampling rate q", minimum=0, maximum=1),
            Field("steps", "integer", "", "steps T", minimum=1),
            Field("noise_multiplier", "number", "clip norms", "noise σ", minimum=0),
        ),
        key=("scheme",),
        meaning="one private scheme of the worst case, settled before any run",
    ),
    "worst_models": Table(
        fields=(SCHEME, *MODEL_FIELDS),
        key=("scheme", "set", "pilot", "number"),
        meaning="one model made from D or D′",
    ),
    "detections": Table(
        fields=(
            SCHEME,
            Field("theoretical_epsilon", "number", "nats", "ε at δ", required=False, minimum=0),
            Field("claimed_epsilon", "number", "nats", "ε claimed", required=False, minimum=0),
            *DETECTION_FIELDS,
        ),
        key=("scheme",),
        meaning="one scheme, its models of D and D′ told apart",
        claims=BOUND_BELOW_TRUTH,
        derived="condensation_worst_case.detection_rows",
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Detection and bounds for a reader."""
    rows = tables["detections"]
    return pd.DataFrame(
        {
            "scheme": rows["scheme"],
            "models": rows["n_models"],
            "told apart, %": 100 * rows["detection_rate"],
            "wrong on D": rows["n_wrong_first"],
            "wrong on D′": rows["n_wrong_second"],
            "ε at least": rows["epsilon_lower_bound"],
            "largest possible": rows["largest_bound"],
            "ε claimed": rows["claimed_epsilon"],
            "true ε": rows["theoretical_epsilon"],
        }
    )


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The note's worst case, and what private training's claims are worth."""
    rows = []
    papers = {schemes.DM_NOISE: "100", schemes.DM_REAL: "100 from noise"}
    for row in tables["detections"].itertuples():
        if row.scheme in papers:
            rows.append(_detection_verdict(row, papers[row.scheme]))
        if row.claimed_epsilon == row.claimed_epsilon:  # none is missing as NaN
            rows.append(_claim_verdict(row))
    return rows


def _detection_verdict(row, paper: str) -> dict:
    interval = (row.detection_rate, row.rate_low, row.rate_high)
    return verdict_row(
        f"worst case, {row.scheme}: models of D and D′ told apart (%)",
        paper,
        in_per_cent(interval),
        "agrees" if row.detection_rate >= ENOUGH else "differs",
        f"{row.n_right} of {row.n_models}; ε is at least {row.epsilon_lower_bound:.2f}, and no "
        f"count of so many could have shown more than {row.largest_bound:.2f}",
    )


def _claim_verdict(row) -> dict:
    refuted = row.epsilon_lower_bound > row.claimed_epsilon
    # With fewer models than the claim needs to be refuted, its standing says nothing.
    words = "not refuted" if row.largest_bound > row.claimed_epsilon else "too few models to refute"
    if row.theoretical_epsilon > row.claimed_epsilon and not refuted:
        words = f"{words}, though false"
    return verdict_row(
        f"worst case, {row.scheme}: lower bound on ε",
        f"at most {row.claimed_epsilon:.2f}",
        (row.epsilon_lower_bound, row.epsilon_lower_bound, None),
        "claim refuted" if refuted else words,
        f"Clopper and Pearson at {row.significance:g}; no count of so many could have shown more "
        f"than {row.largest_bound:.2f}",
    )


# ----------------------------------------------------------------------------------- figures


def draw_clouds(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Scores of all counted models, those of D beside those of D′, with each threshold."""
    models, detections = tables["worst_models"], tables["detections"]
    n = len(detections)
    figure, axes = figures.new_figure(2, (n + 1) // 2, height=5.6)
    for ax in axes.ravel()[n:]:
        ax.set_visible(False)
    for ax, row in zip(axes.ravel(), detections.itertuples(), strict=False):
        counted = models[(models["scheme"] == row.scheme) & ~models["pilot"]]
        for i, name in enumerate((ONE, TWO)):
            values = counted.loc[counted["set"] == name, "value"].to_numpy()
            # Spread by rank within the cloud, so that equal scores stay visible.
            spread = 0.3 * ((np.arange(len(values)) * 0.618034) % 1 - 0.5)
            style = {"linestyle": "none", "markerfacecolor": "none", "markersize": 4}
            ax.plot(i + spread, values, **figures.series(i) | style)
        ax.axhline(row.sign * row.threshold, color="grey", linewidth=1)
        ax.set_xticks([0, 1], [ONE, TWO])
        ax.set_xlim(-0.5, 1.5)
        lines = [*textwrap.wrap(row.scheme, 20), f"{100 * row.detection_rate:.0f} % told apart"]
        ax.set_title("\n".join(lines), fontsize=8)
        ax.set_ylabel("logit" if row.score == LOGIT else "log-likelihood ratio")
    return figure


FIGURES = {
    "worst_case": Figure(
        draw_clouds,
        tables=("worst_models", "detections"),
        title="Scores of models made from D and from D′",
        alternative_text=(
            "One panel a scheme: the scores of all models made from D on the left, from D′ on the "
            "right, and the threshold that pilots settled as a line. Distribution matching's two "
            "clouds lie apart, private training's overlap."
        ),
    ),
}
