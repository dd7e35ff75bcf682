"""Study 01, white-box sweeps: what the bound depends on, one thing varied at a time.

The number of canaries m, the number of ordinary training images, and the number of steps T at
constant ε: each once with full batches (q = 1) and once with subsampling, every score side by side
and beside the ceiling of the same mechanism at the same guesses. Steinke et al. (arXiv:2305.08846,
Section 6) find that images and steps do not matter; for q < 1 theory says that steps do.

Cells are those of :mod:`lib.one_run_white_box`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import NullFormatter
from scipy import stats

from lib import canaries, figures
from lib import one_run_white_box as white_box
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import BOUND_BELOW_TRUTH, verdict_row
from lib.tables import Table

CANARIES, IMAGES, STEPS = "canaries", "images", "steps"
VARIED = {CANARIES: "n_canaries", IMAGES: "n_train", STEPS: "steps"}
AXIS = {CANARIES: "canaries m", IMAGES: "ordinary images", STEPS: "steps T, at constant ε"}
# A trend flatter than this, in shares of the mean bound from one end to the other, is none.
FLAT = 0.1

PARAMETERS = {
    "sweep_epsilon": Parameter("float", "theoretical ε of the sweeps", above=0, maximum=100),
    "sweep_sampling_rate": Parameter(
        "float", "q of the subsampled half of the runs; the other has q = 1", above=0, below=1
    ),
    "sweep_n_canaries": Parameter("ints", "canaries m to try", minimum=1),
    "sweep_n_train": Parameter("ints", "numbers of ordinary images to try", minimum=1),
    "sweep_steps": Parameter("ints", "steps T to try", minimum=1),
    "sweep_base": Parameter(
        "ints", "canaries, images and steps where they do not vary", minimum=1, distinct=False
    ),
    "sweep_runs": Parameter("int", "training runs for each point of a sweep", minimum=1),
}


def check_base(p) -> None:
    """Refuse a base point that is not three numbers.

    Raises:
        WorkbookError: naming the parameter.
    """
    if len(p.sweep_base) != len(VARIED):
        raise WorkbookError(
            f"sweep_base = {p.sweep_base}; allowed: three numbers, canaries, images and steps"
        )


def check_sizes(session) -> None:
    """Refuse more canaries than coordinates or more images than there are.

    Raises:
        WorkbookError: naming the parameter.
    """
    p = session.p
    white_box.check_sizes(
        session,
        n_canaries={"sweep_n_canaries": max(p.sweep_n_canaries), "sweep_base": p.sweep_base[0]},
        n_train={"sweep_n_train": max(p.sweep_n_train), "sweep_base": p.sweep_base[1]},
    )


RULES = (check_base,)
DATA_RULES = (check_sizes,)


# --------------------------------------------------------------------- from parameters to cells


def points(p) -> list[dict]:
    """Every point of every sweep: which sweep, m, images, T and q."""
    base = dict(zip(VARIED.values(), p.sweep_base, strict=True))
    values = {CANARIES: p.sweep_n_canaries, IMAGES: p.sweep_n_train, STEPS: p.sweep_steps}
    return [
        {"sweep": sweep} | base | {VARIED[sweep]: value, "sampling_rate": rate}
        for sweep in VARIED
        for rate in (1.0, p.sweep_sampling_rate)
        for value in values[sweep]
    ]


def plan_cells(session) -> list[dict]:
    """One cell for each mechanism: noise and numbers of guesses, from simulations alone."""
    p = session.p
    mechanisms = dict.fromkeys(
        (point["n_canaries"], point["sampling_rate"], point["steps"]) for point in points(p)
    )
    return [
        {
            "epsilon": p.sweep_epsilon,
            "delta": p.delta,
            "sampling_rate": sampling_rate,
            "steps": steps,
            "significance": p.significance,
            "n_canaries": n_canaries,
            "n_positive": None,
            "n_negative": None,
            "n_simulations": p.n_simulations,
        }
        for n_canaries, sampling_rate, steps in mechanisms
    ]


def ceiling_cells(session) -> list[dict]:
    """One cell for each plan."""
    return session.tables["sweep_plans"].drop(columns="counts_from").to_dict("records")


def audit_cells(session) -> list[dict]:
    """One cell for each training run."""
    p, plans = session.p, session.tables["sweep_plans"]
    planned = {
        (row["n_canaries"], row["sampling_rate"], row["steps"]): row
        for row in plans.drop(columns=["counts_from", "n_simulations"]).to_dict("records")
    }
    return [
        planned[point["n_canaries"], point["sampling_rate"], point["steps"]]
        | {
            "setting": point["sweep"],
            "run": run,
            "n_train": point["n_train"],
            "network": p.network,
            "clip_norm": p.clip_norm,
            "learning_rate": p.learning_rate,
            "device": p.device,
        }
        for point in points(p)
        for run in range(p.sweep_runs)
    ]


# ------------------------------------------------------------------------------------ tables

_POINT = ("epsilon", "sampling_rate", "steps", "n_canaries")

TABLES = {
    "sweep_plans": Table(
        fields=white_box.TABLES["plans"].fields,
        key=_POINT,
        meaning="one mechanism of the sweeps, with what was settled before any run",
    ),
    "sweep_ceiling": Table(
        fields=white_box.TABLES["ceiling"].fields,
        key=(*_POINT, "simulation"),
        meaning="one audit of the idealised mechanism, for the sweeps",
        claims=BOUND_BELOW_TRUTH,
    ),
    "sweeps": Table(
        fields=white_box.TABLES["audits"].fields,
        key=("setting", *_POINT, "n_train", "run", "score"),
        meaning="one audit of a sweep: one training run seen through one score; the setting is "
        "what varies",
        claims=BOUND_BELOW_TRUTH,
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Headline bounds by sweep, q and value: their mean, and the ceiling's."""
    rows = []
    for (sweep, rate), runs in _headline(tables).groupby(["setting", "sampling_rate"], sort=False):
        for value, at in runs.groupby(VARIED[sweep]):
            ceiling = _ceiling_of(tables["sweep_ceiling"], at)
            rows.append(
                {
                    "sweep": sweep,
                    "q": rate,
                    "value": value,
                    "bound": at["epsilon_lower_bound"].mean(),
                    "ceiling": ceiling.mean(),
                    "guesses": int(at["n_guesses"].iloc[0]),
                    "runs": len(at),
                    "accuracy": at["test_accuracy"].mean(),
                }
            )
    return pd.DataFrame(rows)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Whether canaries, images and steps matter, by the slope of the bound on their logarithm."""
    rows = []
    headline = _headline(tables)
    for (sweep, rate), runs in headline.groupby(["setting", "sampling_rate"], sort=False):
        if runs[VARIED[sweep]].nunique() > 1:
            rows.append(_trend_verdict(sweep, rate, runs, tables["sweep_ceiling"]))
    rows.append(_share_verdict(headline, tables["sweep_ceiling"]))
    return rows


def _trend_verdict(sweep: str, rate: float, runs: pd.DataFrame, ceilings: pd.DataFrame) -> dict:
    """Relative change of the bound from one end of a sweep to the other, against the paper's."""
    change, low, high = relative_change(runs, VARIED[sweep], ceilings)
    paper = {CANARIES: "grows", IMAGES: "no change", STEPS: "no change"}[sweep]
    if low > FLAT or high < -FLAT:
        seen = "grows" if change > 0 else "falls"
    else:
        seen = "no change" if max(-low, high) <= FLAT else "not distinguishable"
    if seen == paper:
        verdict = "agrees"
    elif seen == "not distinguishable":
        verdict = seen
    elif sweep == STEPS and rate < 1:
        verdict = f"differs: {seen}; for q < 1 the ceiling moves with T"
    else:
        verdict = f"differs: {seen}"
    smallest, largest = runs[VARIED[sweep]].min(), runs[VARIED[sweep]].max()
    return verdict_row(
        f"white-box bound over {AXIS[sweep]}, {smallest:,} to {largest:,}, q = {rate:g}",
        paper,
        (change, low, high),
        verdict,
        f"change from first to last value in shares of the mean bound, by the slope on the "
        f"logarithm; between −{FLAT:g} and {FLAT:g} is no change",
    )


