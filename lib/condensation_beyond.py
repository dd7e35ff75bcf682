"""Study 03, beyond the paper: one condensation audited, accuracy against the worst case, and sizes.

- The audit of study 01 needs one run: of m canaries each is in by an independent fair coin. Here a
  canary is the second image of a class that has one image always, and all classes are condensed at
  once; so a single condensation gives a lower bound on ε.
- The worst case's bound stands against accuracy, for every scheme.
- The worst case is repeated with other numbers of condensed images and iterations.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import condensation_membership as over_universe
from lib import condensation_models as networks
from lib import condensation_schemes as schemes
from lib import condensation_worst_case as worst_case
from lib import figures, intervals, membership
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import COUNT_FIELDS, DELTA, LOWER_BOUND, verdict_row
from lib.tables import Field, Table

TINY, LARGE = "tiny, one image and a canary", "large"
NOISE = "noise"
ALWAYS = "images that are always present"
PRESENT = "any present image"
SETTINGS = ((TINY, NOISE), (TINY, ALWAYS), (TINY, PRESENT), (LARGE, NOISE))

PARAMETERS = {
    "canary_n_classes": Parameter("int", "canaries, one for each tiny class", minimum=100),
    "canary_n_guesses": Parameter("int", "guesses of 'in', and as many of 'out'", minimum=1),
    "canary_n_iterations": Parameter("int", "iterations of matching there", minimum=0),
    "canary_epochs": Parameter("int", "epochs on the condensed images there", minimum=1),
    "canary_class_size": Parameter("int", "always-present images of a large class", minimum=1),
    "grid_n_models": Parameter("int", "models on each of D and D′, counted, a point", minimum=2),
    "grid_n_per_class": Parameter("ints", "condensed images of each class to try", minimum=1),
    "grid_n_iterations": Parameter("ints", "iterations of matching to try", minimum=0),
}


def check_canaries(p) -> None:
    """Refuse more guesses than canaries.

    Raises:
        WorkbookError: naming the parameter.
    """
    if 2 * p.canary_n_guesses > p.canary_n_classes:
        raise WorkbookError(
            f"canary_n_guesses = {p.canary_n_guesses}; allowed: at most half of canary_n_classes, "
            f"which is {p.canary_n_classes}"
        )


def check_images(session) -> None:
    """Refuse canaries and classes that the dataset has too few images for.

    Raises:
        WorkbookError: naming the parameter.
    """
    p, dataset = session.p, session.dataset
    n_real, m = len(dataset.class_names), p.canary_n_classes
    fewest = np.bincount(dataset.train_labels).min()
    if 2 * m > len(dataset.train_images) or m % n_real:
        raise WorkbookError(
            f"canary_n_classes = {m}; allowed: multiples of {n_real} up to "
            f"{len(dataset.train_images) // 2}, half of the training images of {p.dataset}"
        )
    if p.canary_class_size + m // n_real > fewest:
        raise WorkbookError(
            f"canary_class_size = {p.canary_class_size}; allowed: at most "
            f"{fewest - m // n_real}, as a class of {p.dataset} has {fewest} images and "
            f"{m // n_real} of them are canaries"
        )


RULES = (check_canaries,)
DATA_RULES = (check_images,)


# ------------------------------------------------------------------------------------- cells


def canaries(cell: dict, streams, dataset) -> list[dict]:
    """Condense once with canaries by coins, train on the outcome, and guess the coins."""
    from lib import training

    inputs, labels, is_canary = _with_canaries(cell, streams, dataset)
    n_canaries = int(is_canary.sum())
    coins = streams.generator("coins").random(n_canaries) < 0.5
    present = ~is_canary
    present[is_canary] = coins
    kept = np.flatnonzero(present)
    condensed = schemes.condense(
        cell,
        inputs[kept],
        labels[kept],
        streams.sequence("condensation"),
        dataset,
        initial=_initial(cell, streams, inputs, labels, is_canary, present),
    )
    network = schemes.fit(cell, *condensed, streams, dataset)
    asked = np.flatnonzero(is_canary)
    outputs = training.outputs(network, inputs[asked])
    audit = membership.claim_from_one_model(
        membership.label_logits(outputs, labels[asked].numpy()),
        coins,
        n_positive=cell["n_guesses"],
        n_negative=cell["n_guesses"],
        delta=cell["delta"],
        significance=cell["significance"],
        rng=streams.generator("ties"),
    )
    names = ("classes", "start", "n_classes", "n_per_class", "n_iterations", "width")
    return [
        {name: cell[name] for name in names}
        | schemes.described(dataset, augmented=True)
        | {"n_always": int((~is_canary).sum()), "delta": audit.delta}
        | {field.name: getattr(audit, field.name) for field in COUNT_FIELDS}
        | {"epsilon_lower_bound": audit.epsilon_lower_bound}
    ]


def _with_canaries(cell: dict, streams, dataset):
    """All images that may be there, their classes, and which are canaries.

    Tiny classes are made up: each has two images of any kind. Large ones are the dataset's own.
    """
    rng, m = streams.generator("images"), cell["n_canaries"]
    if cell["classes"] == TINY:
        rows = rng.permutation(len(dataset.train_images))[: 2 * m]
        inputs, _ = schemes.tensors(dataset.train_images[rows], dataset.train_labels[rows])
        _, labels = schemes.tensors(dataset.train_images[:1], np.tile(np.arange(m), 2))
        return inputs, labels, np.arange(2 * m) >= m
    of_class = [
        rng.permutation(np.flatnonzero(dataset.train_labels == c)) for c in range(cell["n_classes"])
    ]
    n_always, share = cell["class_size"], m // cell["n_classes"]
    rows = np.concatenate([rows[: n_always + share] for rows in of_class])
    is_canary = np.tile(np.arange(n_always + share) >= n_always, cell["n_classes"])
    inputs, labels = schemes.tensors(dataset.train_images[rows], dataset.train_labels[rows])
    return inputs, labels, is_canary


def _initial(cell: dict, streams, inputs, labels, is_canary, present):
    """Images to start from, a class each; None for noise."""
    import torch

    if cell["start"] == NOISE:
        return None
    allowed = ~is_canary if cell["start"] == ALWAYS else present
    rng, labels = streams.generator("start"), labels.numpy()
    rows = [rng.choice(np.flatnonzero(allowed & (labels == c))) for c in range(cell["n_classes"])]
    return inputs[torch.tensor(rows)]


# --------------------------------------------------------------------- from parameters to cells


def canary_cells(session) -> list[dict]:
    """One cell for each kind of class and start."""
    p = session.p
    n_real, m = len(session.dataset.class_names), p.canary_n_classes
    names = ("real_batch", "image_learning_rate", "learning_rate", "device", "delta")
    shared = {name: getattr(p, name) for name in (*names, "significance")} | {
        "n_canaries": m,
        "n_guesses": p.canary_n_guesses,
        "n_iterations": p.canary_n_iterations,
        "epochs": p.canary_epochs,
        "width": p.worst_width,
    }
    large = {"n_classes": n_real, "class_size": p.canary_class_size}
    return [
        shared
        | {"classes": classes, "start": start}
        | ({"n_classes": m, "n_per_class": 1} if classes == TINY else large)
        | ({} if classes == TINY else {"n_per_class": p.worst_n_per_class})
        for classes, start in SETTINGS
    ]


def grid_cells(session) -> list[dict]:
    """Models of D and D′ at every point of the grid."""
    p = session.p
    worst = worst_case.few(session) | worst_case.matching(session)
    worst |= {"scheme": schemes.DM_NOISE}
    return [
        worst | {"n_per_class": n_per_class, "n_iterations": n_iterations} | which
        for n_per_class in p.grid_n_per_class
        for n_iterations in p.grid_n_iterations
        for which in worst_case.numbered(p.worst_n_pilots, p.grid_n_models)
    ]


def grid_rows(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Detection and accuracy at each point of the grid; table ``grid``."""
    mechanisms = tables["worst_mechanisms"]
    claim = {name: float(mechanisms[name].iloc[0]) for name in ("delta", "significance")}
    rows = []
    for (n_per_class, n_iterations), models in tables["grid_models"].groupby(
        ["n_per_class", "n_iterations"], sort=False
    ):
        accuracy = models["test_accuracy"].to_numpy()
        ends = {
            "mean": float(accuracy.mean()),
            "standard_error": float(accuracy.std(ddof=1) / np.sqrt(len(accuracy))),
            "n_values": len(accuracy),
        }
        rows.append(
            {"n_per_class": int(n_per_class), "n_iterations": int(n_iterations)}
            | worst_case.detection(models, **claim)
            | {
                "test_accuracy": ends["mean"],
                "accuracy_low": float(intervals.t_lower(**ends)),
                "accuracy_high": float(intervals.t_upper(**ends)),
            }
        )
    return rows


