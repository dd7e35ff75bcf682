"""Study 02, the attacks: who was trained on, named from a shortlist, next to what is possible.

Hayes, Mahloujifar, Balle, arXiv:2302.07225. One of n candidates was trained on; the adversary sees
every privatised gradient and knows everything else. Three attacks see the same runs: the paper's
sum of inner products, its improvement for mini-batches (the top qT of them), and the posterior,
which no attack with this view beats. Each point is tried on *idealised* gradients, orthogonal and
as long as the clip allows, and on a network's, so that what an attack loses and what the gradients
lose are told apart.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import audited_run, data, figures, intervals
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.reconstruction_bounds import PAPER_BOUNDS, PRIOR_SIZE, bound_field
from lib.results import Figure
from lib.study_tables import MECHANISM_FIELDS, verdict_row
from lib.tables import Field, Table

ATTACKS = ("sum", "top", "map")
LABELS = {"sum": "sum over steps", "top": "top qT steps", "map": "posterior (MAP)"}
RARE = 0.05  # sampling rates up to here get more runs, as attacks differ little there
CLOSE = 0.02  # how near the idealised curve a network's success should come

PARAMETERS = {
    "epsilons": Parameter("floats", "theoretical ε of the attacks", above=0, maximum=100),
    "sampling_rates": Parameter("floats", "sampling rates q of the attacks", above=0, maximum=1),
    "prior_size": Parameter("int", "candidates n of the attacks", minimum=2),
    "n_train": Parameter("int", "training points, the target among them", minimum=2),
    "hidden_units": Parameter("int", "hidden units of the network", minimum=1),
    "learning_rate": Parameter("float", "learning rate of SGD", above=0),
    "clip_norm": Parameter("float", "clip norm C", above=0),
    "n_runs": Parameter("int", "training runs for each point", minimum=20),
    "n_rare_runs": Parameter("int", f"training runs where q ≤ {RARE:g}", minimum=20),
    "second_dataset": Parameter("text", "another dataset to attack on", choices=data.NAMES),
    "second_sampling_rates": Parameter("floats", "sampling rates there", above=0, maximum=1),
    "second_n_runs": Parameter("int", "training runs for each point there", minimum=20),
    "n_idealised_runs": Parameter("int", "idealised runs for each point", minimum=20),
    "idealised_sampling_rates": Parameter(
        "floats", "sampling rates of the idealised attacks", above=0, maximum=1
    ),
    "prior_sizes": Parameter("ints", "candidates n to try, idealised", minimum=2),
    "exposed_sets": Parameter("int", "candidate sets of each kind", minimum=1),
    "exposed_runs": Parameter(
        "int", "runs for each set, half to choose and half to count", minimum=4
    ),
}


# ------------------------------------------------------------------------------------ cells


def mechanism(cell: dict, streams, dataset: None) -> list[dict]:
    """The noise for a cell's (ε, δ, q, T), settled before any run."""
    return [cell | audited_run.settle_noise(cell)]


def idealised(cell: dict, streams, dataset: None) -> list[dict]:
    """Attack runs whose gradients are orthogonal and of norm C."""
    from lib import inversion

    outcomes = inversion.idealised(
        n_runs=cell["n_runs"],
        prior_size=cell["prior_size"],
        steps=cell["steps"],
        noise_multiplier=cell["noise_multiplier"],
        sampling_rate=cell["sampling_rate"],
        sequence=streams.sequence("runs"),
    )
    return _attack_rows(cell, outcomes, {"squared_norm": 1.0, "cosine": 0.0, "accuracy": None})


def network(cell: dict, streams, dataset) -> list[dict]:
    """Train networks by DP-SGD, each on a target of its own, and attack every run."""
    from lib import inversion

    known, rest = _known_and_rest(cell, streams, dataset)
    candidates = inversion.draw_candidates(
        n_runs=cell["n_runs"],
        prior_size=cell["prior_size"],
        pool=rest,
        rng=streams.generator("candidates"),
    )
    used, places = np.unique(candidates, return_inverse=True)
    training = _train(
        cell,
        streams,
        dataset,
        known,
        (dataset.train_images[used], dataset.train_labels[used]),
        places.reshape(candidates.shape),
    )
    outcomes = inversion.attack(
        training.view,
        noise_multiplier=cell["noise_multiplier"],
        sampling_rate=cell["sampling_rate"],
        clip_norm=cell["clip_norm"],
        rng=streams.generator("ties"),
    )
    return _attack_rows(cell, outcomes, _geometry(training, cell["clip_norm"]))


