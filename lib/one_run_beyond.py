"""Study 01, beyond the paper: what more one run can say, and what it saves.

Two questions about the same training runs. Held against a whole trade-off curve instead of one
(ε, δ), how much more do the same guesses say (Mahloujifar, Melis, Chaudhuri, arXiv:2410.22235)?
And how many training runs would the audit that one run replaces have needed for as much (two
neighbouring training sets, Clopper and Pearson's limits on the errors)?

The mechanisms are those of the sweeps' base point, at every ε. A figure from a curve is ε(δ) of the
smallest unrefuted member *of a named family*. Both families here contain what is audited: Gaussians
that of full batches, subsampled Gaussians the other.
"""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure
from scipy import special

from lib import audited_run, canaries, figures, intervals, one_run, trade_off
from lib import one_run_white_box as white_box
from lib.errors import WorkbookError
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import (
    AUDIT_FIELDS,
    BOUND_BELOW_TRUTH,
    MECHANISM_FIELDS,
    SIGNIFICANCE,
    two_sets_fields,
    verdict_row,
)
from lib.tables import Field, Table

TRAINING, IDEALISED = "training", "idealised"
BY_GAUSSIANS, BY_SUBSAMPLED = "gaussian_epsilon", "subsampled_epsilon"
# Bounds from the same guesses: column, and its name in a figure.
METHODS = {
    "epsilon_lower_bound": "one (ε, δ), Theorem 5.2",
    BY_GAUSSIANS: "Gaussian curves",
    BY_SUBSAMPLED: "curves of DP-SGD with the same q and T",
}
_COUNTS = ("n_canaries", "n_guesses", "n_correct", "delta", "significance", "guesses")
# Of ``trade_off.smallest_unrefuted_epsilon``, as verification recomputes it.
CURVES = {
    BY_GAUSSIANS: {
        "columns": {name: name for name in _COUNTS},
        "constants": {"family_name": trade_off.Gaussian.name},
    },
    BY_SUBSAMPLED: {
        "columns": {name: name for name in (*_COUNTS, "steps")} | {"sampling_rate": "family_rate"},
        "constants": {"family_name": trade_off.SubsampledGaussian.name},
    },
}
# What an honest audit of full batches reaches with 200 to 800 guesses, by a simulation of others.
EXPECTED_AT = {"epsilon": 8.0, "n_canaries": 10_000}
EXPECTED = {"epsilon_lower_bound": 3.5, BY_GAUSSIANS: 4.5}

PARAMETERS = {
    "curve_n_guesses": Parameter("ints", "numbers of guesses to audit with", minimum=2),
    "curve_runs": Parameter("int", "training runs for each mechanism", minimum=1),
    "curve_simulations": Parameter("int", "simulated audits for each mechanism", minimum=2),
    "many_n_runs": Parameter("ints", "numbers of runs of the many-run audit", minimum=2),
}


def check_curve_guesses(p) -> None:
    """Refuse more guesses than canaries, and odd numbers, which no two halves make.

    Raises:
        WorkbookError: naming the parameter.
    """
    n_canaries = p.sweep_base[0]
    if any(r % 2 or r > n_canaries for r in p.curve_n_guesses):
        raise WorkbookError(
            f"curve_n_guesses = {p.curve_n_guesses}; allowed: even numbers of at most "
            f"{n_canaries}, the canaries in sweep_base"
        )
    if any(n % 2 for n in p.many_n_runs):
        raise WorkbookError(
            f"many_n_runs = {p.many_n_runs}; allowed: even numbers, half on either training set"
        )


RULES = (check_curve_guesses,)


# ------------------------------------------------------------------------------------- cells


def curve_plan(cell: dict, streams, dataset: None) -> list[dict]:
    """The noise of one mechanism."""
    return [cell | audited_run.settle_noise(cell)]


def curve_audit(cell: dict, streams, dataset) -> list[dict]:
    """Train once and audit the same scores at every number of guesses by every method."""
    planted = audited_run.train_dirac(cell, streams, dataset)[1]
    score = planted.scores()[canaries.BEST_SCORE]
    ties = streams.generator("ties")
    return _curve_rows(cell, cell["run"], score, planted.included, ties)


def curve_ceiling(cell: dict, streams, dataset: None) -> list[dict]:
    """Audit the idealised mechanism in the same ways."""
    rows = []
    for number, (included, score) in enumerate(audited_run.simulations(cell, streams)):
        rng = streams.generator(f"ties {number}")
        rows += _curve_rows(cell, number, score, included, rng)
    return rows


