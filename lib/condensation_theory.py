"""Study 03, the theory that says nothing (Proposition 4.4 and Assumption 4.8 of arXiv:2206.00240).

With linear features, distribution matching moves its start to the mean of T and does no more, as
:func:`lib.condensation.linear_shift` has in closed form. From real images of T that is nearly the
identity, from centred noise on centred data exactly; so an analysis of it cannot explain why
training on condensed images should be better, or more private, than training on the start
(arXiv:2209.14987). The privacy proof assumes a model drawn by the exponential mechanism; what ε
that would be is evaluated for the losses of the networks that were trained here.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import condensation_models as networks
from lib import condensation_schemes as schemes
from lib import figures
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import verdict_row
from lib.tables import Field, Table

REAL, NOISE, CENTRED = "real images of T", "noise", "centred noise, T centred"
STARTS = (REAL, NOISE, CENTRED)
START, MATCHED, CLOSED, CONV_NET = "start", "linear features", "closed form", "ConvNet features"
N_CLASSES, N_IMAGES = 2, 100  # classes, and images of each
PIXELS_PER_FEATURE = 8
CLOSE = 1e-4  # of a range of pixels of 2
SMALL = 0.1  # standard deviations of a class's pixels

PARAMETERS = {
    "theory_n_iterations": Parameter("int", "iterations with linear features", minimum=1),
    "theory_n_per_class": Parameter(
        "int", "condensed images of each class there", minimum=2, maximum=N_IMAGES
    ),
}


def check_images(session) -> None:
    """Refuse a dataset with too few images.

    Raises:
        WorkbookError: naming it.
    """
    counts = np.bincount(session.dataset.train_labels)
    if (counts[:N_CLASSES] < N_IMAGES).any():
        raise WorkbookError(
            f"dataset = {session.p.dataset}; allowed: at least {N_IMAGES} images of each of the "
            f"first {N_CLASSES} classes"
        )


RULES = ()
DATA_RULES = (check_images,)


# ------------------------------------------------------------------------------------- cells


def shift(cell: dict, streams, dataset) -> list[dict]:
    """Match with linear features from one start, and hold the outcome against the closed form."""
    from lib import condensation

    images, labels, start = _setting(cell, streams, dataset)
    matched = _linear(cell, streams, images, labels, start)
    closed = condensation.linear_shift(start, images, labels, n_per_class=cell["n_per_class"])
    scatter = float(images[labels == 0].std(0).square().mean().sqrt())
    m = cell["n_per_class"]
    return [
        {name: cell[name] for name in ("start", "n_per_class", "n_iterations")}
        | {"n_of_class": N_IMAGES, "n_features": _n_features(dataset)}
        | {
            "largest_difference": float((matched - closed).abs().max()),
            "shift": float((closed - start).square().mean().sqrt()),
            "scatter": scatter,
            # Of a mean over m of n images, drawn without repetition.
            "expected_shift": scatter * float(np.sqrt(1 / m - 1 / N_IMAGES)),
        }
    ]


def picture(cell: dict, streams, dataset) -> list[dict]:
    """One condensed image from each start: before, after, in closed form, and by a ConvNet."""
    from lib import condensation

    images, labels, start = _setting(cell, streams, dataset)
    height, width, channels = dataset.train_images.shape[1:]
    made = {
        START: start,
        MATCHED: _linear(cell, streams, images, labels, start),
        CLOSED: condensation.linear_shift(start, images, labels, n_per_class=cell["n_per_class"]),
        CONV_NET: schemes.condense(
            cell | {"n_iterations": cell["n_conv_iterations"]},
            images,
            labels,
            streams.sequence("ConvNets"),
            dataset,
            initial=start,
        )[0],
    }
    return [
        {"start": cell["start"], "stage": stage, "height": height, "width": width}
        | {"channels": channels, "pixels": _to_text(each[0].permute(1, 2, 0).numpy())}
        for stage, each in made.items()
    ]


def _setting(cell: dict, streams, dataset):
    """T, its labels, and the start: all float32 tensors of images from −1 to 1."""
    import torch

    from lib import condensation

    labels = dataset.train_labels
    rows = np.concatenate([np.flatnonzero(labels == c)[:N_IMAGES] for c in range(N_CLASSES)])
    images, labels = schemes.tensors(dataset.train_images[rows], labels[rows])
    m = cell["n_per_class"]
    if cell["start"] == REAL:
        rng = streams.generator("start")
        chosen = [
            rng.choice(np.flatnonzero(labels.numpy() == c), m, replace=False)
            for c in range(N_CLASSES)
        ]
        return images, labels, images[torch.from_numpy(np.concatenate(chosen))]
    centred = cell["start"] == CENTRED
    if centred:
        means = torch.stack([images[labels == c].double().mean(0) for c in range(N_CLASSES)])
        images = (images.double() - means[labels]).float()
    pieces = [
        condensation.noise_images(
            m,
            dataset.train_images.shape[1:],
            streams.sequence(f"start {c}"),
            centred=centred,
        )
        for c in range(N_CLASSES)
    ]
    return images, labels, torch.cat(pieces)


def _linear(cell: dict, streams, images, labels, start):
    from lib import condensation

    shape = (*images.shape[2:], images.shape[1])
    return condensation.condense(
        images,
        labels,
        n_per_class=cell["n_per_class"],
        n_iterations=cell["n_iterations"],
        initial=start,
        sequence=streams.sequence("linear"),
        # Contracts for rates up to about a quarter of the images that move together.
        learning_rate=cell["n_per_class"] / 4,
        real_batch=N_IMAGES,
        operations=(),
        extractor=condensation.linear_extractor(shape, images[0].numel() // PIXELS_PER_FEATURE),
    ).images


def _n_features(dataset) -> int:
    return int(np.prod(dataset.train_images.shape[1:])) // PIXELS_PER_FEATURE


def _to_text(image: np.ndarray) -> str:
    """Pixels from −1 to 1 as hexadecimal digits, two a number; beyond is cut off."""
    return np.rint((image.clip(-1, 1) + 1) * 127.5).astype(np.uint8).tobytes().hex()


def _from_text(text: str, shape: tuple[int, int, int]) -> np.ndarray:
    image = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(shape)
    return image[:, :, 0] if shape[2] == 1 else image


def shift_cells(session) -> list[dict]:
    """One cell for each start."""
    p = session.p
    names = {"n_per_class": p.theory_n_per_class, "n_iterations": p.theory_n_iterations}
    return [{"start": start} | names for start in STARTS]


def picture_cells(session) -> list[dict]:
    """One cell for each start."""
    p = session.p
    names = ("real_batch", "image_learning_rate", "width", "device")
    more = {name: getattr(p, name) for name in names} | {"n_conv_iterations": p.n_iterations}
    return [cell | more for cell in shift_cells(session)]


def exponential_rows(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """ε of the exponential mechanism with the range of losses that each scheme's networks show."""
    rows = []
    for scheme in tables["models"]["scheme"].unique():
        logits, _ = networks.logits_of(tables, scheme)
        losses = np.logaddexp(0, -logits)  # −log p of the true class
        lowest, highest = float(losses.min()), float(losses.max())
        rows.append(
            {"scheme": scheme, "n_losses": losses.size, "lowest": lowest, "highest": highest}
            | {"epsilon": 2 * (highest - lowest)}
        )
    return rows


