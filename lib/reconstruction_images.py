"""Study 02, images drawn from nothing but what training releases (Figure 1 of arXiv:2302.07225).

Two attacks on the same trainings. One has every released gradient and knows nothing of what images
look like; the other has the final model alone, and other images to train models on. Their mean
squared error over ε stands beside the distance to the nearest other image, that of two images, and
the error of an attacker who always answers with the mean image.

Batches are full (q = 1), so that ε comes from a closed formula, far beyond where it protects: there
the attacks begin to work. The label of the unknown image is known to the attacker from gradients
and not used by the other.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import audited_run, figures, intervals, reconstruction
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import DELTA, verdict_row
from lib.tables import Field, Table

GRADIENTS, MODEL = "gradients", "model"
ATTACKS = {GRADIENTS: "from the gradients", MODEL: "from the final model"}
HIDDEN_UNITS = 10  # 7,960 parameters for MNIST, 30,850 for CIFAR-10
CLIP_NORM = 1.0
# Settled, like the attacks' own numbers, on other seeds and images than those reported.
LEARNING_RATE = 0.5
SHOWN = 3  # targets whose images are kept and drawn
RANDOM_VECTORS = 1 / 6  # E(U − V)² of independent values, uniform on [0, 1]: the paper's threshold
ALIKE = 0.05  # relative difference of errors below which they are as good as equal
# Where the paper sees its best attack begin to work.
PAPER_RANGE = {"mnist": (1e2, 1e3), "mnist5k": (1e2, 1e3)} | dict.fromkeys(
    ("cifar10", "cifar10-images"), (1e3, 1e4)
)
REASONABLE = 10.0  # ε up to which the paper's models give nothing away, by the paper

PARAMETERS = {
    "image_epsilons": Parameter(
        "floats", "theoretical ε of the reconstructed images", minimum=0.001, maximum=1e7
    ),
    "image_targets": Parameter("int", "unknown images, each with a training of its own", minimum=5),
    "image_shadow_models": Parameter("int", "shadow models of the model-based attack", minimum=20),
    "image_known": Parameter("int", "training points that the attacker knows", minimum=1),
    "image_steps": Parameter("int", "steps T of these trainings", minimum=1),
}
RULES = ()


def check_images(session) -> None:
    """Refuse more images than either dataset has.

    Raises:
        WorkbookError: naming the parameters.
    """
    for name in (session.p.dataset, session.p.second_dataset):
        _check_sizes(_images(session.p, name), session.dataset_of(name))


DATA_RULES = (check_images,)


# ------------------------------------------------------------------------------------- cells


def reconstruct(cell: dict, streams, dataset) -> list[dict]:
    """Train shadow models and attacked models at one ε; both attacks on each of the latter.

    Known points and initial weights are common to all. Every model has noise of its own, and an
    image of its own: those of the shadow models are training images, the targets test images.
    """
    from lib import image_inversion, inversion

    inputs, labels, shadows, targets = _points(cell, streams, dataset)
    n_classes = len(dataset.class_names)
    shapes = ((HIDDEN_UNITS, inputs.shape[1] + 1), (n_classes, HIDDEN_UNITS + 1))
    rng = streams.generator("initialisation")
    initial = inversion.initial_weights(shapes, rng, inputs.shape[1])
    setting = {"inputs": inputs, "labels": labels, "n_classes": n_classes}
    setting |= {"initial": initial, "cell": cell}
    final, _ = _trained(shadows, **setting, sequence=streams.sequence("shadow models"))
    attack = image_inversion.train_reconstructor(
        final, inputs[shadows], streams.sequence("reconstructor")
    )
    final, seen = _trained(targets, **setting, sequence=streams.sequence("targets"), keep=True)
    accuracy = seen.pop("accuracy")
    found = {
        GRADIENTS: image_inversion.from_gradients(
            **seen, labels=labels[targets], shapes=shapes, clip_norm=CLIP_NORM
        ),
        MODEL: attack(final),
    }
    names = ("dataset", "epsilon", "theoretical_epsilon", "delta", "steps", "noise_multiplier")
    common = {name: cell[name] for name in (*names, "n_known", "n_shadow_models", "error_bound")}
    return [
        common
        | {
            "clip_norm": CLIP_NORM,
            "attack": name,
            "target": number,
            "label": int(labels[target]),
            "known_accuracy": float(accuracy[number]),
            "mean_squared_error": float(np.mean((images[number] - inputs[target]) ** 2.0)),
            "pixels": _to_text(images[number]) if number < SHOWN else None,
        }
        for name, images in found.items()
        for number, target in enumerate(targets)
    ]


def references(cell: dict, streams, dataset) -> list[dict]:
    """For each target, how far the training images are from it, and their mean."""
    _check_sizes(cell, dataset)
    targets = _pixels(dataset.test_images[: cell["n_targets"]])
    distances = _distances(dataset.train_images, targets)
    mean = dataset.train_images.mean(axis=0).ravel() / 255
    height, width, channels = dataset.train_images.shape[1:]
    return [
        {
            "dataset": cell["dataset"],
            "target": number,
            "label": int(dataset.test_labels[number]),
            "n_others": len(dataset.train_images),
            "nearest_image": float(distances[:, number].min()),
            "random_image": float(distances[:, number].mean()),
            "random_vectors": RANDOM_VECTORS,
            "mean_image": float(np.mean((mean - target) ** 2)),
            "height": height,
            "width": width,
            "channels": channels,
            "pixels": _to_text(target) if number < SHOWN else None,
        }
        for number, target in enumerate(targets)
    ]


def _points(cell: dict, streams, dataset) -> tuple[np.ndarray, ...]:
    """Known points, then the shadow models' images, both drawn; then the targets.

    Returns:
        (points, pixels) float32 images from 0 to 1, their labels, and the places of the shadow
        models' images and of the targets.
    """
    _check_sizes(cell, dataset)
    n_used = cell["n_known"] + cell["n_shadow_models"]
    used = streams.generator("images").permutation(len(dataset.train_images))[:n_used]
    first = slice(cell["n_targets"])
    images = np.concatenate([dataset.train_images[used], dataset.test_images[first]])
    labels = np.concatenate([dataset.train_labels[used], dataset.test_labels[first]])
    places = np.arange(len(images))
    return (
        images.reshape(len(images), -1) / np.float32(255),
        labels,
        places[cell["n_known"] : n_used],
        places[n_used:],
    )


def _trained(
    images: np.ndarray, *, inputs, labels, n_classes, initial, cell, sequence, keep: bool = False
) -> tuple[np.ndarray, dict]:
    """Train one model on the known points, the first ones, and each image.

    Returns:
        (models, d) final weights; and (models,) accuracies on the known points, with, if they are
        to be kept, (models, steps, d) weights before each step and residuals of the releases.
    """
    from lib import inversion

    final = np.empty((len(images), len(initial)), np.float32)
    step_size = np.float32(LEARNING_RATE / (cell["n_known"] + 1))
    seen = {}
    if keep:
        shape = (len(images), cell["steps"], len(initial))
        seen = {name: np.empty(shape, np.float32) for name in ("parameters", "residuals")}

    def note(release: inversion.Release) -> None:
        if keep:
            seen["parameters"][release.runs, release.step] = release.parameters
            seen["residuals"][release.runs, release.step] = release.gradient - release.ordinary
        if release.step == cell["steps"] - 1:
            final[release.runs] = release.parameters - step_size * release.gradient

    training = inversion.train(
        inputs=inputs,
        labels=labels,
        known=np.arange(cell["n_known"]),
        candidates=images[:, None],
        noise_multiplier=cell["noise_multiplier"],
        clip_norm=CLIP_NORM,
        sampling_rate=1.0,
        steps=cell["steps"],
        learning_rate=LEARNING_RATE,
        hidden_units=HIDDEN_UNITS,
        n_classes=n_classes,
        sequence=sequence,
        activation="tanh",
        basis="inputs",
        initial=initial,
        on_release=note,
    )
    return final, seen | {"accuracy": training.accuracy}


def _pixels(images: np.ndarray) -> np.ndarray:
    """(n, pixels) of images, from 0 to 1."""
    return images.reshape(len(images), -1) / 255


def _distances(images: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(images, targets) mean squared differences of pixels from 0 to 1."""
    pieces = []
    for piece in np.array_split(images, max(1, len(images) // 1000)):  # bounds the memory
        pixels = _pixels(piece)
        squares = (pixels**2).sum(axis=1)[:, None] + (targets**2).sum(axis=1)
        pieces.append((squares - 2 * pixels @ targets.T) / targets.shape[1])
    return np.maximum(np.concatenate(pieces), 0.0)


def _to_text(image: np.ndarray) -> str:
    """An image's pixels, 0 to 255, as hexadecimal digits: two a number, in the array's order."""
    return np.rint(image * 255).astype(np.uint8).tobytes().hex()


def _from_text(text: str, shape: tuple[int, int, int]) -> np.ndarray:
    """Pixels 0 to 255 of :func:`_to_text`; grey images as (height, width)."""
    image = np.frombuffer(bytes.fromhex(text), np.uint8).reshape(shape)
    return image[:, :, 0] if shape[2] == 1 else image


# --------------------------------------------------------------------- from parameters to cells


def reconstruction_cells(session) -> list[dict]:
    """One cell for each ε, with the noise that it takes."""
    return _cells(session.p, session.p.dataset)


def second_reconstruction_cells(session) -> list[dict]:
    """The same on the second dataset."""
    return _cells(session.p, session.p.second_dataset)


def reference_cells(session) -> list[dict]:
    """One cell for all targets."""
    return [_images(session.p, session.p.dataset)]


def second_reference_cells(session) -> list[dict]:
    """The same on the second dataset."""
    return [_images(session.p, session.p.second_dataset)]


def _cells(p, dataset: str) -> list[dict]:
    from lib import accounting

    mechanism = {"delta": p.delta, "steps": p.image_steps}
    cells = []
    for epsilon in p.image_epsilons:
        # Rounded up on purpose, as in lib.audited_run.settle_noise.
        sigma = audited_run.rounded_up(
            accounting.gaussian_noise_multiplier(epsilon=epsilon, **mechanism), 8
        )
        (theoretical,) = accounting.gaussian_epsilon_of_rows(
            noise_multiplier=[sigma], delta=[p.delta], steps=[p.image_steps]
        )
        theoretical = audited_run.rounded_up(theoretical, 6)
        bound = float(reconstruction.squared_error_bound(epsilon=theoretical))
        cells.append(
            _images(p, dataset)
            | mechanism
            | {
                "epsilon": epsilon,
                "noise_multiplier": sigma,
                "theoretical_epsilon": theoretical,
                "error_bound": bound,
            }
        )
    return cells


def _images(p, dataset: str) -> dict:
    return {
        "dataset": dataset,
        "n_targets": p.image_targets,
        "n_known": p.image_known,
        "n_shadow_models": p.image_shadow_models,
    }


def _check_sizes(cell: dict, dataset) -> None:
    """Refuse more images than there are.

    Raises:
        WorkbookError: naming the parameters.
    """
    n_train, n_test = len(dataset.train_images), len(dataset.test_images)
    if cell["n_targets"] > n_test:
        raise WorkbookError(
            f"image_targets = {cell['n_targets']}; allowed: at most {n_test}, the test images of "
            f"{dataset.name}"
        )
    if cell["n_known"] + cell["n_shadow_models"] > n_train:
        raise WorkbookError(
            f"image_known = {cell['n_known']} with image_shadow_models = "
            f"{cell['n_shadow_models']}; allowed: together at most {n_train}, the training images "
            f"of {dataset.name}"
        )


# ------------------------------------------------------------------------------------ tables

_PIXELS = Field(
    "pixels",
    "string",
    "",
    "for the targets of the figure, all pixels from 0 to 255, row by row, the channels of a pixel "
    "together, each as two hexadecimal digits",
    required=False,
)
_IMAGE = (
    Field("dataset", "string", "", "dataset"),
    Field(
        "target", "integer", "", "position of the unknown image among the test images", minimum=0
    ),
    Field("label", "integer", "", "its class", minimum=0),
)


def _error_field(name: str, meaning: str, recipe: dict | None = None) -> Field:
    unit = "squared range of a pixel"
    return Field(name, "number", unit, meaning, minimum=0, recipe=recipe)


_TABLES = {
    "image_reconstructions": Table(
        fields=(
            *_IMAGE,
            Field("attack", "string", "", "what the attacker sees: gradients or model"),
            Field("epsilon", "number", "nats", "ε that the noise was calibrated for", minimum=0),
            Field(
                "theoretical_epsilon",
                "number",
                "nats",
                "ε of the mechanism at δ",
                minimum=0,
                recipe={
                    "function": "accounting.gaussian_epsilon_of_rows",
                    "columns": {name: name for name in ("noise_multiplier", "delta", "steps")},
                },
            ),
            DELTA,
            Field("steps", "integer", "", "full-batch steps T", minimum=1),
            Field(
                "noise_multiplier", "number", "clip norms", "noise standard deviation σ", minimum=0
            ),
            Field("clip_norm", "number", "", "clip norm C", minimum=0),
            Field("n_known", "integer", "", "known training points beside the image", minimum=1),
            Field("n_shadow_models", "integer", "", "shadow models", minimum=1),
            Field(
                "known_accuracy",
                "number",
                "",
                "accuracy of the attacked model on the known points",
                minimum=0,
                maximum=1,
            ),
            _error_field("mean_squared_error", "of the reconstruction, over its pixels"),
            _error_field(
                "error_bound",
                "lower bound of Guo et al. 2022a for unbiased attacks",
                {
                    "function": "reconstruction.squared_error_bound",
                    "columns": {"epsilon": "theoretical_epsilon"},
                },
            ),
            _PIXELS,
        ),
        key=("dataset", "attack", "epsilon", "target"),
        meaning="one unknown image, reconstructed by one attack on one training",
    ),
    "image_references": Table(
        fields=(
            *_IMAGE,
            Field("n_others", "integer", "", "training images it is compared with", minimum=1),
            _error_field("nearest_image", "mean squared difference to the nearest of them"),
            _error_field("random_image", "mean squared difference to one of them, on average"),
            _error_field(
                "random_vectors", "expected squared difference of two uniform values from 0 to 1"
            ),
            _error_field("mean_image", "mean squared difference to the mean of them"),
            Field("height", "integer", "pixels", "of the image", minimum=1),
            Field("width", "integer", "pixels", "of the image", minimum=1),
            Field("channels", "integer", "", "of the image: 1 (grey) or 3", minimum=1),
            _PIXELS,
        ),
        key=("dataset", "target"),
        meaning="one unknown image and how far other images are from it",
    ),
}

SECOND = "_second"  # ends the name of a table of the second dataset
TABLES = _TABLES | {name + SECOND: table for name, table in _TABLES.items()}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean error by dataset, ε and attack, its 95 % interval, and what to hold it against."""
    rows = []
    for (dataset, epsilon, attack), found in _with_references(tables).groupby(
        ["dataset", "epsilon", "attack"], sort=False
    ):
        error, low, high = _mean_interval(found["mean_squared_error"])
        rows.append(
            {
                "dataset": dataset,
                "ε": epsilon,
                "attack": ATTACKS[attack],
                "error": error,
                "low": low,
                "high": high,
                "nearest image": found["nearest_image"].mean(),
                "mean image": found["mean_image"].mean(),
                "below nearest": int((found["mean_squared_error"] < found["nearest_image"]).sum()),
                "targets": len(found),
            }
        )
    return pd.DataFrame(rows)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The paper's observations on its Figure 1, each by intervals over targets."""
    rows = []
    for dataset, found in _with_references(tables).groupby("dataset", sort=False):
        epsilons = sorted(found["epsilon"].unique())
        if len(epsilons) > 1:
            rows += [_trend_verdict(dataset, attack, found) for attack in ATTACKS]
            rows.append(_attacks_verdict(dataset, found, epsilons[0], "none given"))
        rows += [
            _attacks_verdict(dataset, found, epsilons[-1], "smaller by orders of magnitude"),
            _first_verdict(dataset, found, "mean_image", "the mean image"),
            _first_verdict(dataset, found, "nearest_image", "the nearest other one"),
            _bound_verdict(dataset, found),
        ]
        if epsilons[0] <= REASONABLE:
            at = max(epsilon for epsilon in epsilons if epsilon <= REASONABLE)
            rows.append(_reasonable_verdict(dataset, found[found["epsilon"] == at], at))
    return rows


def _trend_verdict(dataset: str, attack: str, found: pd.DataFrame) -> dict:
    """How the error changes with ε: the slope between logarithms, target by target."""
    errors = found[found["attack"] == attack].pivot(
        index="target", columns="epsilon", values="mean_squared_error"
    )
    x = np.log10(errors.columns.to_numpy(float))
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    interval = _mean_interval(np.log10(errors.to_numpy()) @ weights, least=-np.inf)
    return verdict_row(
        f"error of images {ATTACKS[attack]} as ε grows, {dataset}",
        "falls",
        interval,
        _agreement(interval, "falls", 0.0),
        f"decades of error for each decade of ε from {10 ** x.min():g} to {10 ** x.max():g}: slope "
        f"by least squares, mean of {len(errors)} targets",
    )


def _attacks_verdict(dataset: str, found: pd.DataFrame, epsilon: float, paper: str) -> dict:
    """Error from the gradients over that from the model, on the same trainings."""
    at = found[found["epsilon"] == epsilon].pivot(
        index="target", columns="attack", values="mean_squared_error"
    )
    interval = ratio_interval(at[GRADIENTS], at[MODEL])
    _, low, high = interval
    seen = "smaller" if high < 1 else "larger" if low > 1 else "not distinguishable"
    verdict = seen
    if paper != "none given" and seen != "not distinguishable":
        if high <= 0.1:
            verdict = "agrees"
        else:
            by = "; not surely by ten times" if seen == "smaller" else ""
            verdict = f"differs: {seen}{by}"
    return verdict_row(
        f"error from the gradients over error from the model, ε = {epsilon:g}, {dataset}",
        paper,
        interval,
        verdict,
        f"geometric mean of {len(at)} targets' ratios",
    )


def _first_verdict(dataset: str, found: pd.DataFrame, reference: str, what: str) -> dict:
    """From which ε on some attack is better than a threshold.

    The smallest of many is picked after looking at all, so each gets its share of the error.
    """
    points = list(found.groupby(["epsilon", "attack"], sort=True))
    confidence = 1 - 0.05 / len(points)
    better = [
        point
        for point, at in points
        if ratio_interval(at["mean_squared_error"], at[reference], confidence)[2] < 1
    ]
    epsilons = sorted(found["epsilon"].unique())
    first = better[0][0] if better else None
    paper = None if reference == "mean_image" else PAPER_RANGE[dataset]
    named = " and ".join(attack for epsilon, attack in better if epsilon == first)
    return verdict_row(
        f"smallest ε at which an image is closer than {what}, {dataset}",
        f"{paper[0]:g} to {paper[1]:g}" if paper else "none given",
        (epsilons[-1] if first is None else first, None, None),
        _placed(first, epsilons, paper) if paper else f"by {named}" if named else "never",
        f"of {', '.join(f'{epsilon:g}' for epsilon in epsilons)}, where the interval of the mean "
        f"ratio of errors, at {confidence:.2%} for {len(points)} tries, is below 1"
        + (
            f"; by {named}; the paper says where its attack starts to work"
            if paper and named
            else ""
        ),
    )


def _placed(first: float | None, epsilons: list[float], paper: tuple[float, float]) -> str:
    """Whether the change, after the ε before ``first``, can lie in the paper's range."""
    low, high = paper
    if first is None:
        return f"differs: not up to ε = {epsilons[-1]:g}" if epsilons[-1] >= high else "not tried"
    before = max((epsilon for epsilon in epsilons if epsilon < first), default=0.0)
    if before < high and first > low:
        return "agrees"
    return f"differs: from a {'smaller' if first <= low else 'larger'} ε on"


def _reasonable_verdict(dataset: str, found: pd.DataFrame, epsilon: float) -> dict:
    """Whether a model at an ε that protects tells more than that the target is an image."""
    at = found[found["attack"] == MODEL]
    interval = ratio_interval(at["mean_squared_error"], at["mean_image"])
    _, low, high = interval
    return verdict_row(
        f"error from the model over that of the mean image, ε = {epsilon:g}, {dataset}",
        "nothing is reconstructed",
        interval,
        f"differs: smaller by {1 - interval[0]:.0%}"
        if high < 1
        else "agrees"
        if low >= 1 - ALIKE
        else "not distinguishable",
        f"geometric mean of {len(at)} targets' ratios; surely not smaller by {ALIKE:.0%} agrees",
    )


def _bound_verdict(dataset: str, found: pd.DataFrame) -> dict:
    """Whether any mean error is below the lower bound for unbiased attacks."""
    below = []
    by_point = found.groupby(["epsilon", "attack"], sort=True)
    for (epsilon, attack), at in by_point:
        if _mean_interval(at["mean_squared_error"])[2] < at["error_bound"].iloc[0]:
            below.append(f"{attack} at ε = {epsilon:g}")
    return verdict_row(
        f"mean errors below the lower bound of Guo et al. 2022a, {dataset}",
        "none, and far above",
        (float(len(below)), None, None),
        f"differs: {', '.join(below)}" if below else "agrees",
        f"of {by_point.ngroups} means, by intervals over targets; the bound is for unbiased "
        "attacks, and whoever knows the range of pixels or the mean image is biased",
    )


def ratio_interval(first, second, confidence: float = 0.95) -> tuple[float, float, float]:
    """Geometric mean of paired ratios, with its interval over the pairs."""
    logs = np.log(np.asarray(first)) - np.log(np.asarray(second))
    middle, low, high = np.exp(intervals.mean_interval(logs, logs, confidence=confidence))
    return float(middle), float(low), float(high)


def _agreement(interval: tuple[float, float, float], paper: str, null: float) -> str:
    _, low, high = interval
    seen = "falls" if high < null else "grows" if low > null else "not distinguishable"
    return (
        "agrees" if seen == paper else seen if seen == "not distinguishable" else f"differs: {seen}"
    )


def _mean_interval(values, *, least: float = 0.0) -> tuple[float, float, float]:
    """Mean over targets, each with a training of its own."""
    middle, low, high = intervals.mean_interval(values, values)
    return middle, max(low, least), high


def _both(tables: dict[str, pd.DataFrame], name: str) -> pd.DataFrame:
    """A table of the first dataset and of the second, if that is another one."""
    both = pd.concat([tables[name], tables[name + SECOND]], ignore_index=True)
    return both.drop_duplicates(list(TABLES[name].key), ignore_index=True)


def _with_references(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Reconstructions, each with the distances of its target."""
    names = ["dataset", "target", "nearest_image", "random_image", "mean_image"]
    return _both(tables, "image_reconstructions").merge(
        _both(tables, "image_references")[names], on=["dataset", "target"], validate="m:1"
    )


# ----------------------------------------------------------------------------------- figures


def draw_errors(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Mean squared error over ε of either attack, between the thresholds and the lower bound."""
    found, others = (_both(tables, name) for name in _TABLES)
    datasets = list(found["dataset"].unique())
    bottom = found.groupby(["dataset", "attack", "epsilon"])["mean_squared_error"].mean().min() / 2
    figure, axes = figures.new_figure(1, len(datasets), height=3.6, share_y=True)
    for ax, dataset in zip(np.atleast_1d(axes), datasets, strict=True):
        here = found[found["dataset"] == dataset]
        for i, (attack, label) in enumerate(ATTACKS.items()):
            errors = here[here["attack"] == attack].groupby("epsilon")["mean_squared_error"]
            middle, low, high = np.transpose([_mean_interval(each) for _, each in errors])
            # No interval may reach 0 on a logarithmic axis.
            ends = [middle - np.maximum(low, middle / 100), high - middle]
            ax.errorbar(
                list(errors.groups), middle, yerr=ends, capsize=2, label=label, **figures.series(i)
            )
        _draw_thresholds(ax, others[others["dataset"] == dataset])
        least, most = here["epsilon"].min(), here["epsilon"].max()
        at = np.geomspace(least, most, 400)
        bound = reconstruction.squared_error_bound(epsilon=at)
        shown = bound > bottom / 10
        ax.plot(
            at[shown],
            bound[shown],
            color=figures.BLACK,
            linewidth=1,
            linestyle=(0, (5, 1)),
            label="lower bound, unbiased attacks",
        )
        ax.axvspan(
            *np.clip(PAPER_RANGE[dataset], least, most),
            color="#eeeeee",
            zorder=0,
            label="the paper's attack begins to work",
        )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(bottom, 1)
        ax.set_title(dataset)
        ax.set_xlabel("theoretical ε (nats)")
    np.atleast_1d(axes)[0].set_ylabel("mean squared error of a pixel")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_thresholds(ax, references: pd.DataFrame) -> None:
    levels = {
        "two random vectors (paper)": (references["random_vectors"].mean(), (0, (5, 1, 1, 1))),
        "two random images": (references["random_image"].mean(), ":"),
        "the mean image": (references["mean_image"].mean(), "-."),
        "the nearest image": (references["nearest_image"].mean(), "--"),
    }
    for label, (level, style) in levels.items():
        ax.axhline(level, color="grey", linewidth=1, linestyle=style, label=label)


def draw_panel(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Some unknown images and what either attack makes of them, from little noise to much."""
    found, others = (_both(tables, name).dropna(subset="pixels") for name in _TABLES)
    epsilons = sorted(found["epsilon"].unique(), reverse=True)
    n_rows, n_columns = len(others) * len(ATTACKS), 1 + len(epsilons)
    size = min(figures.WIDTH / (n_columns + 0.5), 1.0)
    figure, axes = figures.new_figure(n_rows, n_columns, height=size * n_rows + 0.3)
    axes = axes.reshape(n_rows, n_columns)
    for ax in axes.flat:
        ax.set_axis_off()
    rows = iter(axes)
    for original in others.itertuples():
        shape = original.height, original.width, original.channels
        of_target = found[
            (found["dataset"] == original.dataset) & (found["target"] == original.target)
        ]
        for attack in ATTACKS:
            row = next(rows)
            images = of_target[of_target["attack"] == attack].set_index("epsilon")["pixels"]
            _draw_image(row[0], original.pixels, shape)
            for ax, epsilon in zip(row[1:], epsilons, strict=True):
                _draw_image(ax, images[epsilon], shape)
            row[0].text(
                -0.08,
                0.5,
                attack,
                rotation=90,
                va="center",
                ha="right",
                transform=row[0].transAxes,
                fontsize=7,
            )
    for ax, title in zip(
        axes[0], ["original", *(f"ε = {epsilon:,g}" for epsilon in epsilons)], strict=True
    ):
        ax.set_title(title, fontsize=8, loc="center")
    return figure


def _draw_image(ax, text: str, shape: tuple[int, int, int]) -> None:
    ax.imshow(_from_text(text, shape), cmap="gray", vmin=0, vmax=255, interpolation="none")


FIGURES = {
    "image_errors": Figure(
        draw_errors,
        tables=tuple(TABLES),
        title="Error of reconstructed images over ε",
        alternative_text=(
            "Mean squared error of images reconstructed from the gradients and from the final "
            "model over ε, on logarithmic axes, with levels for the nearest other image, the mean "
            "image and two random images, and the lower bound for unbiased attacks."
        ),
    ),
    "image_panel": Figure(
        draw_panel,
        tables=tuple(TABLES),
        title="Reconstructed images over ε",
        alternative_text=(
            "Rows of small pictures: an unknown training image at the left, then what either "
            "attack makes of it, from the largest ε to the smallest."
        ),
    ),
}