def _curve_rows(cell: dict, number: int, score, included, rng) -> list[dict]:
    rows = []
    for n_guesses in cell["n_guesses"]:
        # Where members are rarely sampled a low score says little: all guesses are "in" then.
        n_negative = n_guesses // 2 if cell["sampling_rate"] == 1 else 0
        result = one_run.audit(
            score,
            included,
            n_positive=n_guesses - n_negative,
            n_negative=n_negative,
            delta=cell["delta"],
            significance=cell["significance"],
            rng=rng,
        )
        row = (
            {"number": number}
            | audited_run.mechanism_row(cell)
            | audited_run.counts_row(result)
            | {
                "guesses": "mixed" if n_negative else "positive",
                # Full batches have no subsampled family of their own.
                "family_rate": cell["sampling_rate"] if cell["sampling_rate"] < 1 else None,
            }
        )
        rows.append(
            row
            | {"epsilon_lower_bound": result.epsilon_lower_bound}
            | {name: _from_curves(row, name) for name in CURVES}
        )
    return rows


def _from_curves(row: dict, name: str) -> float | None:
    columns = {argument: row[column] for argument, column in CURVES[name]["columns"].items()}
    if None in columns.values():
        return None
    return _smallest_unrefuted_epsilon(**columns, **CURVES[name]["constants"])


# Simulated audits have the same counts again and again.
_smallest_unrefuted_epsilon = functools.cache(trade_off.smallest_unrefuted_epsilon)


def many_runs(cell: dict, streams, dataset: None) -> list[dict]:
    """Many-run audits of full-batch training, simulated: half of the runs hold one canary.

    The sum of T releases along the canary is N(0, Tσ²) without it and N(T, Tσ²) with it. Whoever
    sees it guesses "in" above a threshold that is settled before any run: of a grid, the one with
    the largest bound at the expected numbers of errors.
    """
    shift = np.sqrt(cell["steps"]) / cell["noise_multiplier"]
    grid = np.linspace(-4, shift + 4, 400)  # in standard deviations of the sum
    error = {"out": special.ndtr(-grid), "in": special.ndtr(grid - shift)}
    tested = {"delta": cell["delta"], "significance": cell["significance"]}
    rows = []
    for n_runs in cell["n_runs"]:
        n = n_runs // 2
        expected = one_run.epsilon_lower_bound_from_runs(
            n_first=n,
            n_wrong_first=np.rint(n * error["out"]).astype(int),
            n_second=n,
            n_wrong_second=np.rint(n * error["in"]).astype(int),
            **tested,
        )
        best = int(np.argmax(expected))
        rng = streams.generator(f"{n_runs} runs")
        for simulation in range(cell["n_simulations"]):
            counts = {
                "n_first": n,
                "n_wrong_first": int(rng.binomial(n, error["out"][best])),
                "n_second": n,
                "n_wrong_second": int(rng.binomial(n, error["in"][best])),
            }
            bound = one_run.epsilon_lower_bound_from_runs(**counts, **tested)
            rows.append(
                audited_run.mechanism_row(cell)
                | {"significance": cell["significance"], "n_runs": n_runs}
                | {"simulation": simulation, "threshold": float(grid[best])}
                | counts
                | {"epsilon_lower_bound": bound}
            )
    return rows


# --------------------------------------------------------------------- from parameters to cells


def plan_cells(session) -> list[dict]:
    """One cell for each mechanism: its noise; the numbers of guesses are parameters."""
    p = session.p
    return [
        {
            "epsilon": epsilon,
            "delta": p.delta,
            "sampling_rate": sampling_rate,
            "steps": p.sweep_base[2],
        }
        for sampling_rate in (1.0, p.sweep_sampling_rate)
        for epsilon in p.epsilons
    ]


def curve_audit_cells(session) -> list[dict]:
    """One cell for each training run."""
    p = session.p
    return [
        mechanism
        | {
            "run": run,
            "n_train": p.sweep_base[1],
            "network": p.network,
            "clip_norm": p.clip_norm,
            "learning_rate": p.learning_rate,
            "device": p.device,
        }
        for mechanism in _mechanisms(session)
        for run in range(p.curve_runs)
    ]


def curve_ceiling_cells(session) -> list[dict]:
    """One cell for each mechanism."""
    simulated = {"n_simulations": session.p.curve_simulations}
    return [mechanism | simulated for mechanism in _mechanisms(session)]