def relative_change(
    runs: pd.DataFrame, varied: str, ceilings: pd.DataFrame
) -> tuple[float, float, float]:
    """Change of the mean bound over a sweep, in shares of its mean, with a 95 % interval.

    Least squares on the logarithm of what varies. A run's scatter is that of the simulated audits
    at the same point, as everywhere: few discrete bounds can be equal by chance.

    Args:
        runs: one row a run.
        varied: the column that varies.
        ceilings: simulated audits.

    Returns:
        Slope times the range of the logarithm over the mean bound, lower and upper end. Zero where
        every bound is zero.
    """
    x = np.log(runs[varied].to_numpy(float))
    bounds = runs["epsilon_lower_bound"].to_numpy()
    if not bounds.any():
        return 0.0, 0.0, 0.0
    variances = runs[varied].map(
        {
            value: _ceiling_of(ceilings, at).var(ddof=1)
            for value, at in runs.groupby(varied, sort=False)
        }
    )
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    scale = np.ptp(x) / bounds.mean()
    half = stats.norm.ppf(0.975) * scale * np.sqrt(weights**2 @ variances.to_numpy(float))
    change = float(scale * (weights @ bounds))
    return change, change - half, change + half


def _share_verdict(headline: pd.DataFrame, ceilings: pd.DataFrame) -> dict:
    by_point = headline.groupby(["setting", "n_train", *_POINT], sort=False)
    pairs = [(at["epsilon_lower_bound"], _ceiling_of(ceilings, at)) for _, at in by_point]
    share = white_box.share_of_ceiling(pairs) or (0.0, 0.0)
    return white_box.ceiling_verdict("sweeps", *share, over="points")


