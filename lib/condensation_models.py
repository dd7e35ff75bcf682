"""Study 03, the models: training sets drawn, put through every scheme, and asked about all of U.

Every scheme gets the same training sets and network (arXiv:2209.14987, the first three of its five
steps). Cells train one network each and keep what it says about every example of U; all that is
said about membership is made from these tables.
"""

from __future__ import annotations

import base64

import numpy as np
import pandas as pd

from lib import audited_run, membership
from lib import condensation_schemes as schemes
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.tables import Field, Table, recipe

# S and as many others, of T or not: whom the wrong protocol asks about.
SAMPLES = (membership.TRAINING_SET, membership.OUTSIDE)

TUNING_SETS = 4  # training sets of different pairs, on whose subsets settings are tried

PARAMETERS = {
    "n_universe": Parameter("int", "examples of the universe U", minimum=1),
    "n_pairs": Parameter("int", "pairs of complementary training sets", minimum=4),
    "n_test": Parameter("int", "test images", minimum=1),
    "width": Parameter("int", "channels of each block of the ConvNet", minimum=1),
    "epochs": Parameter("int", "epochs on a subset or condensed images, all in a batch", minimum=1),
    "learning_rate": Parameter("float", "learning rate of training without privacy", above=0),
    "tuning_epochs": Parameter("ints", "epochs tried on the subset", minimum=1),
    "tuning_learning_rates": Parameter("floats", "learning rates tried on the subset", above=0),
    "full_epochs": Parameter("int", "epochs without defence", minimum=1),
    "full_batch_size": Parameter("int", "batch size without defence", minimum=1),
    "n_iterations": Parameter("int", "iterations of distribution matching", minimum=1),
    "real_batch": Parameter("int", "real images a class in each of them", minimum=1),
    "image_learning_rate": Parameter(
        "float", "learning rate of the condensed images at width 128 and pixel deviation 1", above=0
    ),
    "dp_epsilons": Parameter("floats", "theoretical ε of DP-SGD", above=0, maximum=100),
    "little_noise_multiplier": Parameter(
        "float", "noise multiplier of DP-SGD with little noise", minimum=0.2
    ),
    "delta": Parameter("float", "δ of every privacy claim", minimum=1e-14, below=1),
    "significance": Parameter(
        "float", "probability that a bound is above the truth", above=0, maximum=0.5
    ),
    "dp_sampling_rate": Parameter("float", "sampling rate q of DP-SGD", above=0, maximum=1),
    "dp_steps": Parameter("int", "steps T of DP-SGD", minimum=1),
    "clip_norm": Parameter("float", "clip norm C of DP-SGD", above=0),
    "dp_learning_rate": Parameter("float", "learning rate of DP-SGD", above=0),
}


def check_images(session) -> None:
    """Refuse a universe or test images that the dataset has too few images for.

    Raises:
        WorkbookError: naming the parameter.
    """
    p = session.p
    schemes.universe(session.dataset, p.n_universe)
    if p.n_test > len(session.dataset.test_images):
        raise WorkbookError(
            f"n_test = {p.n_test}; allowed: at most {len(session.dataset.test_images)}, the test "
            f"images of {p.dataset}"
        )


def check_names(p) -> None:
    """Refuse private schemes that would have one name.

    Raises:
        WorkbookError: naming the parameter.
    """
    for name in ("dp_epsilons", "worst_epsilons"):
        values = getattr(p, name)
        if len({schemes.private_name(value) for value in values}) < len(values):
            raise WorkbookError(f"{name} = {values}; allowed: numbers that differ in six digits")


RULES = (check_names,)
DATA_RULES = (check_images,)


# ------------------------------------------------------------------------------------- cells


def mechanism(cell: dict, streams, dataset: None) -> list[dict]:
    """Settle one private scheme's noise, and what it allows, before any run."""
    from lib import accounting

    names = ("delta", "sampling_rate", "steps")
    if cell["epsilon"] is None:
        sigma = cell["noise_multiplier"]
        epsilon = accounting.epsilon(noise_multiplier=sigma, **{n: cell[n] for n in names})
        noise = {"noise_multiplier": sigma}
        noise["theoretical_epsilon"] = audited_run.rounded_up(epsilon, 6)
    else:
        noise = audited_run.settle_noise(cell)
    cap = accounting.delta(
        noise_multiplier=noise["noise_multiplier"],
        epsilon=0.0,
        sampling_rate=cell["sampling_rate"],
        steps=cell["steps"],
    )
    return [cell | noise | {"delta_at_zero": cap}]