def many_run_cells(session) -> list[dict]:
    """One cell for each full-batch mechanism."""
    p = session.p
    audit = {"n_runs": p.many_n_runs, "n_simulations": p.n_simulations}
    plans = session.tables["curve_plans"]
    return [
        mechanism | {"significance": p.significance} | audit
        for mechanism in plans[plans["sampling_rate"] == 1].to_dict("records")
    ]


def _mechanisms(session) -> list[dict]:
    p = session.p
    audit = {
        "significance": p.significance,
        "n_canaries": p.sweep_base[0],
        "n_guesses": p.curve_n_guesses,
    }
    return [row | audit for row in session.tables["curve_plans"].to_dict("records")]


# ------------------------------------------------------------------------------------ tables


def _curve_field(name: str, meaning: str) -> Field:
    family_name = CURVES[name]["constants"]["family_name"]
    return Field(
        name,
        "number",
        "nats",
        f"ε(δ) of the smallest unrefuted member of the family {family_name}: {meaning}",
        required=False,
        minimum=0,
        recipe=CURVES[name]
        | {"function": "trade_off.smallest_unrefuted_epsilon", "tolerance": 1e-3},
    )


_CURVE_FIELDS = (
    _curve_field(BY_GAUSSIANS, "a bound on ε where batches are full, none where they are sampled"),
    _curve_field(BY_SUBSAMPLED, "DP-SGD of the row's q and T, σ varying; none at q = 1"),
)

_CURVE_AUDIT_FIELDS = (
    Field("number", "integer", "", "number of the run or simulation", minimum=0),
    *MECHANISM_FIELDS,
    *AUDIT_FIELDS[:-1],
    Field("guesses", "string", "", "mixed, or positive alone"),
    Field(
        "family_rate",
        "number",
        "",
        "q of the subsampled family; none for full batches",
        required=False,
        minimum=0,
        maximum=1,
    ),
    AUDIT_FIELDS[-1],
    *_CURVE_FIELDS,
)
_CURVE_CLAIMS = (
    *BOUND_BELOW_TRUTH,
    {"lower_bound": BY_SUBSAMPLED, "truth": "theoretical_epsilon"},
)