def exposed(cell: dict, streams, dataset) -> list[dict]:
    """Attack the same candidate sets again and again; one row a set, its runs in two halves."""
    from lib import inversion

    n_sets, n, n_runs = cell["n_sets"], cell["prior_size"], cell["n_runs"]
    known, rest = _known_and_rest(cell, streams, dataset)
    points = candidate_sets(cell["kind"], dataset, rest, n_sets, n, streams.generator("candidates"))
    sets = np.arange(n_sets * n).reshape(n_sets, n)
    training = _train(cell, streams, dataset, known, points, np.repeat(sets, n_runs, axis=0))
    outcome = inversion.attack(
        training.view,
        noise_multiplier=cell["noise_multiplier"],
        sampling_rate=cell["sampling_rate"],
        clip_norm=cell["clip_norm"],
        rng=streams.generator("ties"),
    )["map"]
    correct, masses = (each.reshape(n_sets, n_runs) for each in (outcome.correct, outcome.masses))
    half = n_runs // 2
    common = audited_run.mechanism_row(cell) | {"kind": cell["kind"], "prior_size": n}
    common |= {"bound": _bound(cell)}
    return [
        common
        | {
            "candidate_set": i,
            "n_choice": half,
            "n_correct_choice": int(correct[i, :half].sum()),
            "mean_mass_choice": float(masses[i, :half].mean()),
        }
        | _rate_columns(n_runs - half, int(correct[i, half:].sum()))
        | _mass_columns(masses[i, half:])
        for i in range(n_sets)
    ]