# ------------------------------------------------------------------------------------ tables


TABLES = {
    "linear_shifts": Table(
        fields=(
            Field("start", "string", "", "what matching starts from"),
            Field("n_per_class", "integer", "", "condensed images m of a class", minimum=1),
            Field("n_iterations", "integer", "", "iterations", minimum=1),
            Field("n_of_class", "integer", "", "images n of a class", minimum=1),
            Field("n_features", "integer", "", "linear features, drawn each time", minimum=1),
            Field(
                "largest_difference",
                "number",
                "pixels from −1 to 1",
                "largest of any pixel between outcome and closed form",
                minimum=0,
            ),
            Field("shift", "number", "pixels from −1 to 1", "root mean square shift", minimum=0),
            Field("scatter", "number", "pixels from −1 to 1", "of a class's pixels", minimum=0),
            Field(
                "expected_shift",
                "number",
                "pixels from −1 to 1",
                "of a start from m of n real images",
                minimum=0,
            ),
        ),
        key=("start",),
        meaning="matching with linear features from one start",
    ),
    "theory_pictures": Table(
        fields=(
            Field("start", "string", "", "what matching starts from"),
            Field("stage", "string", "", "which image"),
            Field("height", "integer", "pixels", "height", minimum=1),
            Field("width", "integer", "pixels", "width", minimum=1),
            Field("channels", "integer", "", "channels", minimum=1),
            Field("pixels", "string", "", "all pixels from 0 to 255, two hexadecimal digits each"),
        ),
        key=("start", "stage"),
        meaning="the first condensed image of class 0 from one start, at one stage",
    ),
    "exponential": Table(
        fields=(
            networks.SCHEME,
            Field("n_losses", "integer", "", "losses seen", minimum=1),
            Field("lowest", "number", "nats", "smallest loss seen", minimum=0),
            Field("highest", "number", "nats", "largest loss seen", minimum=0),
            Field(
                "epsilon",
                "number",
                "nats",
                "twice the range: at least what the assumed mechanism has",
                minimum=0,
                recipe={
                    "function": "condensation.exponential_mechanism_epsilon",
                    "columns": {name: name for name in ("lowest", "highest")},
                },
            ),
        ),
        key=("scheme",),
        meaning="the privacy that the assumption amounts to, for one scheme's losses",
        derived="condensation_theory.exponential_rows",
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Shifts for a reader."""
    rows = tables["linear_shifts"]
    return pd.DataFrame(
        {
            "start": rows["start"],
            "largest difference from the closed form": rows["largest_difference"],
            "shift": rows["shift"],
            "expected for real images": rows["expected_shift"].where(rows["start"] == REAL),
            "scatter of a class": rows["scatter"],
        }
    )


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The proposition, its two cases, and the assumption."""
    rows = tables["linear_shifts"].set_index("start")
    difference = float(rows["largest_difference"].max())
    real, centred = float(rows.loc[REAL, "shift"]), float(rows.loc[CENTRED, "shift"])
    ratio = real / float(rows.loc[REAL, "expected_shift"])
    size = real / float(rows.loc[REAL, "scatter"])
    lowest = float(tables["exponential"]["epsilon"].min())
    return [
        verdict_row(
            "linear features: matching only moves the start to the mean of T",
            "exactly",
            (difference, None, None),
            "agrees" if difference <= CLOSE else "differs",
            "largest difference of any pixel from the closed form, pixels from −1 to 1",
        ),
        verdict_row(
            "linear features: shift of a start from real images, in a class's standard deviations",
            "nearly the identity",
            (size, None, None),
            "agrees" if size <= SMALL else "differs: not small from so few images",
            f"root mean square over pixels, from {rows.loc[REAL, 'n_per_class']} images a class",
        ),
        verdict_row(
            "linear features: the same shift over what concentration gives",
            "falls as 1/√m",
            (ratio, None, None),
            "agrees" if 0.5 <= ratio <= 2 else "differs",
            "√(1/m − 1/n) standard deviations, for m of n images without repetition",
        ),
        verdict_row(
            "linear features: shift of centred noise on centred data",
            "the identity",
            (centred, None, None),
            "agrees" if centred <= CLOSE else "differs",
            "root mean square",
        ),
        verdict_row(
            "ε of the exponential mechanism that the proof assumes",
            "twice the range of the loss",
            (lowest, None, None),
            "says nothing" if lowest > 1 else "would protect",
            "smallest over schemes, from the losses seen; cross-entropy itself has no largest",
        ),
    ]


# ----------------------------------------------------------------------------------- figures


def draw_pictures(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """A row for each start, a column for each stage."""
    pictures = tables["theory_pictures"]
    starts, stages = list(pictures["start"].unique()), list(pictures["stage"].unique())
    figure, axes = figures.new_figure(len(starts), len(stages), height=5.4)
    for i, start in enumerate(starts):
        for j, stage in enumerate(stages):
            row = pictures[(pictures["start"] == start) & (pictures["stage"] == stage)].iloc[0]
            ax, shape = axes[i, j], (row["height"], row["width"], row["channels"])
            ax.imshow(_from_text(row["pixels"], shape), cmap="gray", vmin=0, vmax=255)
            ax.grid(visible=False)
            ax.set_xticks([])
            ax.set_yticks([])
            for side in ax.spines.values():
                side.set_visible(False)
            if i == 0:
                ax.set_title(stage)
            if j == 0:
                ax.set_ylabel(start)
    return figure


FIGURES = {
    "linear_theory": Figure(
        draw_pictures,
        tables=("theory_pictures",),
        title="What linear features do to a start, and what a ConvNet does",
        alternative_text=(
            "Images in a grid, a row for each start: the start, the outcome of matching with "
            "linear features, its closed form, which looks the same, and the outcome with ConvNet "
            "features."
        ),
    ),
}