TABLES = {
    "curve_plans": Table(
        fields=MECHANISM_FIELDS,
        key=("sampling_rate", "epsilon"),
        meaning="one mechanism of the audits by curves",
    ),
    "curve_ceiling": Table(
        fields=_CURVE_AUDIT_FIELDS,
        key=("sampling_rate", "epsilon", "number", "n_guesses"),
        meaning="one simulated run of the idealised mechanism, audited with one number of guesses",
        claims=_CURVE_CLAIMS,
    ),
    "curve_audits": Table(
        fields=_CURVE_AUDIT_FIELDS,
        key=("sampling_rate", "epsilon", "number", "n_guesses"),
        meaning="one training run audited with one number of guesses",
        claims=_CURVE_CLAIMS,
    ),
    "many_runs": Table(
        fields=(
            *MECHANISM_FIELDS,
            SIGNIFICANCE,
            Field("n_runs", "integer", "", "training runs, half with the canary", minimum=2),
            Field("simulation", "integer", "", "number of the simulated audit", minimum=0),
            Field("threshold", "number", "standard deviations", "least sum taken for 'in'"),
            *two_sets_fields("without the canary", "with the canary"),
        ),
        key=("epsilon", "n_runs", "simulation"),
        meaning="one simulated audit from many training runs with at most one canary each",
        claims=BOUND_BELOW_TRUTH,
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Mean bounds of the training runs by mechanism, guesses and method, and the ceilings'."""
    rows = []
    for (rate, epsilon, n_guesses), group in _both(tables).groupby(
        ["sampling_rate", "epsilon", "n_guesses"], sort=False
    ):
        trained, simulated = (group[group["source"] == kind] for kind in (TRAINING, IDEALISED))
        row = {"q": rate, "ε": epsilon, "guesses": n_guesses, "runs": len(trained)}
        for name, label in METHODS.items():
            row[label] = trained[name].mean()
            row[f"{label}, ceiling"] = simulated[name].mean()
        rows.append(row)
    return pd.DataFrame(rows)


def _both(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Training runs and their idealisations in one table, column ``source`` telling which."""
    sources = {"curve_audits": TRAINING, "curve_ceiling": IDEALISED}
    return pd.concat([tables[name].assign(source=kind) for name, kind in sources.items()])


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """What curves add, and what one run saves."""
    audits = _both(tables)
    rows = []
    for rate, of_rate in audits.groupby("sampling_rate", sort=False):
        method = BY_GAUSSIANS if rate == 1 else BY_SUBSAMPLED
        rows += [_gain_verdict(of_rate, rate, method), _share_verdict(of_rate, rate, method)]
    rows += [_expected_verdict(audits, name) for name in EXPECTED]
    rows += [
        _saving_verdict(epsilon, at, audits)
        for epsilon, at in tables["many_runs"].groupby("epsilon")
    ]
    return [row for row in rows if row]


def _gain_verdict(audits: pd.DataFrame, rate: float, method: str) -> dict | None:
    """By how much a family's curves raise the bound of the same guesses, as a ratio of means."""
    trained = audits[audits["source"] == TRAINING]
    simulated = audits[audits["source"] == IDEALISED]
    mean = trained["epsilon_lower_bound"].mean()
    if not mean > 0:
        return None
    ratio = trained[method].mean() / mean

    def residual(rows):
        return rows[method] - ratio * rows["epsilon_lower_bound"]

    # A run's three numbers of guesses share their scores, so a run is the unit; and mechanisms
    # have means of their own, so scatter is taken within each.
    groups = ["epsilon", "number"]
    by_run = residual(simulated).groupby([simulated[name] for name in groups]).sum()
    variance = by_run.groupby("epsilon").var().sum() * trained["number"].nunique()
    interval = intervals.normal_interval(ratio, variance / (len(trained) * mean) ** 2)
    return verdict_row(
        f"what curves add to the same guesses, q = {rate:g}",
        "not tried",
        interval,
        "curves say more" if interval[1] > 1 else "not distinguishable",
        f"mean ε of the smallest unrefuted curve ({METHODS[method]}) over the mean of Theorem 5.2; "
        "a statement about that family only",
    )


def _share_verdict(audits: pd.DataFrame, rate: float, method: str) -> dict:
    pairs = []
    for _, group in audits.groupby("epsilon"):
        # One value a run: the mean over its numbers of guesses, which share its scores.
        means = group.groupby(["source", "number"])[method].mean()
        pairs.append((means[TRAINING], means[IDEALISED]))
    share = white_box.share_of_ceiling(pairs) or (0.0, 0.0)
    return white_box.ceiling_verdict(f"audits by curves, q = {rate:g}", *share)


def _expected_verdict(audits: pd.DataFrame, name: str) -> dict | None:
    at = (audits["sampling_rate"] == 1) & audits["n_guesses"].between(200, 800)
    for column, value in EXPECTED_AT.items():
        at &= audits[column] == value
    if not at.any():
        return None
    by_run = audits[at].groupby(["source", "number"])[name].mean()
    interval = intervals.mean_interval(by_run[TRAINING], by_run[IDEALISED])
    return verdict_row(
        f"full batch, ε = 8, m = 10,000, 200 to 800 guesses: {METHODS[name]}",
        f"none given; an honest audit reaches {EXPECTED[name]:g}",
        interval,
        "reached" if interval[0] >= EXPECTED[name] else "not reached",
        f"mean over guesses and {len(by_run[TRAINING])} runs",
    )


def _saving_verdict(epsilon: float, many: pd.DataFrame, audits: pd.DataFrame) -> dict:
    """Between which of the tried numbers of runs the many-run audit catches up with one run.

    The one run's mean bound has an interval of its own: too few runs are those whose mean stays
    below its lower end, enough those whose mean reaches its upper end.
    """
    full = audits[(audits["sampling_rate"] == 1) & (audits["epsilon"] == epsilon)]
    full = full[full["n_guesses"] == sorted(full["n_guesses"].unique())[_middle(full)]]
    trained, simulated = (
        full.loc[full["source"] == kind, "epsilon_lower_bound"] for kind in (TRAINING, IDEALISED)
    )
    best, low, high = intervals.mean_interval(trained, simulated)
    means = many.groupby("n_runs")["epsilon_lower_bound"].mean()
    too_few, enough = means.index[means < low], means.index[means >= high]
    parts = [f"more than {too_few.max():,}"] if len(too_few) else []
    parts += [f"at most {enough.min():,}"] if len(enough) else []
    return verdict_row(
        f"training runs that one run replaces, full batch, ε = {epsilon:g}",
        "many",
        (float(too_few.max()) if len(too_few) else 0.0, None, None),
        ", ".join(parts) or "not distinguishable",
        f"the largest tried number of runs whose mean bound (Clopper and Pearson) stays below the "
        f"one run's {best:.2f} ({low:.2f} to {high:.2f}); only {_listed(means.index)} were tried",
    )


def _listed(values) -> str:
    *most, last = (f"{value:,}" for value in values)
    return f"{', '.join(most)} and {last}" if most else last


def _middle(audits: pd.DataFrame) -> int:
    """Which number of guesses stands for a mechanism: the middle one, fixed beforehand."""
    return audits["n_guesses"].nunique() // 2


# ----------------------------------------------------------------------------------- figures


def draw_curves(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Bounds from the same guesses by method, training runs beside their ceiling."""
    audits = _both(tables)
    rates = list(audits["sampling_rate"].unique())
    figure, axes = figures.new_figure(1, len(rates), height=3.9, share_y=True)
    for ax, rate in zip(np.atleast_1d(axes), rates, strict=True):
        of_rate = audits[audits["sampling_rate"] == rate]
        n_guesses = sorted(of_rate["n_guesses"].unique())[_middle(of_rate)]
        of_rate = of_rate[of_rate["n_guesses"] == n_guesses]
        for i, (name, label) in enumerate(METHODS.items()):
            _draw_method(ax, of_rate.dropna(subset=name), name, i, label)
        largest = of_rate["epsilon"].max()
        ax.plot([0, largest], [0, largest], color="grey", linewidth=1, label="truth (bound = ε)")
        first = of_rate.iloc[0]
        kind = "half 'in'" if first["guesses"] == "mixed" else "all 'in'"
        ax.set_title(f"q = {rate:g}, T = {first['steps']}: {n_guesses} guesses, {kind}")
        ax.set_xlabel(f"theoretical ε (nats) at δ = {first['delta']:g}")
    np.atleast_1d(axes)[0].set_ylabel("largest refuted ε (nats)")
    handles, labels = np.atleast_1d(axes)[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _draw_method(ax, audits: pd.DataFrame, name: str, index: int, label: str) -> None:
    if audits.empty:
        return
    trained, simulated = (
        audits[audits["source"] == kind].groupby("epsilon")[name] for kind in (TRAINING, IDEALISED)
    )
    low, high = (simulated.quantile(share) for share in (0.025, 0.975))
    # One patch for all in the legend: each band lies around the line of its method.
    figures.band(
        ax, low.index, low, high, index=index, label=None if index else "ceiling of each, 95 %"
    )
    means = trained.mean()
    style = figures.series(index) | {"markerfacecolor": "none"}
    ax.plot(means.index, means, label=label, **style)


def draw_many_runs(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Bound against the number of training runs; the one-run audit at 1."""
    many, audits = tables["many_runs"], tables["curve_audits"]
    one = audits[audits["sampling_rate"] == 1]
    one = one[one["n_guesses"] == sorted(one["n_guesses"].unique())[_middle(one)]]
    figure, ax = figures.new_figure(height=3.8)
    for i, (epsilon, at) in enumerate(many.groupby("epsilon")):
        bounds = at.groupby("n_runs")["epsilon_lower_bound"]
        low, high = (bounds.quantile(share) for share in (0.025, 0.975))
        figures.band(ax, low.index, low, high, index=i)
        style = figures.series(i) | {"markerfacecolor": "none"}
        means = bounds.mean()
        ax.plot(means.index, means, label=f"ε = {epsilon:g}", **style)
        reached = one.loc[one["epsilon"] == epsilon, "epsilon_lower_bound"].mean()
        filled = figures.series(i) | {"linestyle": "none", "markersize": 8, "clip_on": False}
        ax.plot(1, reached, **filled)
        ax.axhline(reached, color=figures.COLOURS[i], linewidth=0.7, linestyle=":")
    ax.set_xscale("log")
    figures.start_at_zero(ax)
    ax.set_xlabel("training runs (at 1: one run with many canaries, filled)")
    ax.set_ylabel("lower bound on ε (nats)")
    figure.legend(loc="outside right upper", title="many runs, one canary", alignment="left")
    return figure


FIGURES = {
    "curves": Figure(
        draw_curves,
        tables=("curve_audits", "curve_ceiling"),
        title="The same guesses against a whole curve",
        alternative_text=(
            "Largest refuted ε against the theoretical ε, full batches left and subsampled ones "
            "right: one (ε, δ) at a time, Gaussian curves, and curves of DP-SGD with the same q "
            "and T, each with a band for its ceiling, and the line where bound and truth are equal."
        ),
    ),
    "many_runs": Figure(
        draw_many_runs,
        tables=("many_runs", "curve_audits"),
        title="What one run saves",
        alternative_text=(
            "Lower bounds on ε of the many-run audit against its number of training runs, a line "
            "with a band for each theoretical ε; filled markers at one run and dotted lines show "
            "what the audit of one run with many canaries gives."
        ),
    ),
}