def training_set(cell: dict, streams, dataset) -> list[dict]:
    """Draw T, S and the wrong protocol's samples of one model; the same for every scheme."""
    rows = schemes.universe(dataset, cell["n_universe"])
    drawn = schemes.draw(cell, streams.seed, dataset.train_labels[rows])
    return [
        {name: cell[name] for name in ("pair", "side", "n_universe")}
        | {"n_members": int(drawn["members"].sum()), "n_subset": int(drawn["subset"].sum())}
        | {name: pack(values) for name, values in drawn.items()}
    ]


def example(cell: dict, streams, dataset) -> list[dict]:
    """The examples of U: where they are from, and their classes."""
    rows = schemes.universe(dataset, cell["n_universe"])
    labels = dataset.train_labels[rows]
    return [
        {"example": i, "image": int(row), "label": int(label)}
        for i, (row, label) in enumerate(zip(rows, labels, strict=True))
    ]


def trained(cell: dict, streams, dataset) -> list[dict]:
    """Put one training set through one scheme; keep what the network says about all of U."""
    from lib import training

    rows = schemes.universe(dataset, cell["n_universe"])
    inputs, labels = schemes.tensors(dataset.train_images[rows], dataset.train_labels[rows])
    drawn = schemes.draw(cell, streams.seed, labels.numpy())
    network = _network(cell, streams, dataset, inputs, labels, drawn)
    outputs = training.outputs(network, inputs)
    names = ("scheme", "pair", "side", "width", "n_per_class", "n_iterations")
    return [
        {name: cell.get(name) for name in names}
        | schemes.described(dataset, augmented="epochs" in cell)
        | schemes.tested(network, dataset, cell["n_test"])
        | {"logits": pack_numbers(membership.label_logits(outputs, labels.numpy()))}
    ]


def setting(cell: dict, streams, dataset: None) -> list[dict]:
    """How subset and condensed images are trained on."""
    return [cell]


def tuned(cell: dict, streams, dataset) -> list[dict]:
    """Train on one random subset with a setting to try; the score is on images of U∖T.

    No test image has a part in the choice, and condensation none either.
    """
    rows = schemes.universe(dataset, cell["n_universe"])
    inputs, labels = schemes.tensors(dataset.train_images[rows], dataset.train_labels[rows])
    drawn = schemes.draw(cell, streams.seed, labels.numpy())
    subset = np.flatnonzero(drawn["subset"])
    others = np.flatnonzero(~drawn["members"])[: cell["n_test"]]
    network = schemes.fit(
        cell,
        inputs[subset],
        labels[subset],
        schemes.common_streams(cell, streams.seed),
        dataset,
    )
    right = schemes.counted_right(network, inputs[others], labels[others])
    names = ("epochs", "learning_rate", "pair", "side", "width")
    return [
        {name: cell[name] for name in names}
        | {"n_images": right["n_test"], "n_correct": right["n_test_correct"]}
        | {"accuracy": right["test_accuracy"]}
    ]


def _network(cell: dict, streams, dataset, inputs, labels, drawn: dict):
    """The scheme's network, trained on T through it."""
    common = schemes.common_streams(cell, streams.seed)
    members, subset = drawn["members"], drawn["subset"]
    if cell["scheme"] == schemes.NO_DEFENCE:
        return schemes.fit(cell, inputs[members], labels[members], common, dataset)
    if cell["scheme"] == schemes.SUBSET:
        return schemes.fit(cell, inputs[subset], labels[subset], common, dataset)
    if cell["scheme"] in schemes.CONDENSED:
        initial = None
        if cell["scheme"] == schemes.DM_REAL:
            # Class by class, in the order of U.
            chosen = np.flatnonzero(subset)
            initial = inputs[chosen[np.argsort(labels.numpy()[chosen], kind="stable")]]
        condensed = schemes.condense(
            cell,
            inputs[members],
            labels[members],
            streams.sequence("condensation"),
            dataset,
            initial=initial,
        )
        return schemes.fit(cell, *condensed, common, dataset)
    network = schemes.fresh_network(cell, dataset, common.sequence("initialisation"))
    return schemes.fit_privately(cell, inputs[members], labels[members], streams, network=network)


# ---------------------------------------------------------- numbers of all examples in one text


def pack(flags: np.ndarray) -> str:
    """Booleans as text: eight a byte, in base 85."""
    return base64.b85encode(np.packbits(flags).tobytes()).decode()


def unpack(text: str, n: int) -> np.ndarray:
    """The (n,) booleans of :func:`pack`."""
    return np.unpackbits(np.frombuffer(base64.b85decode(text), np.uint8))[:n].astype(bool)


def pack_numbers(values: np.ndarray) -> str:
    """Numbers as text: half precision (three digits, far below a logit's scatter), in base 85.

    Raises:
        WorkbookError: for a number that is not finite or does not fit.
    """
    with np.errstate(over="ignore"):
        halves = np.asarray(values, dtype="<f2")
    if not np.isfinite(halves).all():
        raise WorkbookError(
            "a network's logits are not finite or beyond 65,504: training diverged; lower "
            "learning_rate or dp_learning_rate"
        )
    return base64.b85encode(halves.tobytes()).decode()


