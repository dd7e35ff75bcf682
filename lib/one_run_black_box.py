"""Study 01, the black-box audit: images as canaries, and only the losses of the final model seen.

Steinke et al. (arXiv:2305.08846, Section 6) find that there the bound does not grow with the number
of canaries, and that ordinary training images loosen it. One reason may be that all that an image
does to a network is done in the few directions in which networks change, so that canaries and
images get in each other's way. Another is arithmetic: gradients are divided by the expected batch,
which grows with canaries and images, so that at one learning rate each canary's step shortens. So
the same few canaries are also audited alone with the divisors of the others: what is lost there
is the divisor's part. Where the bound is 0, the area under the ROC curve still tells weak audits
apart.

Cells of plans and ceilings are those of :mod:`lib.one_run_white_box`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import audited_run, canaries, figures, intervals, membership
from lib import one_run_white_box as white_box
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import AUDIT_FIELDS, BOUND_BELOW_TRUTH, MECHANISM_FIELDS, verdict_row
from lib.tables import Field, Table

SCORES = {
    "loss": "minus the loss of the final model",
    "against_initial": "the loss before training less the loss of the final model",
    "against_reference": "the loss of a model trained without canaries and without noise less the "
    "loss of the final model",
}
# Fixed beforehand, on runs that are not counted: ordinary images hide canaries from the others.
BEST_SCORE = "against_reference"
BASE, CANARIES, IMAGES, DIVISOR, EPSILONS = "base", "canaries", "images", "divisor", "epsilons"
VARIED = {
    CANARIES: "n_canaries",
    IMAGES: "n_train",
    DIVISOR: "expected_batch_size",
    EPSILONS: "epsilon",
}
AXIS = {
    CANARIES: "canaries m",
    IMAGES: "ordinary images",
    EPSILONS: "theoretical ε (nats)",
}
SAMPLING_RATE = 1.0  # full batches: a canary that is in takes part in each step
LOW_RATES = {"1_percent": 0.01, "0_1_percent": 0.001}

PARAMETERS = {
    "black_box_n_canaries": Parameter("ints", "image canaries m to try", minimum=20),
    "black_box_n_train": Parameter(
        "ints", "numbers of ordinary images to try beside them, and none", minimum=1
    ),
    "black_box_epsilons": Parameter("floats", "theoretical ε to try", above=0, maximum=100),
    "black_box_base": Parameter(
        "ints", "canaries and steps where they do not vary", minimum=1, distinct=False
    ),
    "black_box_share": Parameter(
        "float", "share of the canaries to guess, half 'in' and half 'out'", above=0, maximum=1
    ),
    "black_box_learning_rate": Parameter("float", "learning rate of these runs", above=0),
    "black_box_runs": Parameter("int", "training runs for each point", minimum=2),
}


def check_base(p) -> None:
    """Refuse a base point that is not two numbers, or too few canaries in it.

    Raises:
        WorkbookError: naming the parameter.
    """
    least = PARAMETERS["black_box_n_canaries"].minimum
    if len(p.black_box_base) != 2 or p.black_box_base[0] < least:
        raise WorkbookError(
            f"black_box_base = {p.black_box_base}; allowed: two numbers, canaries (at least "
            f"{least}) and steps"
        )


def check_guesses(p) -> None:
    """Refuse so few guesses that all of them right would refute nothing, not even ε = 0.

    Raises:
        WorkbookError: naming the parameters.
    """
    fewest = min([*p.black_box_n_canaries, p.black_box_base[0]])
    n_guesses = 2 * _half(fewest, p.black_box_share)
    if 0.5**n_guesses > p.significance:
        raise WorkbookError(
            f"black_box_share = {p.black_box_share:g} of {fewest} canaries is {n_guesses} guesses, "
            f"which all right have probability {0.5**n_guesses:g} at ε = 0; allowed: at most "
            f"significance = {p.significance:g}"
        )


def check_images(session) -> None:
    """Refuse more images than there are.

    Raises:
        WorkbookError: naming the parameters.
    """
    n_available = len(session.dataset.train_images)
    needed = max(point["n_canaries"] + point["n_train"] for point in points(session.p))
    if needed > n_available:
        raise WorkbookError(
            f"black_box_n_canaries or black_box_base with black_box_n_train needs {needed} images; "
            f"allowed: at most {n_available}, the training images of {session.p.dataset}"
        )


RULES = (check_base, check_guesses)
DATA_RULES = (check_images,)


# ------------------------------------------------------------------------------------- cell


def black_box(cell: dict, streams, dataset) -> list[dict]:
    """Train a network by DP-SGD on image canaries and ordinary images; audit its losses.

    The members are those whose coin says so. The number that gradients are divided by is public
    and part of the cell: no coin is in it.
    """
    import torch

    from lib import dpsgd, models

    m, n_train, n_classes = cell["n_canaries"], cell["n_train"], len(dataset.class_names)
    chosen = streams.generator("images").permutation(len(dataset.train_images))
    candidates, ordinary = chosen[:m], np.sort(chosen[m : m + n_train])
    images, labels = canaries.image_canaries(
        cell["kind"],
        dataset.train_images[candidates],
        dataset.train_labels[candidates],
        n_classes,
        streams.generator("canaries"),
    )
    included = streams.generator("coins").random(m) < 0.5
    inputs, labels = models.normalise(images), torch.from_numpy(labels)
    ordinary_inputs = models.normalise(dataset.train_images[ordinary])
    ordinary_labels = torch.from_numpy(dataset.train_labels[ordinary])
    options = {
        "clip_norm": cell["clip_norm"],
        "sampling_rate": cell["sampling_rate"],
        "steps": cell["steps"],
        "learning_rate": cell["learning_rate"],
        "expected_batch_size": cell["expected_batch_size"],
        "progress": False,
    }
    initial = audited_run.fresh_network(cell, streams, dataset).to(cell["device"])
    model = audited_run.fresh_network(cell, streams, dataset).to(cell["device"])
    dpsgd.train(
        model,
        torch.cat([inputs[included], ordinary_inputs]),
        torch.cat([labels[included], ordinary_labels]),
        noise_multiplier=cell["noise_multiplier"],
        batch_generator=models.generator(streams.sequence("batches")),
        noise_generator=models.generator(streams.sequence("noise"), cell["device"]),
        **options,
    )
    losses = {"final": models.losses(model, inputs, labels)}
    losses["initial"] = losses["reference"] = models.losses(initial, inputs, labels)
    if n_train:
        reference = audited_run.fresh_network(cell, streams, dataset).to(cell["device"])
        dpsgd.train(
            reference,
            ordinary_inputs,
            ordinary_labels,
            noise_multiplier=0.0,
            batch_generator=models.generator(streams.sequence("reference batches")),
            noise_generator=models.generator(streams.sequence("no noise"), cell["device"]),
            **options,
        )
        losses["reference"] = models.losses(reference, inputs, labels)
    scores = {
        "loss": -losses["final"],
        "against_initial": losses["initial"] - losses["final"],
        "against_reference": losses["reference"] - losses["final"],
    }
    common = {
        name: cell[name]
        for name in ("setting", "kind", "run", "network", "n_train", "expected_batch_size")
    } | audited_run.mechanism_row(cell)
    common |= {
        "test_accuracy": models.accuracy(
            model,
            models.normalise(dataset.test_images),
            torch.from_numpy(np.array(dataset.test_labels)),
        ),
    }
    return [
        common
        | {"score": name}
        | audited_run.audit_row(cell, score, included, streams.generator("ties"))
        | _roc_row(score, included)
        for name, score in scores.items()
    ]


def _roc_row(scores: np.ndarray, included: np.ndarray) -> dict:
    curve = membership.roc(scores, included)
    row = {"n_others": curve.n_others, "n_pairs_in_order": curve.n_pairs_in_order}
    row["area"] = float(
        membership.area(
            n_pairs_in_order=curve.n_pairs_in_order,
            n_members=curve.n_members,
            n_others=curve.n_others,
        )
    )
    for name, rate in LOW_RATES.items():
        row[f"n_true_at_{name}"], row[f"n_false_at_{name}"] = curve.at_most(rate)
    return row


# --------------------------------------------------------------------- from parameters to cells


def points(p) -> list[dict]:
    """Every point: which sweep, ε, m, images, divisor and T; the same for either kind.

    The first is the base, which is part of every sweep and listed once. Gradients are divided by
    half of the canaries and all ordinary images, q = 1; at the points of the divisor's sweep by
    as much as at one of the others, with no more canaries or images than at the base.
    """
    n_canaries, steps = p.black_box_base
    base = {"epsilon": max(p.black_box_epsilons), "n_canaries": n_canaries, "n_train": 0}
    varied = [(BASE, base)]
    for sweep, values in (
        (CANARIES, p.black_box_n_canaries),
        (IMAGES, p.black_box_n_train),
        (EPSILONS, p.black_box_epsilons),
    ):
        name = VARIED[sweep]
        varied += [(sweep, base | {name: value}) for value in values if value != base[name]]
    found = [
        {"setting": sweep, "steps": steps} | point | {"expected_batch_size": _divisor(point)}
        for sweep, point in varied
    ]
    divisors = dict.fromkeys(point["expected_batch_size"] for point in found[1:])
    first = found[0]
    return found + [
        first | {"setting": DIVISOR, "expected_batch_size": divisor}
        for divisor in divisors
        if divisor != first["expected_batch_size"]
    ]


def _divisor(point: dict) -> float:
    return SAMPLING_RATE * (point["n_canaries"] / 2 + point["n_train"])


def plan_cells(session) -> list[dict]:
    """One cell for each mechanism; a share of the canaries is guessed, settled by a parameter."""
    p = session.p
    mechanisms = dict.fromkeys(
        (point["epsilon"], point["n_canaries"], point["steps"]) for point in points(p)
    )
    return [
        {
            "epsilon": epsilon,
            "delta": p.delta,
            "sampling_rate": SAMPLING_RATE,
            "steps": steps,
            "significance": p.significance,
            "n_canaries": m,
            "n_positive": _half(m, p.black_box_share),
            "n_negative": _half(m, p.black_box_share),
            "n_simulations": p.n_simulations,
        }
        for epsilon, m, steps in mechanisms
    ]


def _half(n_canaries: int, share: float) -> int:
    """Half of the guesses: at least one, and never more than half of the canaries."""
    return max(1, min(round(share * n_canaries / 2), n_canaries // 2))


def ceiling_cells(session) -> list[dict]:
    """One cell for each plan."""
    return session.tables["black_box_plans"].drop(columns="counts_from").to_dict("records")


def audit_cells(session) -> list[dict]:
    """One cell for each training run."""
    p, plans = session.p, session.tables["black_box_plans"]
    planned = {
        (row["epsilon"], row["n_canaries"], row["steps"]): row
        for row in plans.drop(columns=["counts_from", "n_simulations"]).to_dict("records")
    }
    return [
        planned[point["epsilon"], point["n_canaries"], point["steps"]]
        | {
            "kind": kind,
            "setting": point["setting"],
            "run": run,
            "n_train": point["n_train"],
            "expected_batch_size": point["expected_batch_size"],
            "network": p.network,
            "clip_norm": p.clip_norm,
            "learning_rate": p.black_box_learning_rate,
            "device": p.device,
        }
        for kind in canaries.IMAGE_KINDS
        for point in points(p)
        for run in range(p.black_box_runs)
    ]


# ------------------------------------------------------------------------------------ tables

_POINT = ("epsilon", "n_canaries", "steps")


def _low_rate_fields() -> tuple[Field, ...]:
    fields = []
    for name, rate in LOW_RATES.items():
        at = f"at the lowest threshold with a false-positive rate of at most {rate:.1%}"
        fields += [
            Field(f"n_true_at_{name}", "integer", "", f"members found {at}", minimum=0),
            Field(f"n_false_at_{name}", "integer", "", f"others taken for them {at}", minimum=0),
        ]
    return tuple(fields)


TABLES = {
    "black_box_plans": Table(
        fields=white_box.TABLES["plans"].fields,
        key=_POINT,
        meaning="one mechanism of the black-box audits, with what was settled before any run",
    ),
    "black_box_ceiling": Table(
        fields=white_box.TABLES["ceiling"].fields,
        key=(*_POINT, "simulation"),
        meaning="one white-box audit of the idealised mechanism with the same guesses",
        claims=BOUND_BELOW_TRUTH,
    ),
    "black_box": Table(
        fields=(
            Field(
                "setting",
                "string",
                "",
                "what differs from the base: canaries, images, divisor or epsilons; or base",
            ),
            Field("kind", "string", "", "canaries: mislabelled images or blank ones"),
            Field("run", "integer", "", "number of the training run at this point", minimum=0),
            Field("network", "string", "", "network"),
            Field("n_train", "integer", "", "ordinary training images", minimum=0),
            *MECHANISM_FIELDS,
            Field(
                "expected_batch_size",
                "number",
                "images",
                "public number that every released gradient is divided by",
                minimum=0,
            ),
            Field(
                "test_accuracy", "number", "", "accuracy on the test images", minimum=0, maximum=1
            ),
            Field("score", "string", "", "how canaries were scored"),
            *AUDIT_FIELDS,
            Field("n_others", "integer", "", "canaries whose coin said 'out'", minimum=1),
            Field(
                "n_pairs_in_order",
                "number",
                "",
                "pairs of 'in' and 'out' with the higher score 'in'; equal ones count half",
                minimum=0,
            ),
            Field(
                "area",
                "number",
                "",
                "area under the ROC curve of the scores",
                minimum=0,
                maximum=1,
                recipe={
                    "function": "membership.area",
                    "columns": {
                        "n_pairs_in_order": "n_pairs_in_order",
                        "n_members": "n_included",
                        "n_others": "n_others",
                    },
                },
            ),
            *_low_rate_fields(),
        ),
        key=("kind", *_POINT, "n_train", "expected_batch_size", "run", "score"),
        meaning="one black-box audit: one training run seen through one score of its losses",
        claims=BOUND_BELOW_TRUTH,
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Headline bound and ROC by kind, sweep and value, with 95 % intervals over runs."""
    rows = []
    audits = tables["black_box"]
    for kind in canaries.IMAGE_KINDS:
        for sweep, varied in VARIED.items():
            runs = _of_sweep(audits[audits["kind"] == kind], sweep)
            for value, at in runs[runs["score"] == BEST_SCORE].groupby(varied):
                area, low, high = _mean_interval(at["area"])
                row = {
                    "canaries": kind,
                    "varies": sweep,
                    "value": value,
                    "bound": at["epsilon_lower_bound"].mean(),
                    "ceiling": _ceiling_of(tables, at).mean(),
                    "guesses": int(at["n_guesses"].iloc[0]),
                    "AUC": area,
                    "low": max(low, 0.0),
                    "high": min(high, 1.0),
                    "AUC, loss alone": _mean_by_loss(runs, varied)[value],
                }
                for name, rate in LOW_RATES.items():
                    found = at[f"n_true_at_{name}"].sum(), at["n_included"].sum()
                    wrong = at[f"n_false_at_{name}"].sum(), at["n_others"].sum()
                    row[f"TPR at FPR ≤ {rate:.1%}"] = found[0] / found[1]
                    row[f"realised FPR, {rate:.1%}"] = wrong[0] / wrong[1]
                rows.append(row | {"runs": len(at)})
    return pd.DataFrame(rows)