# ------------------------------------------------------------------------------------ tables


TABLES = {
    "canary_audits": Table(
        fields=(
            Field("classes", "string", "", "kind of class that canaries are in"),
            Field("start", "string", "", "what condensation starts from"),
            Field("n_classes", "integer", "", "classes", minimum=1),
            Field("n_per_class", "integer", "", "condensed images of each class", minimum=1),
            Field("n_iterations", "integer", "", "iterations of matching", minimum=0),
            Field("width", "integer", "", "channels of each block", minimum=1),
            *networks.NETWORK_FIELDS,
            Field("n_always", "integer", "", "images that are always present", minimum=1),
            DELTA,
            *COUNT_FIELDS,
            LOWER_BOUND,
        ),
        key=("classes", "start"),
        meaning="one condensation with canaries, audited",
    ),
    "grid_models": Table(
        fields=(worst_case.SCHEME, *worst_case.SIZED_MODEL_FIELDS),
        key=("n_per_class", "n_iterations", "set", "pilot", "number"),
        meaning="one model made from D or D′ at one point of the grid",
    ),
    "grid": Table(
        fields=(
            Field("n_per_class", "integer", "", "condensed images of each class", minimum=1),
            Field("n_iterations", "integer", "", "iterations of matching", minimum=0),
            *worst_case.DETECTION_FIELDS,
            *(
                Field(name, "number", "", meaning)
                for name, meaning in (
                    ("test_accuracy", "mean over all models"),
                    ("accuracy_low", "lower end of its 95 % interval"),
                    ("accuracy_high", "upper end"),
                )
            ),
        ),
        key=("n_per_class", "n_iterations"),
        meaning="the worst case with other sizes of condensation",
        derived="condensation_beyond.grid_rows",
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def canary_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Audits of single condensations for a reader."""
    rows = tables["canary_audits"]
    return pd.DataFrame(
        {
            "classes": rows["classes"],
            "start": rows["start"],
            "canaries": rows["n_canaries"],
            "condensed a class": rows["n_per_class"],
            "right": rows["n_correct"],
            "guesses": rows["n_guesses"],
            "ε at least": rows["epsilon_lower_bound"],
        }
    )


def grid_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The worst case by size for a reader."""
    rows = tables["grid"]
    return pd.DataFrame(
        {
            "condensed a class": rows["n_per_class"],
            "iterations": rows["n_iterations"],
            "told apart, %": 100 * rows["detection_rate"],
            "of": rows["n_models"],
            "ε at least": rows["epsilon_lower_bound"],
            "test accuracy, %": 100 * rows["test_accuracy"],
            "± (95 %)": 100 * (rows["accuracy_high"] - rows["test_accuracy"]),
        }
    )


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """What one condensation shows by itself."""
    rows = []
    for row in tables["canary_audits"].itertuples():
        bound = row.epsilon_lower_bound
        rows.append(
            verdict_row(
                f"ε of one condensation, classes {row.classes}, from {row.start}",
                "not tried",
                (bound, bound, None),
                f"at least {bound:.2f}" if bound > 0 else "nothing shown",
                f"one-run audit (Theorem 5.2 of arXiv:2305.08846): {row.n_correct} of "
                f"{row.n_guesses} guesses right, {row.n_canaries} canaries",
            )
        )
    return rows


# ----------------------------------------------------------------------------------- figures


def draw_plane(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Accuracy over the universe against the worst case's bound, one point a scheme."""
    accuracy = tables["schemes"]
    accuracy = accuracy[accuracy["protocol"] == over_universe.UNIVERSE].set_index("scheme")
    bounds = tables["detections"].set_index("scheme")
    figure, ax = figures.new_figure(height=3.8)
    for i, scheme in enumerate(name for name in accuracy.index if name in bounds.index):
        row, bound = accuracy.loc[scheme], bounds.loc[scheme]
        x = 100 * row["test_accuracy"]
        ends = [[x - 100 * row["accuracy_low"]], [100 * row["accuracy_high"] - x]]
        style = figures.series(i) | {"linestyle": "none"}
        y = bound["epsilon_lower_bound"]
        ax.errorbar([x], [y], xerr=ends, yerr=[[0], [0.25]], lolims=True, label=scheme, **style)
    largest = bounds["largest_bound"].max()
    ax.axhline(largest, color="grey", linewidth=1, linestyle=":")
    ax.text(
        0.01,
        largest,
        "most that so many models can show",
        fontsize=8,
        va="bottom",
        transform=ax.get_yaxis_transform(),
    )
    ax.set_ylim(bottom=-0.1, top=largest + 0.6)
    ax.set_xlabel("test accuracy over the universe (%)")
    ax.set_ylabel("worst case: ε is at least (nats)")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def draw_grid(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Detection and accuracy over iterations, a line for each number of condensed images."""
    grid = tables["grid"]
    figure, (left, right) = figures.new_figure(1, 2, height=3.0)
    panels = (
        (left, "detection_rate", "rate_low", "rate_high", "D and D′ told apart (%)"),
        (right, "test_accuracy", "accuracy_low", "accuracy_high", "test accuracy (%)"),
    )
    for ax, mean, low, high, label in panels:
        for i, (n_per_class, rows) in enumerate(grid.groupby("n_per_class", sort=False)):
            line = rows.sort_values("n_iterations")
            x = line["n_iterations"]
            figures.band(ax, x, 100 * line[low], 100 * line[high], index=i)
            plural = "" if n_per_class == 1 else "s"
            name = f"{n_per_class} image{plural} a class"
            ax.plot(x, 100 * line[mean], label=name, **figures.series(i))
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set_xlabel("iterations of distribution matching")
        ax.set_ylabel(label)
    left.axhline(50, color="grey", linewidth=1)
    left.set_ylim(0, 103)
    left.legend(loc="lower right")
    return figure


FIGURES = {
    "plane": Figure(
        draw_plane,
        tables=("schemes", "detections"),
        title="Accuracy against the worst case",
        alternative_text=(
            "One point a scheme: test accuracy with its interval along, the worst case's lower "
            "bound on ε up, and a dotted line for the largest bound that so many models can show."
        ),
    ),
    "sizes": Figure(
        draw_grid,
        tables=("grid",),
        title="The worst case over iterations and condensed images",
        alternative_text=(
            "Left, the share of models of D and D′ told apart, right, test accuracy, over the "
            "iterations of distribution matching, a line with a band for each number of condensed "
            "images."
        ),
    ),
}