def candidate_sets(
    kind: str, dataset, rest: np.ndarray, n_sets: int, n: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Sets of n candidates, one after the other.

    Args:
        kind: of :data:`KINDS`.
        dataset: where images come from.
        rest: indices of training images that may be candidates.
        n_sets, n: how many sets of how many.
        rng: source of randomness.

    Returns:
        (n_sets · n, height, width, channels) images and (n_sets · n,) labels.
    """
    images, labels = dataset.train_images, dataset.train_labels
    n_classes = len(dataset.class_names)
    if kind == "one image, every label":
        chosen = np.repeat(rng.choice(rest, n_sets, replace=False), n)
        return images[chosen], np.tile(np.arange(n) % n_classes, n_sets)
    if kind == "one of each class":
        of_class = [rest[labels[rest] == c] for c in range(n_classes)]
        chosen = [rng.choice(of_class[i % n_classes]) for _ in range(n_sets) for i in range(n)]
        return images[chosen], labels[chosen]
    chosen = np.concatenate([rng.choice(rest, n, replace=False) for _ in range(n_sets)])
    if kind == "mislabelled":
        return images[chosen], (
            labels[chosen] + rng.integers(1, n_classes, chosen.size)
        ) % n_classes
    return images[chosen], labels[chosen]


KINDS = ("random", "one of each class", "mislabelled", "one image, every label")


def flat(images: np.ndarray) -> np.ndarray:
    """(n, pixels) float32 in [−1, 1], by constants that do not depend on the data."""
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(127.5) - np.float32(1)


def _known_and_rest(cell: dict, streams, dataset) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the training points that the adversary knows, and of those left over."""
    order = streams.generator("images").permutation(len(dataset.train_images))
    return np.split(order, [cell["n_train"] - 1])


def _train(cell: dict, streams, dataset, known, others, candidates):
    """Runs on the known training images and ``others``, (images, labels), that are candidates.

    ``candidates`` counts from the first of these others.
    """
    from lib import inversion

    images, labels = others
    return inversion.train(
        inputs=flat(np.concatenate([dataset.train_images[known], images])),
        labels=np.concatenate([dataset.train_labels[known], labels]),
        known=np.arange(len(known)),
        candidates=len(known) + candidates,
        noise_multiplier=cell["noise_multiplier"],
        clip_norm=cell["clip_norm"],
        sampling_rate=cell["sampling_rate"],
        steps=cell["steps"],
        learning_rate=cell["learning_rate"],
        hidden_units=cell["hidden_units"],
        n_classes=len(dataset.class_names),
        sequence=streams.sequence("runs"),
    )


def _geometry(training, clip_norm: float) -> dict:
    """How long candidates' gradients are, and how alike, on average over runs and steps."""
    squares = training.view.squared_norms
    places = training.view.places[:, None, None]
    target = np.take_along_axis(squares, places, axis=2)
    lengths = np.sqrt(np.maximum(squares * target, 1e-30))
    others = np.arange(squares.shape[2]) != training.view.places[:, None]
    cosines = (training.target_products / lengths).transpose(1, 0, 2)[:, others]
    return {
        "squared_norm": float(squares.mean(dtype=float)) / clip_norm**2,
        "cosine": float(cosines.mean(dtype=float)),
        "accuracy": float(training.accuracy.mean()),
    }


def _attack_rows(cell: dict, outcomes: dict, gradients: dict) -> list[dict]:
    best = outcomes["map"].correct
    common = audited_run.mechanism_row(cell) | {"prior_size": cell["prior_size"]}
    common |= {"bound": _bound(cell)}
    return [
        common
        | {"attack": name}
        | _rate_columns(best.size, int(outcome.correct.sum()))
        | _mass_columns(outcome.masses)
        | {
            "n_right_alone": int((outcome.correct & ~best).sum()),
            "n_map_right_alone": int((best & ~outcome.correct).sum()),
        }
        | gradients
        for name, outcome in outcomes.items()
    ]


def _bound(cell: dict) -> float:
    from lib import reconstruction

    names = ("noise_multiplier", "steps", "sampling_rate")
    return float(
        reconstruction.success_bound(
            kappa=1 / cell["prior_size"], **{name: cell[name] for name in names}
        )
    )


def _rate_columns(n_runs: int, n_correct: int) -> dict:
    counts = {"n_successes": n_correct, "n_trials": n_runs}
    return {
        "n_runs": n_runs,
        "n_correct": n_correct,
        "success": float(intervals.rate(**counts)),
        "success_low": float(intervals.rate_at_least(**counts)),
        "success_high": float(intervals.rate_upper(**counts)),
    }


def _mass_columns(masses: np.ndarray) -> dict:
    return {
        "mean_mass": float(masses.mean()),
        "mass_error": float(masses.std(ddof=1) / np.sqrt(masses.size)),
    }


# --------------------------------------------------------------------- from parameters to cells


def check_idealised(p) -> None:
    """Refuse sampling rates of the network's attacks that no idealised attack stands beside.

    Raises:
        WorkbookError: naming the parameter.
    """
    for name in ("sampling_rates", "second_sampling_rates"):
        alone = [rate for rate in getattr(p, name) if rate not in p.idealised_sampling_rates]
        if alone:
            raise WorkbookError(
                f"{name} = {getattr(p, name)}; allowed: rates that idealised_sampling_rates = "
                f"{p.idealised_sampling_rates} has too, and {alone[0]:g} is not"
            )


def check_images(session) -> None:
    """Refuse more training points or candidates than either dataset has images for.

    Half of the images are left to candidates, so that there are some of every class.

    Raises:
        WorkbookError: naming the parameters.
    """
    p = session.p
    for name in (p.dataset, p.second_dataset):
        n_available = len(session.dataset_of(name).train_images)
        most = n_available // 2
        for parameter in ("n_train", "prior_size", "exposed_sets"):
            if getattr(p, parameter) > most:
                raise WorkbookError(
                    f"{parameter} = {getattr(p, parameter)}; allowed: at most {most}, half of the "
                    f"training images of {name}"
                )


RULES = (check_idealised,)
DATA_RULES = (check_images,)


def mechanism_cells(session) -> list[dict]:
    """One cell for each ε and sampling rate."""
    p = session.p
    return [
        {"epsilon": epsilon, "delta": p.delta, "sampling_rate": rate, "steps": p.steps}
        for epsilon in p.epsilons
        for rate in p.idealised_sampling_rates
    ]


def idealised_cells(session) -> list[dict]:
    """One cell for each mechanism, and for each number of candidates at the base point."""
    p = session.p
    mechanisms = session.tables["mechanisms"].to_dict("records")
    cells = [row | {"prior_size": p.prior_size, "n_runs": p.n_idealised_runs} for row in mechanisms]
    return cells + [
        row | {"prior_size": n, "n_runs": p.n_idealised_runs}
        for row in mechanisms
        if row["epsilon"] == _middle(p.epsilons) and row["sampling_rate"] in p.sampling_rates
        for n in p.prior_sizes
        if n != p.prior_size
    ]


def network_cells(session) -> list[dict]:
    """One cell for each mechanism whose sampling rate is tried on a network."""
    p = session.p
    return [
        row | _training(p) | {"n_runs": p.n_rare_runs if row["sampling_rate"] <= RARE else p.n_runs}
        for row in session.tables["mechanisms"].to_dict("records")
        if row["sampling_rate"] in p.sampling_rates
    ]


def second_cells(session) -> list[dict]:
    """The same on another dataset, at the middle ε."""
    p = session.p
    return [
        row | _training(p) | {"n_runs": p.second_n_runs}
        for row in session.tables["mechanisms"].to_dict("records")
        if row["sampling_rate"] in p.second_sampling_rates and row["epsilon"] == _middle(p.epsilons)
    ]


def exposed_cells(session) -> list[dict]:
    """One cell for each kind of candidate set, at the middle ε and two sampling rates."""
    p = session.p
    rates = (max(p.sampling_rates), min(p.sampling_rates))
    return [
        row | _training(p) | {"kind": kind, "n_sets": p.exposed_sets, "n_runs": p.exposed_runs}
        for row in session.tables["mechanisms"].to_dict("records")
        if row["sampling_rate"] in rates and row["epsilon"] == _middle(p.epsilons)
        for kind in KINDS
    ]


def _middle(epsilons: list[float]) -> float:
    return sorted(epsilons)[len(epsilons) // 2]


def _training(p) -> dict:
    names = ("prior_size", "n_train", "hidden_units", "learning_rate", "clip_norm")
    return {name: getattr(p, name) for name in names}


# ------------------------------------------------------------------------------------ tables

_POINT = ("epsilon", "sampling_rate", "prior_size")


def _rate_fields() -> tuple[Field, ...]:
    columns = {"n_successes": "n_correct", "n_trials": "n_runs"}

    def rate(name: str, function: str, meaning: str) -> Field:
        recipe = {"function": f"intervals.{function}", "columns": columns}
        return Field(name, "number", "", meaning, minimum=0, maximum=1, recipe=recipe)

    return (
        Field("n_runs", "integer", "", "runs", minimum=1),
        Field("n_correct", "integer", "", "of these, target named", minimum=0),
        rate("success", "rate", "share of runs with the target named"),
        rate("success_low", "rate_at_least", "lower end of its 95 % interval"),
        rate("success_high", "rate_upper", "upper end of its 95 % interval"),
    )


_MASS_FIELDS = (
    Field(
        "mean_mass",
        "number",
        "",
        "mean posterior mass of the attack's choice: its success, with less scatter",
        minimum=0,
        maximum=1,
    ),
    Field("mass_error", "number", "", "standard error of that mean", minimum=0),
)
ATTACK_FIELDS = (
    *MECHANISM_FIELDS,
    PRIOR_SIZE,
    Field("attack", "string", "", "sum, top (qT steps) or map (posterior)"),
    *_rate_fields(),
    *_MASS_FIELDS,
    Field("n_right_alone", "integer", "", "runs where it is right and map is not", minimum=0),
    Field("n_map_right_alone", "integer", "", "runs where map is right and it is not", minimum=0),
    Field("squared_norm", "number", "", "mean ‖g‖²/C² of candidates' clipped gradients", minimum=0),
    Field("cosine", "number", "", "mean cosine of other candidates' gradients to the target's"),
    Field(
        "accuracy",
        "number",
        "",
        "mean accuracy on the known points",
        required=False,
        minimum=0,
        maximum=1,
    ),
    bound_field(),
)
ATTACK_BELOW_BOUND = ({"attack": "success_low", "bound": "bound"},)


def _attack_table(meaning: str) -> Table:
    return Table(
        fields=ATTACK_FIELDS, key=(*_POINT, "attack"), meaning=meaning, claims=ATTACK_BELOW_BOUND
    )


TABLES = {
    "mechanisms": Table(
        fields=MECHANISM_FIELDS,
        key=("epsilon", "sampling_rate"),
        meaning="one mechanism, with its noise, settled before any run",
    ),
    "idealised": _attack_table("one attack on runs with orthogonal gradients of norm C"),
    "network": _attack_table("one attack on runs of a network"),
    "network_second": _attack_table("one attack on runs of a network on the second dataset"),
    "exposed": Table(
        fields=(
            *MECHANISM_FIELDS,
            Field("kind", "string", "", "how the set was made"),
            PRIOR_SIZE,
            Field("candidate_set", "integer", "", "number of the set", minimum=0),
            Field("n_choice", "integer", "", "runs that choose among sets", minimum=1),
            Field("n_correct_choice", "integer", "", "of these, target named by map", minimum=0),
            Field(
                "mean_mass_choice",
                "number",
                "",
                "mean posterior mass of map's choice in these: what the choice goes by",
                minimum=0,
                maximum=1,
            ),
            *_rate_fields(),
            *_MASS_FIELDS,
            bound_field(),
        ),
        key=("sampling_rate", "kind", "candidate_set"),
        meaning="one set of candidates, attacked again and again by map; success is that of the "
        "runs that had no part in the choice of a set",
        claims=ATTACK_BELOW_BOUND,
    ),
}


# ---------------------------------------------------------------------------------- verdicts

# The paper's Figure 5, ε = 4, T = 100, n = 10: success of the attack on the qT largest, by q.
PAPER_SUCCESS = {0.01: 0.15, 0.99: 0.32}
PAPER_ROUNDING = 0.01


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """What attacks and gradients lose, by ε and q: bound, idealised and network's success."""
    rows = []
    for point, network_runs in _points(tables["network"]):
        ideal = _same(tables["idealised"], point)
        by_attack = network_runs.set_index("attack")
        best = by_attack.loc["map"]
        rows.append(
            {
                "ε": point["epsilon"],
                "q": point["sampling_rate"],
                "bound": best["bound"],
                "MAP, idealised": _of(ideal, "map")["success"],
                "MAP": best["success"],
                "low": best["success_low"],
                "high": best["success_high"],
                "top qT": by_attack.loc["top", "success"],
                "sum": by_attack.loc["sum", "success"],
                "‖g‖²/C²": best["squared_norm"],
                "cosine": best["cosine"],
                "runs": best["n_runs"],
                "accuracy": best["accuracy"],
            }
        )
    return pd.DataFrame(rows)


def exposed_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """For each kind of set the one chosen, with its success on the other half of the runs."""
    rows = []
    for (rate, kind), sets in tables["exposed"].groupby(["sampling_rate", "kind"], sort=False):
        chosen = _most_exposed(sets)
        mass, low, high = _by_mass(chosen)
        rows.append(
            {
                "q": rate,
                "candidates": kind,
                "sets": len(sets),
                "mean of all sets": sets["mean_mass"].mean(),
                "chosen set": mass,
                "low": low,
                "high": high,
                "named": f"{chosen['n_correct']} of {chosen['n_runs']}",
                "bound": chosen["bound"],
                "of bound": mass / chosen["bound"],
            }
        )
    return pd.DataFrame(rows)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """The paper's two values, MAP against top qT, what gradients lose, the worst candidate set."""
    rows = [
        _paper_verdict(rate, value, tables["idealised"]) for rate, value in PAPER_SUCCESS.items()
    ]
    for name in ("network", "network_second"):
        for point, runs in _points(tables[name]):
            if point["sampling_rate"] < 1:
                rows.append(_better_verdict(name, point, runs))
            rows.append(_loss_verdict(name, point, runs, _same(tables["idealised"], point)))
    rows += [
        _exposed_verdict(rate, sets)
        for rate, sets in tables["exposed"].groupby("sampling_rate", sort=False)
    ]
    return [row for row in rows if row is not None]


def _paper_verdict(rate: float, paper: float, ideal: pd.DataFrame) -> dict | None:
    """The top-qT attack of Figure 5, where it was run at the paper's setting."""
    at = ideal[
        (ideal["sampling_rate"] == rate)
        & (ideal["epsilon"] == 4)
        & (ideal["prior_size"] == 10)
        & (ideal["steps"] == 100)
        & (ideal["attack"] == "top")
    ]
    if at.empty:
        return None
    ours = at.iloc[0]
    interval = (ours["success"], ours["success_low"], ours["success_high"])
    near = interval[1] - PAPER_ROUNDING <= paper <= interval[2] + PAPER_ROUNDING
    return verdict_row(
        f"top-qT attack at ε = 4, q = {rate:g} (Figure 5)",
        f"{paper:g}",
        interval,
        "agrees" if near else "differs: " + ("higher" if ours["success"] > paper else "lower"),
        f"{ours['n_correct']} of {ours['n_runs']} idealised runs; the paper's is read off a figure "
        f"to ± {PAPER_ROUNDING:g} and of a network's gradients",
    )


def _better_verdict(name: str, point: dict, runs: pd.DataFrame) -> dict:
    """MAP less top qT on the same runs."""
    from lib import inversion

    top = _of(runs, "top")
    interval = inversion.paired_difference(
        n_first_only=int(top["n_map_right_alone"]),
        n_second_only=int(top["n_right_alone"]),
        n_runs=int(top["n_runs"]),
    )
    seen = "MAP is better" if interval[1] > 0 else "not distinguishable"
    return verdict_row(
        f"MAP less top qT, {_named(name, point)}",
        "not tried",
        interval,
        "differs: top qT is better" if interval[2] < 0 else seen,
        f"{top['n_runs']} runs attacked by both: MAP right alone in {top['n_map_right_alone']}, "
        f"top qT in {top['n_right_alone']}",
    )


def _loss_verdict(name: str, point: dict, runs: pd.DataFrame, ideal: pd.DataFrame) -> dict:
    """What MAP loses to a network's gradients, by posterior masses, which scatter less."""
    here, best = _of(runs, "map"), _of(ideal, "map")
    interval = intervals.normal_interval(
        best["mean_mass"] - here["mean_mass"], best["mass_error"] ** 2 + here["mass_error"] ** 2
    )
    if interval[2] <= CLOSE:
        verdict = f"at most {CLOSE:g}"
    else:
        verdict = f"above {CLOSE:g}" if interval[1] > CLOSE else "not distinguishable"
    return verdict_row(
        f"success lost by the gradients, {_named(name, point)}",
        "none given",
        interval,
        verdict,
        f"MAP on orthogonal gradients of norm C less MAP on the network's, whose mean ‖g‖²/C² is "
        f"{here['squared_norm']:.2f} and mean cosine {here['cosine']:.2f}",
    )


def _exposed_verdict(rate: float, sets: pd.DataFrame) -> dict:
    """The most exposed of all candidate sets, as a share of the bound."""
    chosen = _most_exposed(sets)
    share = tuple(each / chosen["bound"] for each in _by_mass(chosen))
    return verdict_row(
        f"most exposed candidate set as a share of the bound, q = {rate:g}",
        "at most 1",
        share,
        "differs: above the bound"
        if share[1] > 1
        else "agrees"
        if share[2] <= 1
        else "not distinguishable",
        f"{chosen['kind']}, the best of {len(sets)} sets on one half of the runs; mean posterior "
        f"mass on the other, where {chosen['n_correct']} of {chosen['n_runs']} targets were named",
    )


def _by_mass(row: pd.Series) -> tuple[float, float, float]:
    """Chance of naming the target, by posterior masses, which scatter less than counts."""
    return intervals.normal_interval(row["mean_mass"], row["mass_error"] ** 2)


def _most_exposed(sets: pd.DataFrame) -> pd.Series:
    return sets.loc[sets["mean_mass_choice"].idxmax()]


def _points(audits: pd.DataFrame):
    """Each point with its rows, one an attack."""
    for values, rows in audits.groupby(list(_POINT), sort=False):
        yield dict(zip(_POINT, values, strict=True)), rows


def _same(rows: pd.DataFrame, point: dict) -> pd.DataFrame:
    return rows[np.logical_and.reduce([rows[name] == value for name, value in point.items()])]


def _of(rows: pd.DataFrame, attack: str) -> pd.Series:
    return rows[rows["attack"] == attack].iloc[0]


def _named(name: str, point: dict) -> str:
    dataset = {"network": "first dataset", "network_second": "second dataset"}[name]
    return f"{dataset}, ε = {point['epsilon']:g}, q = {point['sampling_rate']:g}"


# ----------------------------------------------------------------------------------- figures


def draw_attacks(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Success against q, a panel for each ε: attacks on a network, idealised, and the bound."""
    audits, ideal = tables["network"], tables["idealised"]
    epsilons = sorted(audits["epsilon"].unique())
    figure, axes = figures.new_figure(1, len(epsilons), height=3.6)
    for ax, epsilon in zip(np.atleast_1d(axes), epsilons, strict=True):
        runs = audits[audits["epsilon"] == epsilon]
        n = runs["prior_size"].iloc[0]
        _draw_bound_and_ideal(ax, ideal[(ideal["epsilon"] == epsilon) & (ideal["prior_size"] == n)])
        for i, attack in enumerate(ATTACKS):
            of_attack = runs[runs["attack"] == attack].sort_values("sampling_rate")
            _draw_rates(ax, of_attack, i, LABELS[attack])
        ax.axhline(1 / n, color="grey", linewidth=1, linestyle=":", label="guessing")
        ax.set_xscale("log")
        ax.set_title(f"ε = {epsilon:g}, T = {runs['steps'].iloc[0]}, n = {n}")
        ax.set_xlabel("sampling rate q")
    figures.start_at_zero(axes)
    np.atleast_1d(axes)[0].set_ylabel("target named (share of runs)")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_bound_and_ideal(ax, ideal: pd.DataFrame) -> None:
    best = ideal[ideal["attack"] == "map"].sort_values("sampling_rate")
    ax.plot(best["sampling_rate"], best["bound"], color=figures.BLACK, label="upper bound")
    dotted = {"color": figures.COLOURS[2], "linestyle": (0, (1, 1))}
    ax.plot(best["sampling_rate"], best["success"], label="MAP, idealised", **dotted)


def _draw_rates(ax, rows, index: int, label: str, *, x: str = "sampling_rate") -> None:
    ends = [
        (rows["success"] - rows["success_low"]).clip(lower=0),
        (rows["success_high"] - rows["success"]).clip(lower=0),
    ]
    style = figures.series(index) | {"markerfacecolor": "none", "capsize": 2}
    ax.errorbar(rows[x], rows["success"], yerr=ends, label=label, **style)


def draw_figure_5(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """The bound over q at constant ε, the attacks on idealised gradients, the paper's values."""
    over_q, ideal = tables["figure_5"], tables["idealised"]
    first = over_q.iloc[0]
    setting = {name: first[name] for name in ("epsilon", "steps", "prior_size")}
    runs = _same(ideal, setting).sort_values("sampling_rate")
    figure, ax = figures.new_figure(height=3.6)
    in_order = over_q.sort_values("sampling_rate")
    ax.plot(in_order["sampling_rate"], in_order["bound"], color=figures.BLACK, label="upper bound")
    for i, attack in enumerate(ATTACKS):
        of_attack = runs[runs["attack"] == attack]
        _draw_rates(ax, of_attack, i, f"{LABELS[attack]}, idealised")
    ax.axhline(1 / first["prior_size"], color="grey", linewidth=1, linestyle=":", label="guessing")
    figures.paper_value(ax, list(PAPER_BOUNDS), list(PAPER_BOUNDS.values()), label="paper")
    figures.paper_value(ax, list(PAPER_SUCCESS), list(PAPER_SUCCESS.values()), label="_paper")
    figures.start_at_zero(ax)
    ax.set_xlabel("sampling rate q")
    ax.set_ylabel("target named (share of runs)")
    ax.set_title(f"ε = {first['epsilon']:g}, T = {first['steps']}, n = {first['prior_size']}")
    ax.legend(loc="lower right", ncols=2)
    return figure


def draw_prior_sizes(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Bound and idealised attacks over the number of candidates, one panel a sampling rate."""
    ideal = tables["idealised"]
    several = ideal.groupby(["epsilon", "sampling_rate"])["prior_size"].transform("nunique") > 1
    ideal = ideal[several] if several.any() else ideal
    rates = sorted(ideal["sampling_rate"].unique())
    columns = min(3, len(rates))
    rows = -(-len(rates) // columns)
    figure, axes = figures.new_figure(rows, columns, height=3.0 * rows, share_y=True)
    for ax, rate in zip(np.ravel(axes), rates, strict=False):
        at = ideal[ideal["sampling_rate"] == rate].sort_values("prior_size")
        best = at[at["attack"] == "map"]
        ax.plot(best["prior_size"], best["bound"], color=figures.BLACK, label="upper bound")
        for i, attack in enumerate(ATTACKS):
            of_attack = at[at["attack"] == attack]
            _draw_rates(ax, of_attack, i, LABELS[attack], x="prior_size")
        guess = 1 / best["prior_size"]
        ax.plot(
            best["prior_size"], guess, color="grey", linewidth=1, linestyle=":", label="guessing"
        )
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_title(f"ε = {at['epsilon'].iloc[0]:g}, q = {rate:g}")
        ax.set_xlabel("candidates n")
    for ax in np.ravel(axes)[len(rates) :]:
        ax.set_axis_off()
    for ax in np.ravel(axes)[::columns]:
        ax.set_ylabel("target named (share of runs)")
    handles, labels = np.ravel(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    return figure


def draw_exposed(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Success of each candidate set, those chosen marked, against the bound."""
    sets = tables["exposed"]
    rates = list(sets["sampling_rate"].unique())
    figure, axes = figures.new_figure(1, len(rates), height=3.4, share_y=True)
    for ax, rate in zip(np.atleast_1d(axes), rates, strict=True):
        at = sets[sets["sampling_rate"] == rate]
        for i, kind in enumerate(KINDS):
            of_kind = at[at["kind"] == kind].sort_values("mean_mass")
            y = i + np.linspace(-0.3, 0.3, len(of_kind)) if len(of_kind) > 1 else [float(i)]
            plain = {"linestyle": "none", "marker": "o", "markersize": 3}
            ax.plot(of_kind["mean_mass"], y, color=figures.COLOURS[0], label="a set", **plain)
            chosen = _most_exposed(of_kind)
            place = np.asarray(y)[of_kind.index.get_loc(chosen.name)]
            mass, low, high = _by_mass(chosen)
            style = figures.series(1) | {"linestyle": "none", "capsize": 2}
            label = "chosen on other runs"
            ax.errorbar([mass], [place], xerr=[[mass - low], [high - mass]], label=label, **style)
        ax.axvline(at["bound"].iloc[0], color=figures.BLACK, label="upper bound")
        ax.axvline(
            1 / at["prior_size"].iloc[0], color="grey", linewidth=1, linestyle=":", label="guessing"
        )
        ax.set_yticks(range(len(KINDS)), KINDS)
        ax.set_title(f"ε = {at['epsilon'].iloc[0]:g}, q = {rate:g}")
        ax.set_xlabel("chance of naming the target")
        ax.set_xlim(left=0)
    handles = dict(zip(*reversed(np.atleast_1d(axes)[0].get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=4)
    return figure


FIGURES = {
    "figure_5": Figure(
        draw_figure_5,
        tables=("figure_5", "idealised"),
        title="Equal ε, unequal risk",
        alternative_text=(
            "The upper bound on naming the target over the sampling rate at constant ε, three "
            "attacks on idealised gradients with intervals below it, the paper's values as stars."
        ),
    ),
    "prior_sizes": Figure(
        draw_prior_sizes,
        tables=("idealised",),
        title="More candidates",
        alternative_text=(
            "Upper bound and three attacks on idealised gradients over the number of candidates, "
            "one panel a sampling rate, with guessing below."
        ),
    ),
    "attacks": Figure(
        draw_attacks,
        tables=("network", "idealised"),
        title="Attack and bound as the sampling rate falls",
        alternative_text=(
            "Share of runs in which the target was named, against the sampling rate, one panel an "
            "ε: three attacks with intervals, the posterior attack on idealised gradients dotted, "
            "the upper bound as a line above them, and guessing below."
        ),
    ),
    "exposed": Figure(
        draw_exposed,
        tables=("exposed",),
        title="The most exposed candidates",
        alternative_text=(
            "Success of the posterior attack on single sets of candidates, by how a set was made, "
            "one panel a sampling rate; the set chosen on other runs has an interval, the upper "
            "bound is a line on the right."
        ),
    ),
}