def _mean_by_loss(runs: pd.DataFrame, varied: str) -> pd.Series:
    return runs[runs["score"] == "loss"].groupby(varied)["area"].mean()


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Whether more canaries help, whether ordinary images loosen, how far below the ceiling.

    What canaries and images do is told against the base's canaries with the same divisor, and what
    the divisor does by itself beside it; for the loss alone too, which is the paper's attack.
    """
    rows = []
    for kind, runs in tables["black_box"].groupby("kind", sort=False):
        best, alone = (runs[runs["score"] == score] for score in (BEST_SCORE, "loss"))
        base = best[best["setting"] == BASE]
        rows += [
            *_divided_verdicts("bound", best, CANARIES, "does not keep growing"),
            *_divided_verdicts("AUC", best, CANARIES, "none given"),
            *_divided_verdicts("AUC", alone, IMAGES, "falls"),
            *_divided_verdicts("AUC", best, IMAGES, "falls"),
            *_divided_verdicts("bound", best, IMAGES, "falls"),
        ]
        if len(base):
            rows.append(_ceiling_verdict(kind, base, _ceiling_of(tables, base)))
    return rows


def _divided_verdicts(what: str, runs: pd.DataFrame, sweep: str, paper: str) -> list[dict]:
    """What the most canaries or images do at one divisor, and what that divisor does alone."""
    varied = VARIED[sweep]
    base = runs[runs["setting"] == BASE]
    most = _of_sweep(runs, sweep)
    most = most[most[varied] == most[varied].max()]
    divisor = most["expected_batch_size"].iloc[0]
    control = runs[runs["setting"].isin((BASE, DIVISOR))]
    control = control[control["expected_batch_size"] == divisor]
    if most["setting"].iloc[0] == BASE:
        return []
    few, many = (int(each[varied].iloc[0]) for each in (base, most))
    of_what = {CANARIES: "canaries", IMAGES: "ordinary images"}[sweep]
    score = {"loss": "loss alone", BEST_SCORE: "with a reference"}[runs["score"].iloc[0]]
    name = f"black-box {what} with {runs['kind'].iloc[0]} canaries, {score}"
    usual = f"the divisor of {many:,} {of_what}"
    return [
        _change_verdict(
            f"{name}: {many:,} against {few:,} {of_what} at one divisor", what, control, most, paper
        ),
        _change_verdict(f"{name}: {usual} alone", what, base, control, "none given"),
    ]


def _change_verdict(
    claim: str, what: str, first: pd.DataFrame, last: pd.DataFrame, paper: str
) -> dict:
    """Mean AUC or bound at one point less that at another, against what the paper says of it.

    Many bounds are exactly 0, where Student's distribution is a poor guide: a change must also be
    rare among permutations of the runs.
    """
    column = {"AUC": "area", "bound": "epsilon_lower_bound"}[what]
    interval = intervals.difference_interval(last[column], first[column])
    p_value = intervals.permutation_p_value(last[column], first[column])
    _, low, high = interval
    if low <= 0 <= high or p_value > 0.05:
        seen = "not distinguishable"
    else:
        seen = "grows" if low > 0 else "falls"
    if paper == "none given" or seen == "not distinguishable":
        verdict = seen
    else:
        verdict = "agrees" if seen == "falls" else f"differs: {seen}"
    return verdict_row(
        claim,
        paper,
        interval,
        verdict,
        f"mean of {len(last)} runs at the former less that of {len(first)} at the latter (Welch; "
        f"p = {p_value:.2g} by permutation of runs)",
    )


def _ceiling_verdict(kind: str, runs: pd.DataFrame, ceiling: pd.Series) -> dict:
    """Share of what a white-box auditor would get with as many guesses."""
    best = ceiling.mean()
    mean = intervals.mean_interval(runs["epsilon_lower_bound"], ceiling)
    share = tuple(each / best if best > 0 else 0.0 for each in mean)
    return verdict_row(
        f"black-box bound with {kind} canaries over the white-box ceiling, "
        f"ε = {runs['epsilon'].iloc[0]:g}",
        "less than white-box",
        share,
        "agrees" if share[2] < 1 and best > 0 else "not distinguishable",
        f"mean bound of {len(runs)} runs over the mean ceiling {best:.2f} at the same guesses, by "
        "the scatter of the simulated audits",
    )


def _mean_interval(values: pd.Series) -> tuple[float, float, float]:
    """Over runs, since the canaries of one run are not independent of each other."""
    return intervals.mean_interval(values, values)


def _of_sweep(runs: pd.DataFrame, sweep: str) -> pd.DataFrame:
    """A sweep's own points and the base."""
    return runs[runs["setting"].isin((BASE, sweep))]