def unpack_numbers(text: str) -> np.ndarray:
    """The float64 numbers of :func:`pack_numbers`."""
    return np.frombuffer(base64.b85decode(text), dtype="<f2").astype(float)


# --------------------------------------------------------------------- from parameters to cells


def mechanism_cells(session) -> list[dict]:
    """One cell for each private scheme."""
    p = session.p
    common = {"delta": p.delta, "sampling_rate": p.dp_sampling_rate, "steps": p.dp_steps}
    calibrated = [
        {"scheme": schemes.private_name(epsilon), "epsilon": epsilon} for epsilon in p.dp_epsilons
    ]
    little = {"scheme": schemes.LITTLE_NOISE, "epsilon": None}
    little["noise_multiplier"] = p.little_noise_multiplier
    return [common | each for each in (*calibrated, little)]


def training_set_cells(session) -> list[dict]:
    """One cell for each model of a scheme."""
    p = session.p
    return [
        {"n_universe": p.n_universe, "pair": pair, "side": side}
        for pair in range(p.n_pairs)
        for side in range(2)
    ]


def example_cells(session) -> list[dict]:
    """One cell."""
    return [{"n_universe": session.p.n_universe}]


def trained_cells(session) -> list[dict]:
    """One cell for each scheme and training set."""
    return [
        scheme | which | {"n_test": session.p.n_test, "device": session.p.device}
        for scheme in scheme_cells(session)
        for which in training_set_cells(session)
    ]


def setting_cells(session) -> list[dict]:
    """One cell."""
    return [{"epochs": session.p.epochs, "learning_rate": session.p.learning_rate}]


def tuning_cells(session) -> list[dict]:
    """Every setting to try and the one in use, on the first sets of the first pairs."""
    p = session.p
    names = ("n_universe", "n_test", "width", "device")
    return [
        {name: getattr(p, name) for name in names}
        | {"epochs": epochs, "learning_rate": rate, "pair": pair, "side": 0}
        for epochs in sorted({*p.tuning_epochs, p.epochs})
        for rate in sorted({*p.tuning_learning_rates, p.learning_rate})
        for pair in range(TUNING_SETS)
    ]


def scheme_cells(session) -> list[dict]:
    """What distinguishes the schemes, in the order of the table."""
    p = session.p
    n_per_class = round(p.n_universe * schemes.SUBSET_SHARE / len(session.dataset.class_names))
    common = {"width": p.width}
    plain = common | {"learning_rate": p.learning_rate}
    few = plain | {"epochs": p.epochs, "n_per_class": n_per_class}
    matching = few | {
        name: getattr(p, name) for name in ("n_iterations", "real_batch", "image_learning_rate")
    }
    private = common | {
        "clip_norm": p.clip_norm,
        "private_learning_rate": p.dp_learning_rate,
        # Half of U is in T on average, whatever the coins say.
        "expected_batch_size": p.dp_sampling_rate * p.n_universe / 2,
    }
    names = ("scheme", "sampling_rate", "steps", "noise_multiplier")
    mechanisms = session.tables["mechanisms"][list(names)].to_dict("records")
    return [
        plain
        | {"scheme": schemes.NO_DEFENCE}
        | {"epochs": p.full_epochs, "batch_size": p.full_batch_size},
        few | {"scheme": schemes.SUBSET},
        matching | {"scheme": schemes.DM_REAL},
        matching | {"scheme": schemes.DM_NOISE},
        *(private | row for row in mechanisms),
    ]


# ------------------------------------------------------------------------------------ tables

SCHEME = Field("scheme", "string", "", "how a network is made from T")
PAIR = Field("pair", "integer", "", "pair of complementary training sets", minimum=0)
SIDE = Field("side", "integer", "", "0: T by the coins; 1: its complement", minimum=0, maximum=1)


NETWORK_FIELDS = (
    Field("network", "string", "", "network and its norm"),
    Field("augmentation", "string", "", "operations in training and condensation"),
)
TESTED_FIELDS = (
    Field("n_test", "integer", "", "test images", minimum=1),
    Field("n_test_correct", "integer", "", "of these, classified right", minimum=0),
    Field(
        "test_accuracy",
        "number",
        "",
        "their share",
        minimum=0,
        maximum=1,
        recipe=recipe("intervals.rate", n_successes="n_test_correct", n_trials="n_test"),
    ),
)
SETTING_FIELDS = (
    Field("epochs", "integer", "", "epochs, all images in each step", minimum=1),
    Field("learning_rate", "number", "", "learning rate at the start", minimum=0),
)


def _packed(name: str, meaning: str, *, kind: str = "one bit") -> Field:
    return Field(name, "string", "", f"{meaning}; {kind} an example of U, in base 85")


