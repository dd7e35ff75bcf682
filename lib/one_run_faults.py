"""Study 01, the audit as a test: which faulty implementations of DP-SGD an audit sees.

Cells are those of :mod:`lib.faults`, which has the faults, their trainer and their auditor.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as MatplotlibFigure

from lib import faults, figures, intervals
from lib.parameters import Parameter
from lib.results import Figure
from lib.study_tables import (
    COUNT_FIELDS,
    DELTA,
    LOWER_BOUND,
    SIGNIFICANCE,
    two_sets_fields,
    verdict_row,
)
from lib.tables import Field, Table

# Right 95 % bounds of 100 honest runs: more than this many false ones come once in 1,000 times.
MOST_FALSE_ALARMS, OF_RUNS = 13, 100

PARAMETERS = {
    "fault_right_runs": Parameter("int", "runs of the right implementation", minimum=1),
    "fault_wrong_runs": Parameter("int", "runs of every faulty implementation", minimum=1),
    "fault_pairs": Parameter(
        "int", "audits by two training sets, of the right implementation and of a fault", minimum=1
    ),
}
RULES = ()


def run_cells(session) -> list[dict]:
    """One cell for each training run with many canaries."""
    p = session.p
    return faults.one_run_cells(n_right=p.fault_right_runs, n_wrong=p.fault_wrong_runs)


def pair_cells(session) -> list[dict]:
    """One cell for each audit by many runs on two training sets."""
    p = session.p
    return faults.pair_cells(n_right=p.fault_pairs, n_wrong=p.fault_pairs)


# ------------------------------------------------------------------------------------ tables

_CLAIM_FIELDS = (
    Field("fault", "string", "", "what is wrong with the implementation; 'none' if nothing"),
    Field("test", "string", "", "the fault that the test is for"),
    Field("run", "integer", "", "number of the audit", minimum=0),
    Field("clip_norm", "number", "", "clip norm C", minimum=0),
    Field("n_ordinary", "integer", "", "ordinary training images", minimum=1),
    Field("noise_multiplier", "number", "clip norms", "σ that is claimed", minimum=0),
    DELTA,
    Field("sampling_rate", "number", "", "q that is claimed", minimum=0, maximum=1),
    Field("steps", "integer", "", "steps T", minimum=1),
    Field(
        "claimed_epsilon",
        "number",
        "nats",
        "ε of a right implementation at δ",
        minimum=0,
        recipe={
            "function": "accounting.epsilon_of_rows",
            "columns": {
                name: name for name in ("noise_multiplier", "delta", "sampling_rate", "steps")
            },
        },
    ),
    # Missing where the implementation is wrong: nothing is promised there.
    Field("guarantee", "number", "nats", "the claim, if the implementation is right", False),
)
_REFUTED = Field("refuted", "boolean", "", "whether the bound is above the claimed ε")
_GUARANTEED = ({"lower_bound": "epsilon_lower_bound", "truth": "guarantee"},)

TABLES = {
    "fault_runs": Table(
        fields=(*_CLAIM_FIELDS, *COUNT_FIELDS, LOWER_BOUND, _REFUTED),
        key=("fault", "test", "run"),
        meaning="one training run with many canaries, seen by one test",
        claims=_GUARANTEED,
    ),
    "fault_pairs": Table(
        fields=(
            *_CLAIM_FIELDS,
            SIGNIFICANCE,
            *two_sets_fields("on n examples", "on n − 1 examples"),
            _REFUTED,
        ),
        key=("fault", "test", "run"),
        meaning="one audit from many runs on two neighbouring training sets",
        claims=_GUARANTEED,
    ),
}


# ---------------------------------------------------------------------------------- verdicts


def summary(tables: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Detection rates by fault, by one run and by two training sets, with why one is missed."""
    by_run, by_pairs = (faults.detections(tables[name]) for name in ("fault_runs", "fault_pairs"))
    by_run.insert(1, "by", "one run")
    by_pairs.insert(1, "by", "two training sets")
    return pd.concat([by_run, by_pairs], ignore_index=True)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Whether the right implementation is left alone, and how many faults are seen."""
    detected = summary(tables)
    right = tables["fault_runs"].query("fault == @faults.RIGHT")
    # A run is one trial: its tests share its training.
    alarms = right.groupby("test")["refuted"].sum()
    runs = right["run"].nunique()
    worst = int(alarms.max())
    interval = (worst / runs, *intervals.rate_interval(worst, runs))
    allowed = MOST_FALSE_ALARMS / OF_RUNS
    seen = detected[detected["detected, low"] > detected["false alarms, high"]]
    n_faults = detected["fault"].nunique()
    return [
        verdict_row(
            "false alarms on right DP-SGD, the worst of all tests",
            "at most 5 %",
            interval,
            "as allowed" if interval[0] <= allowed else "differs: too many",
            f"{worst} of {runs} runs; an honest test exceeds {allowed:.0%} once in 1,000 times",
        ),
        verdict_row(
            "faults that an audit sees",
            "not tried",
            (float(seen["fault"].nunique()), None, None),
            f"{seen['fault'].nunique()} of {n_faults}",
            "detected more often than a right implementation is accused, by intervals that do not "
            "touch; the others are explained in the table of faults",
        ),
    ]


# ----------------------------------------------------------------------------------- figures


def draw_faults(tables: dict[str, pd.DataFrame]) -> MatplotlibFigure:
    """Detection rate of each fault beside the false alarms of its test."""
    detected = summary(tables)
    figure, ax = figures.new_figure(height=4.6)
    names = [
        row["fault"].replace("_", " ") + ("" if row["by"] == "one run" else ", two training sets")
        for _, row in detected.iterrows()
    ]
    y = np.arange(len(names))[::-1]
    for i, (kind, label) in enumerate(
        {"detected": "the fault refuted", "false alarms": "right DP-SGD refuted"}.items()
    ):
        rate = detected[kind] / detected[f"{kind}, of"]
        errors = [rate - detected[f"{kind}, low"], detected[f"{kind}, high"] - rate]
        style = figures.series(i) | {"linestyle": "none", "markersize": 6 - 2 * i}
        ax.errorbar(rate, y - 0.22 * i, xerr=np.abs(errors), label=label, capsize=2, **style)
    ax.axvline(0.05, color="grey", linewidth=1, linestyle=":", label="5 %")
    ax.set_yticks(y, names)
    ax.set_xlim(-0.02, 1.02)
    ax.set_xlabel("share of audits whose bound is above the claimed ε (95 % intervals)")
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure


FIGURES = {
    "faults": Figure(
        draw_faults,
        tables=("fault_runs", "fault_pairs"),
        title="Which faults an audit sees",
        alternative_text=(
            "For each faulty implementation of DP-SGD, the share of audits that refute its claim, "
            "with intervals, and beside it the share of audits that refute a right implementation "
            "by the same test."
        ),
    ),
}