def _ceiling_of(tables: dict[str, pd.DataFrame], runs: pd.DataFrame) -> pd.Series:
    """Simulated bounds of the mechanism that ``runs`` (all of one) used."""
    ceilings = tables["black_box_ceiling"]
    same = np.logical_and.reduce([ceilings[name] == runs[name].iloc[0] for name in _POINT])
    return ceilings.loc[same, "epsilon_lower_bound"]


# ----------------------------------------------------------------------------------- figures


def draw_black_box(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Bound with its ceiling, AUC with a reference, AUC of the loss alone, over what varies."""
    rows = (
        ("epsilon_lower_bound", BEST_SCORE, "lower bound on ε (nats)"),
        ("area", BEST_SCORE, "AUC, with a reference"),
        ("area", "loss", "AUC, loss alone"),
    )
    audits = tables["black_box"]
    figure, axes = figures.new_figure(
        len(rows), len(AXIS), height=6.6, share_x="col", share_y="row"
    )
    for sweep, column_of_axes in zip(AXIS, axes.T, strict=True):
        runs = _of_sweep(audits, sweep)
        white_box.draw_ceiling(
            column_of_axes[0],
            {value: _ceiling_of(tables, at) for value, at in runs.groupby(VARIED[sweep])},
        )
        for ax, (column, score, label) in zip(column_of_axes, rows, strict=True):
            of_score = audits[audits["score"] == score]
            for index, kind in enumerate(canaries.IMAGE_KINDS, 1):
                _draw_kind(ax, of_score[of_score["kind"] == kind], sweep, column, index)
            if column == "area":
                ax.axhline(0.5, color="grey", linewidth=1, label="no information")
            if sweep == CANARIES:
                ax.set_ylabel(label)
        _set_values(column_of_axes[-1], sweep, runs)
    figures.start_at_zero(axes[0])
    handles = {
        label: handle
        for ax in axes[:2, 0]
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3)
    return figure


def _draw_kind(ax, runs: pd.DataFrame, sweep: str, column: str, index: int) -> None:
    """Means with their intervals; without, the base's canaries with the divisors of the others."""
    varied, kind = VARIED[sweep], runs["kind"].iloc[0]
    at = _of_sweep(runs, sweep)
    values = at.groupby(varied)[column].agg(list)
    middle, low, high = np.transpose([_mean_interval(each) for each in values])
    top = 1.0 if column == "area" else np.inf
    ends = [middle - np.maximum(low, 0), np.minimum(high, top) - middle]
    style = figures.series(index) | {"markerfacecolor": "none"}
    ax.errorbar(values.index, middle, yerr=ends, capsize=2, label=kind, clip_on=False, **style)
    if sweep == EPSILONS:
        return
    controls = runs[runs["setting"].isin((BASE, DIVISOR))]
    means = controls.groupby("expected_batch_size")[column].mean()
    divisors = at.groupby(varied)["expected_batch_size"].first()
    alone = {"linestyle": "none", "marker": "x+"[index - 1], "markersize": 6, "clip_on": False}
    ax.plot(
        divisors.index,
        means.reindex(divisors),
        label=f"{kind}, divisor alone",
        color=style["color"],
        **alone,
    )


def _set_values(ax, sweep: str, runs: pd.DataFrame) -> None:
    """A logarithm that has room for no images at all; ticks at the values that were tried."""
    ax.set_xscale("log" if sweep != IMAGES else "symlog", **_linear_below(runs, VARIED[sweep]))
    values = sorted(runs[VARIED[sweep]].unique())
    ax.set_xticks(values, [f"{value:g}" for value in values])
    ax.set_xticks([], minor=True)
    if sweep == IMAGES:
        ax.set_xlim(left=-0.3 * ax.xaxis.get_transform().linthresh)
    ax.set_xlabel(AXIS[sweep])


def _linear_below(runs: pd.DataFrame, varied: str) -> dict:
    """Where the symmetric logarithm of the number of images starts."""
    if varied != VARIED[IMAGES]:
        return {}
    some = runs.loc[runs[varied] > 0, varied]
    return {"linthresh": float(some.min()) if len(some) else 1.0}


FIGURES = {
    "black_box": Figure(
        draw_black_box,
        tables=("black_box", "black_box_ceiling"),
        title="Only the final model seen",
        alternative_text=(
            "Black-box audits with mislabelled and with blank images as canaries, over the number "
            "of canaries, of ordinary images, and ε: above the lower bound on ε with the white-box "
            "ceiling, below the areas under the ROC curve with a reference model and of the loss "
            "alone; crosses show what the larger divisor does by itself."
        ),
    ),
}