def _headline(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    return tables["sweeps"][tables["sweeps"]["score"] == canaries.BEST_SCORE]


def _ceiling_of(ceilings: pd.DataFrame, runs: pd.DataFrame) -> pd.Series:
    """Simulated bounds of the mechanism that ``runs`` (all of one) used."""
    same = np.logical_and.reduce([ceilings[name] == runs[name].iloc[0] for name in _POINT])
    return ceilings.loc[same, "epsilon_lower_bound"]


# ----------------------------------------------------------------------------------- figures


def draw_sweeps(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Bound over canaries, images and steps; a row for each sampling rate, a line a score."""
    sweeps, ceilings = tables["sweeps"], tables["sweep_ceiling"]
    rates = sorted(sweeps["sampling_rate"].unique(), reverse=True)
    figure, axes = figures.new_figure(len(rates), len(VARIED), height=5.2, share_y=True)
    axes = np.reshape(axes, (len(rates), len(VARIED)))
    for row, rate in zip(axes, rates, strict=True):
        for ax, sweep in zip(row, VARIED, strict=True):
            runs = sweeps[(sweeps["sampling_rate"] == rate) & (sweeps["setting"] == sweep)]
            _draw_sweep(ax, runs, VARIED[sweep], ceilings)
            ax.set_title(f"q = {rate:g}, {sweep} vary")
            ax.set_xlabel(AXIS[sweep])
        row[0].set_ylabel("lower bound on ε (nats)")
    figures.start_at_zero(axes)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return figure


def _draw_sweep(ax, runs: pd.DataFrame, varied: str, ceilings: pd.DataFrame) -> None:
    headline = runs[runs["score"] == canaries.BEST_SCORE]
    white_box.draw_ceiling(
        ax, {value: _ceiling_of(ceilings, at) for value, at in headline.groupby(varied)}
    )
    for i, score in enumerate(canaries.SCORES):
        of_score = runs[runs["score"] == score]
        means = of_score.groupby(varied)["epsilon_lower_bound"].mean()
        style = figures.series(i) | {"markerfacecolor": "none", "linewidth": 1.1}
        ax.plot(means.index, means, label=score.replace("_", " "), **style)
    ax.axhline(headline["theoretical_epsilon"].max(), color="grey", linewidth=1, label="truth")
    ax.set_xscale("log")
    ax.xaxis.set_minor_formatter(NullFormatter())


FIGURES = {
    "sweeps": Figure(
        draw_sweeps,
        tables=("sweeps", "sweep_ceiling"),
        title="What the bound depends on",
        alternative_text=(
            "Lower bounds on ε over the number of canaries, of ordinary images and of steps, in "
            "three columns; full batches above, subsampled ones below. A line for each of four "
            "scores, the simulated ceiling dotted with its band, the truth as a grey line."
        ),
    ),
}
