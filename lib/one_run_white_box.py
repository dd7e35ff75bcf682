"""Study 01, the white-box audit: lower bounds on the ε of DP-SGD, each from one training run.

Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, arXiv:2305.08846. Three
kinds of cell: ``plan`` settles noise and numbers of guesses before any run, ``ceiling`` says what
an undisturbed auditor would get, ``white_box`` trains a network privately and audits it.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import audited_run, canaries, figures, intervals, one_run
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import (
    AUDIT_FIELDS,
    BOUND_BELOW_TRUTH,
    GUESS_FIELDS,
    MECHANISM_FIELDS,
    SIGNIFICANCE,
    verdict_row,
)
from lib.tables import Field, Table

# The paper's white-box bounds for DP-SGD on CIFAR-10 (Section 6), read to one decimal.
PAPER_BOUNDS = {1.0: 0.7, 2.0: 1.2, 4.0: 1.8, 8.0: 3.5}
PAPER_ROUNDING = 0.05
ENOUGH = 0.9  # share of the ceiling that an audit should reach
ALIKE = 0.1  # a difference of shares below this is none
FEW, ALL = "few images", "all images"

PARAMETERS = {
    "network": Parameter("text", "network to train", choices=("small_cnn", "wrn_16_4")),
    "epsilons": Parameter("floats", "theoretical ε of the runs", above=0, maximum=100),
    "delta": Parameter("float", "δ of theory and audit", minimum=1e-14, below=1),
    "significance": Parameter(
        "float", "probability that a bound is above the truth", above=0, maximum=0.5
    ),
    "n_canaries": Parameter("int", "canaries m, each with its own coin", minimum=1),
    "n_positive": Parameter(
        "ints",
        "guesses of 'in', one for each ε",
        minimum=0,
        alternatives=("simulated",),
        distinct=False,
    ),
    "n_negative": Parameter(
        "ints",
        "guesses of 'out', one for each ε",
        minimum=0,
        alternatives=("simulated",),
        distinct=False,
    ),
    "n_simulations": Parameter("int", "simulated audits behind plan and ceiling", minimum=2),
    "n_train": Parameter("int", "ordinary training images", minimum=1),
    "sampling_rate": Parameter("float", "sampling rate q", above=0, maximum=1),
    "steps": Parameter("int", "steps T", minimum=1),
    "n_runs": Parameter("int", "training runs for each ε", minimum=1),
    "all_sampling_rate": Parameter("float", "q of the runs on all images", above=0, maximum=1),
    "all_steps": Parameter("int", "T of the runs on all images", minimum=1),
    "all_n_runs": Parameter("int", "runs on all images for each ε; 0 leaves them out", minimum=0),
    "clip_norm": Parameter("float", "clip norm C", above=0),
    "learning_rate": Parameter("float", "learning rate of SGD", above=0),
}


# ------------------------------------------------------------------------------------ cells


def plan(cell: dict, streams, dataset: None) -> list[dict]:
    """Settle noise and numbers of guesses from the parameters alone, before any run.

    The pair of guess counts with the largest bound at its expected number of right guesses, over
    ``n_simulations`` audits of the idealised mechanism, unless the cell names the counts.
    """
    noise = audited_run.settle_noise(cell)
    m = cell["n_canaries"]
    grid = np.unique([0, *np.geomspace(1, m, 60).astype(int)])
    positive = grid if cell["n_positive"] is None else np.array([cell["n_positive"]])
    negative = grid if cell["n_negative"] is None else np.array([cell["n_negative"]])
    n_correct = np.zeros((positive.size, negative.size))
    for included, score in audited_run.simulations(cell | noise, streams):
        in_order = included[np.argsort(score)]
        n_members_above = np.concatenate([[0], np.cumsum(in_order[::-1])])
        n_others_below = np.concatenate([[0], np.cumsum(~in_order)])
        n_correct += n_members_above[positive][:, None] + n_others_below[negative]
    n_guesses = positive[:, None] + negative
    allowed = n_guesses <= m
    i, j = (places[allowed] for places in np.indices(n_guesses.shape))
    best = one_run.index_of_largest_bound(
        n_canaries=m,
        n_guesses=n_guesses[allowed],
        n_correct=(n_correct[allowed] / cell["n_simulations"]).astype(int),
        delta=cell["delta"],
        significance=cell["significance"],
    )
    return [
        cell
        | noise
        | {
            "n_positive": int(positive[i[best]]),
            "n_negative": int(negative[j[best]]),
            "counts_from": "simulation"
            if None in (cell["n_positive"], cell["n_negative"])
            else "parameters",
        }
    ]


def ceiling(cell: dict, streams, dataset: None) -> list[dict]:
    """Audit the idealised mechanism ``n_simulations`` times with the planned guesses.

    Its simulations are not those of the plan (the streams differ), so choosing the counts on the
    plan's does not flatter them.
    """
    rows = []
    for number, (included, score) in enumerate(audited_run.simulations(cell, streams)):
        rng = np.random.default_rng(streams.sequence(f"ties {number}"))
        rows.append(
            audited_run.mechanism_row(cell)
            | {"simulation": number}
            | audited_run.audit_row(cell, score, included, rng)
        )
    return rows


def white_box(cell: dict, streams, dataset) -> list[dict]:
    """Train a network by DP-SGD with Dirac canaries and audit it once with each score."""
    import torch

    from lib import models

    model, planted, batch_sizes = audited_run.train_dirac(cell, streams, dataset)
    common = (
        {name: cell[name] for name in ("setting", "run", "network", "n_train")}
        | audited_run.mechanism_row(cell)
        | {
            "n_parameters": models.n_parameters(model),
            "expected_batch_size": audited_run.expected_batch_size(cell),
            "mean_batch_size": float(batch_sizes.mean()),
            "test_accuracy": models.accuracy(
                model,
                models.normalise(dataset.test_images),
                torch.from_numpy(np.array(dataset.test_labels)),
            ),
        }
    )
    return [
        common
        | {"score": name}
        | audited_run.audit_row(cell, score, planted.included, streams.generator("ties"))
        for name, score in planted.scores().items()
    ]


# --------------------------------------------------------------------- from parameters to cells


def settings(session) -> dict[str, dict]:
    """What distinguishes the two settings: images, sampling rate, steps, runs."""
    p, n_available = session.p, len(session.dataset.train_images)
    few = {
        "n_train": p.n_train,
        "sampling_rate": p.sampling_rate,
        "steps": p.steps,
        "n_runs": p.n_runs,
    }
    every = {
        "n_train": n_available,
        "sampling_rate": p.all_sampling_rate,
        "steps": p.all_steps,
        "n_runs": p.all_n_runs,
    }
    return {FEW: few} | ({ALL: every} if p.all_n_runs else {})


def plan_cells(session) -> list[dict]:
    """One cell for each mechanism that is audited."""
    p = session.p
    mechanisms = dict.fromkeys(
        (setting["sampling_rate"], setting["steps"]) for setting in settings(session).values()
    )
    return [
        {
            "epsilon": epsilon,
            "delta": p.delta,
            "sampling_rate": sampling_rate,
            "steps": steps,
            "significance": p.significance,
            "n_canaries": p.n_canaries,
            "n_positive": _planned(p.n_positive, i),
            "n_negative": _planned(p.n_negative, i),
            "n_simulations": p.n_simulations,
        }
        for sampling_rate, steps in mechanisms
        for i, epsilon in enumerate(p.epsilons)
    ]


def check_headline_sizes(session) -> None:
    """:func:`check_sizes` of the headline runs."""
    p = session.p
    check_sizes(session, n_canaries={"n_canaries": p.n_canaries}, n_train={"n_train": p.n_train})


def check_sizes(session, **sizes: dict[str, int]) -> None:
    """Refuse more canaries than coordinates or more images than there are.

    Args:
        session: parameters and dataset.
        sizes: ``n_canaries`` and ``n_train``, each {parameter's name: its largest value}.

    Raises:
        WorkbookError: naming the parameter.
    """
    from lib import models

    p, dataset = session.p, session.dataset
    shape, n_classes = dataset.train_images.shape[1:], len(dataset.class_names)
    network = models.build(p.network, shape, n_classes, np.random.SeedSequence(0))
    limits = {
        "n_canaries": (models.n_parameters(network), f"the parameters of {p.network} on"),
        "n_train": (len(dataset.train_images), "the training images of"),
    }
    for kind, named in sizes.items():
        most, of_what = limits[kind]
        for name, value in named.items():
            if value > most:
                raise WorkbookError(
                    f"{name} = {value}; allowed: at most {most}, {of_what} {p.dataset}"
                )


def ceiling_cells(session) -> list[dict]:
    """One cell for each plan."""
    return session.tables["plans"].drop(columns="counts_from").to_dict("records")


def white_box_cells(session) -> list[dict]:
    """One cell for each training run."""
    p, plans = session.p, session.tables["plans"]
    cells = []
    for name, setting in settings(session).items():
        same = (plans["sampling_rate"] == setting["sampling_rate"]) & (
            plans["steps"] == setting["steps"]
        )
        for cell in plans[same].drop(columns=["counts_from", "n_simulations"]).to_dict("records"):
            cells += [
                cell
                | {
                    "setting": name,
                    "run": run,
                    "n_train": setting["n_train"],
                    "network": p.network,
                    "clip_norm": p.clip_norm,
                    "learning_rate": p.learning_rate,
                    "device": p.device,
                }
                for run in range(setting["n_runs"])
            ]
    return cells


def _planned(counts: str | list[int], i: int) -> int | None:
    return None if counts == "simulated" else counts[i]


def check_guess_counts(p: SimpleNamespace) -> None:
    """Refuse counts that are not one for each ε, or that exceed the canaries.

    Raises:
        WorkbookError: naming the parameter.
    """
    for name in ("n_positive", "n_negative"):
        counts = getattr(p, name)
        if counts != "simulated" and len(counts) != len(p.epsilons):
            raise WorkbookError(
                f"{name} = {counts}; allowed: 'simulated', or {len(p.epsilons)} counts, one for "
                f"each of epsilons = {p.epsilons}"
            )
    for i in range(len(p.epsilons)):
        one_run.check_guesses(
            n_canaries=p.n_canaries,
            n_positive=_planned(p.n_positive, i) or 0,
            n_negative=_planned(p.n_negative, i) or 0,
        )


RULES = (check_guess_counts,)
DATA_RULES = (check_headline_sizes,)


# ------------------------------------------------------------------------------------ tables


TABLES = {
    "plans": Table(
        fields=(
            *MECHANISM_FIELDS,
            SIGNIFICANCE,
            Field("n_canaries", "integer", "", "canaries m", minimum=1),
            *GUESS_FIELDS,
            Field("n_simulations", "integer", "", "simulated audits", minimum=2),
            Field("counts_from", "string", "", "what settled the counts: simulation or parameters"),
        ),
        key=("epsilon", "sampling_rate", "steps"),
        meaning="one mechanism, with what was settled before any run",
    ),
    "ceiling": Table(
        fields=(
            *MECHANISM_FIELDS,
            Field("simulation", "integer", "", "number of the simulation", minimum=0),
            *AUDIT_FIELDS,
        ),
        key=("epsilon", "sampling_rate", "steps", "simulation"),
        meaning="one audit of the idealised mechanism: one coordinate a canary, no interference",
        claims=BOUND_BELOW_TRUTH,
    ),
    "audits": Table(
        fields=(
            Field("setting", "string", "", "few images or all images"),
            Field("run", "integer", "", "number of the training run at this ε", minimum=0),
            Field("network", "string", "", "network"),
            Field("n_train", "integer", "", "ordinary training images", minimum=1),
            *MECHANISM_FIELDS,
            Field("n_parameters", "integer", "", "parameters of the network", minimum=1),
            Field(
                "expected_batch_size",
                "number",
                "images",
                "public number that every released gradient is divided by",
                minimum=0,
            ),
            Field("mean_batch_size", "number", "images", "ordinary images a step", minimum=0),
            Field(
                "test_accuracy", "number", "", "accuracy on the test images", minimum=0, maximum=1
            ),
            Field("score", "string", "", "how canaries were scored"),
            *AUDIT_FIELDS,
        ),
        key=("setting", "epsilon", "run", "score"),
        meaning="one audit: one training run seen through one score",
        claims=BOUND_BELOW_TRUTH,
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def ceiling_summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Ceilings by mechanism: mean, scatter and middle 95 % of the simulated audits."""
    mechanisms = tables["ceiling"].groupby(["sampling_rate", "steps", "epsilon"], sort=False)
    bounds = mechanisms["epsilon_lower_bound"]
    named = {"audits": bounds.size(), "mean bound": bounds.mean(), "scatter": bounds.std()}
    named |= {f"{share:.1%}": bounds.quantile(share) for share in (0.025, 0.975)}
    return pd.DataFrame(named).reset_index()


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Headline bounds by setting and ε: mean with its 95 % interval, ceiling, share of it."""
    audits, ceilings = tables["audits"], tables["ceiling"]
    rows = []
    headline = audits[audits["score"] == canaries.BEST_SCORE]
    for (setting, epsilon), runs in headline.groupby(["setting", "epsilon"], sort=False):
        simulated = _ceiling_of(ceilings, runs)
        mean, low, high = intervals.mean_interval(runs["epsilon_lower_bound"], simulated)
        best = simulated.mean()
        rows.append(
            {
                "setting": setting,
                "ε": epsilon,
                "paper": PAPER_BOUNDS.get(epsilon, np.nan),
                "bound": mean,
                "low": max(low, 0.0),
                "high": high,
                "ceiling": best,
                "of ceiling": mean / best if best > 0 else np.nan,
                "runs": len(runs),
                "guesses": int(runs["n_guesses"].iloc[0]),
                "accuracy": runs["test_accuracy"].mean(),
            }
        )
    return pd.DataFrame(rows)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Compare the paper's claims with the audits, by intervals; the rows of table ``verdicts``."""
    audits, ceilings = tables["audits"], tables["ceiling"]
    headline = audits[audits["score"] == canaries.BEST_SCORE]
    few = headline[headline["setting"] == FEW]
    rows = [
        _bound_verdict(epsilon, paper, few[few["epsilon"] == epsilon], ceilings)
        for epsilon, paper in PAPER_BOUNDS.items()
        if (few["epsilon"] == epsilon).any()
    ]
    shares = {
        setting: share
        for setting, runs in headline.groupby("setting", sort=False)
        if (share := share_of_ceiling(_with_ceilings(runs, ceilings))) is not None
    }
    sizes = headline.groupby("setting")["n_train"].first()
    rows += [
        ceiling_verdict(f"{setting} ({sizes[setting]:,})", *share)
        for setting, share in shares.items()
    ]
    if len(shares) == 2:
        rows.append(_more_images_verdict(shares))
    return rows


def _bound_verdict(epsilon, paper, runs: pd.DataFrame, ceilings: pd.DataFrame) -> dict:
    interval = intervals.prediction_interval(
        runs["epsilon_lower_bound"], _ceiling_of(ceilings, runs)
    )
    ours, low, high = interval
    if low - PAPER_ROUNDING <= paper <= high + PAPER_ROUNDING:
        verdict = "agrees"
    else:
        verdict = "differs: ours is " + ("tighter" if ours > paper else "looser")
    return verdict_row(
        f"white-box bound at ε = {epsilon:g}, {runs['n_train'].iloc[0]:,} images",
        f"{paper:g}",
        interval,
        verdict,
        f"mean of {len(runs)} runs, and where one more would fall (the paper's is one, rounded to "
        f"± {PAPER_ROUNDING:g}), by the scatter of the simulated audits",
    )


def ceiling_verdict(setting: str, share: float, variance: float, *, over: str = "ε") -> dict:
    """Hold a share of the ceiling against what an audit should reach; a row of ``verdicts``."""
    interval = intervals.normal_interval(share, variance)
    if interval[1] >= ENOUGH:
        verdict = f"at least {ENOUGH:.0%}"
    else:
        verdict = f"below {ENOUGH:.0%}" if interval[2] < ENOUGH else "not distinguishable"
    return verdict_row(
        f"share of the ceiling, {setting}",
        "none given",
        interval,
        verdict,
        f"mean bound over mean ceiling at the same guesses, mean over {over}; held against "
        f"{ENOUGH:.0%}",
    )


def _more_images_verdict(shares: dict[str, tuple[float, float]]) -> dict:
    (few, few_variance), (every, every_variance) = shares[FEW], shares[ALL]
    interval = intervals.normal_interval(every - few, few_variance + every_variance)
    _, low, high = interval
    if low > 0 or high < 0:
        verdict = "differs: the share changes"
    else:
        verdict = "agrees" if high - low <= 2 * ALIKE else "not distinguishable"
    return verdict_row(
        "more ordinary images change the share of the ceiling",
        "no",
        interval,
        verdict,
        f"share with all images less share with few; agreement wants it known to ± {ALIKE:g}",
    )


def _ceiling_of(ceilings: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Simulated bounds of the mechanism that ``runs`` (all of one mechanism) used."""
    same = np.logical_and.reduce(
        [ceilings[name] == runs[name].iloc[0] for name in ("epsilon", "sampling_rate", "steps")]
    )
    return ceilings.loc[same, "epsilon_lower_bound"]


def share_of_ceiling(pairs: list[tuple[pd.Series, pd.Series]]) -> tuple[float, float] | None:
    """Mean of mean bound over mean ceiling, with its variance; None if all ceilings are 0.

    Runs and simulations scatter alike, and both means are of finitely many.

    Args:
        pairs: bounds of the runs and of the simulated audits, for each of several mechanisms.
    """
    shares, variances = [], []
    for bounds, simulated in pairs:
        best = simulated.mean()
        if best > 0:
            share = bounds.mean() / best
            shares.append(share)
            relative = simulated.var() / best**2
            variances.append(relative * (1 / len(bounds) + share**2 / len(simulated)))
    if not shares:
        return None
    return float(np.mean(shares)), float(np.sum(variances)) / len(shares) ** 2


def _with_ceilings(runs: pd.DataFrame, ceilings: pd.DataFrame) -> list:
    return [
        (group["epsilon_lower_bound"], _ceiling_of(ceilings, group))
        for _, group in runs.groupby("epsilon")
    ]


# ----------------------------------------------------------------------------------- figures


def draw_bounds(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Lower bound against theoretical ε: runs, their mean, the ceiling, the paper's values."""
    audits, ceilings = tables["audits"], tables["ceiling"]
    headline = audits[audits["score"] == canaries.BEST_SCORE]
    names = list(headline["setting"].unique())
    figure, axes = figures.new_figure(1, len(names), height=3.6, share_x=True, share_y=True)
    for ax, name in zip(np.atleast_1d(axes), names, strict=True):
        runs = headline[headline["setting"] == name]
        draw_ceiling(ax, {e: _ceiling_of(ceilings, at) for e, at in runs.groupby("epsilon")})
        ax.plot(
            runs["epsilon"],
            runs["epsilon_lower_bound"],
            linestyle="none",
            marker="_",
            markersize=9,
            color=figures.COLOURS[1],
            label="one run, 95 % lower bound",
        )
        means = runs.groupby("epsilon")["epsilon_lower_bound"].mean()
        solid = figures.series(1) | {"linestyle": "-"}
        ax.plot(means.index, means, label="mean of runs", **solid)
        largest = runs["epsilon"].max()
        ax.plot([0, largest], [0, largest], color="grey", linewidth=1, label="truth (bound = ε)")
        paper = {e: bound for e, bound in PAPER_BOUNDS.items() if e in set(runs["epsilon"])}
        figures.paper_value(ax, list(paper), list(paper.values()), label="paper (CIFAR-10)")
        first = runs.iloc[0]
        ax.set_title(
            f"{name} ({first['n_train']:,}), q = {first['sampling_rate']:g}, T = {first['steps']}"
        )
        ax.set_xlabel(f"theoretical ε (nats) at δ = {first['delta']:g}")
    np.atleast_1d(axes)[0].set_ylabel("lower bound on ε (nats)")
    np.atleast_1d(axes)[0].legend(loc="upper left")
    return figure


def draw_ceiling(ax, simulated: dict[float, pd.Series]) -> None:
    """The middle 95 % and the mean of simulated audits.

    Args:
        ax: axes.
        simulated: where along the axis → bounds of the simulated audits.
    """
    x, bounds = list(simulated), simulated.values()
    figures.band(
        ax,
        x,
        [each.quantile(0.025) for each in bounds],
        [each.quantile(0.975) for each in bounds],
        index=0,
        label="ceiling, 95 % of single audits",
    )
    dotted = {"color": figures.BLACK, "linestyle": (0, (1, 1))}
    ax.plot(x, [each.mean() for each in bounds], label="ceiling, mean", **dotted)


def draw_scores(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Lower bound for each of the four scores on the same runs."""
    audits = tables["audits"]
    names = list(audits["setting"].unique())
    figure, axes = figures.new_figure(1, len(names), height=3.2, share_y=True)
    for ax, name in zip(np.atleast_1d(axes), names, strict=True):
        runs = audits[audits["setting"] == name]
        epsilons = sorted(runs["epsilon"].unique())
        for i, score in enumerate(canaries.SCORES):
            bounds = runs[runs["score"] == score]
            x = bounds["epsilon"].map(epsilons.index) + 0.18 * (i - 1.5)
            style = figures.series(i) | {"linestyle": "none", "markerfacecolor": "none"}
            ax.plot(x, bounds["epsilon_lower_bound"], label=score.replace("_", " "), **style)
        ax.set_xticks(range(len(epsilons)), [f"{epsilon:g}" for epsilon in epsilons])
        first = runs.iloc[0]
        ax.set_title(f"{name} ({first['n_train']:,}), q = {first['sampling_rate']:g}")
        ax.set_xlabel(f"theoretical ε (nats) at δ = {first['delta']:g}")
    np.atleast_1d(axes)[0].set_ylabel("lower bound on ε (nats)")
    figures.start_at_zero(axes)
    np.atleast_1d(axes)[0].legend(loc="upper left", title="score", alignment="left")
    return figure


FIGURES = {
    "bounds": Figure(
        draw_bounds,
        tables=("audits", "ceiling"),
        title="Lower bound on ε from one training run",
        alternative_text=(
            "Lower bounds on ε against the theoretical ε, one panel a setting: single runs, their "
            "mean, the simulated ceiling with its band, the line where bound and truth are equal, "
            "and the paper's four values as stars."
        ),
    ),
    "scores": Figure(
        draw_scores,
        tables=("audits",),
        title="What a score is worth",
        alternative_text=(
            "Lower bounds on ε for four ways to score the canaries, side by side at each "
            "theoretical ε, one panel a setting, one marker a run."
        ),
    ),
}