TABLES = {
    "mechanisms": Table(
        fields=(
            SCHEME,
            Field("epsilon", "number", "nats", "ε calibrated for", required=False, minimum=0),
            Field(
                "theoretical_epsilon",
                "number",
                "nats",
                "ε of the mechanism at δ by privacy-loss distributions, from above",
                minimum=0,
                recipe=recipe(
                    "accounting.epsilon_of_rows",
                    *("noise_multiplier", "delta", "sampling_rate", "steps"),
                ),
            ),
            Field("delta", "number", "", "δ of the claim", minimum=0, maximum=1),
            Field("sampling_rate", "number", "", "Poisson sampling rate q", minimum=0, maximum=1),
            Field("steps", "integer", "", "steps T", minimum=1),
            Field("noise_multiplier", "number", "clip norms", "noise σ", minimum=0),
            Field(
                "delta_at_zero",
                "number",
                "",
                "δ at ε = 0: the largest advantage there can be",
                minimum=0,
                maximum=1,
                recipe=recipe(
                    "accounting.delta_at_zero_of_rows",
                    *("noise_multiplier", "sampling_rate", "steps"),
                ),
            ),
        ),
        key=("scheme",),
        meaning="one private scheme, settled before any run",
    ),
    "examples": Table(
        fields=(
            Field("example", "integer", "", "position in U", minimum=0),
            Field("image", "integer", "", "position among the training images", minimum=0),
            Field("label", "integer", "", "class", minimum=0),
        ),
        key=("example",),
        meaning="one example of the universe U",
    ),
    "training_sets": Table(
        fields=(
            PAIR,
            SIDE,
            Field("n_universe", "integer", "", "examples of U", minimum=1),
            Field("n_members", "integer", "", "examples of T", minimum=1),
            Field("n_subset", "integer", "", "examples of S", minimum=1),
            _packed("members", "which are in T, by a fair coin each"),
            _packed("subset", "which are in S, a random subset of T"),
            _packed(membership.TRAINING_SET, "S, and as many of T∖S of the same classes"),
            _packed(membership.OUTSIDE, "S, and as many of U∖T of the same classes"),
        ),
        key=("pair", "side"),
        meaning="one training set, the same for every scheme",
    ),
    "setting": Table(
        fields=SETTING_FIELDS,
        key=("epochs",),
        meaning="how subset and condensed images are trained on",
    ),
    "tuning": Table(
        fields=(
            *SETTING_FIELDS,
            PAIR,
            SIDE,
            Field("width", "integer", "", "channels of each block", minimum=1),
            Field("n_images", "integer", "", "images of U∖T asked about", minimum=1),
            Field("n_correct", "integer", "", "of these, classified right", minimum=0),
            Field(
                "accuracy",
                "number",
                "",
                "their share",
                minimum=0,
                maximum=1,
                recipe=recipe("intervals.rate", n_successes="n_correct", n_trials="n_images"),
            ),
        ),
        key=("epochs", "learning_rate", "pair", "side"),
        meaning="one network trained on a random subset with one setting",
    ),
    "models": Table(
        fields=(
            SCHEME,
            PAIR,
            SIDE,
            *NETWORK_FIELDS,
            Field("width", "integer", "", "channels of each block", minimum=1),
            Field(
                "n_per_class",
                "integer",
                "",
                "images of each class trained on; none for all of T",
                required=False,
                minimum=1,
            ),
            Field(
                "n_iterations",
                "integer",
                "",
                "iterations of distribution matching",
                required=False,
                minimum=0,
            ),
            *TESTED_FIELDS,
            _packed("logits", "log p/(1 − p) of the true class", kind="a little-endian half float"),
        ),
        key=("scheme", "pair", "side"),
        meaning="one network, and what it says about every example of U",
    ),
}


# ------------------------------------------------------------------------ from tables to arrays


def logits_of(tables: dict[str, pd.DataFrame], scheme: str) -> tuple[np.ndarray, dict]:
    """A scheme's logits, and the training sets they belong to.

    Returns:
        (models, examples) logits in the order of the pairs; and by name (models, examples)
        booleans ``members``, ``subset`` and the two samples of the wrong protocol.
    """
    order = ["pair", "side"]
    own = tables["models"][tables["models"]["scheme"] == scheme].sort_values(order)
    sets = tables["training_sets"].sort_values(order).head(len(own))
    if not (own[order].to_numpy() == sets[order].to_numpy()).all():
        raise WorkbookError(f"models of {scheme!r} and training sets are not the same pairs")
    logits = np.stack([unpack_numbers(text) for text in own["logits"]])
    names = ("members", "subset", *SAMPLES)
    return logits, {
        name: np.stack([unpack(text, logits.shape[1]) for text in sets[name]]) for name in names
    }
