"""A small study for the tests of result packages: audits with counts, bounds and one figure."""

import numpy as np

from lib import figures, one_run, results
from lib.results import Field, Figure, Table

STUDY = "sample"
BOUND_RECIPE = {
    "function": "one_run.epsilon_lower_bound",
    "columns": {
        name: name
        for name in ("n_canaries", "n_guesses", "n_correct", "delta", "significance", "method")
    },
}
AUDITS = Table(
    fields=(
        Field("run", "integer", "", "number of the run", minimum=0),
        Field("method", "string", "", "bound"),
        Field("theoretical_epsilon", "number", "nats", "ε; none if empty", required=False),
        Field("delta", "number", "", "δ", minimum=0, maximum=1),
        Field("significance", "number", "", "probability of a false bound", minimum=0),
        Field("n_canaries", "integer", "", "canaries"),
        Field("n_guesses", "integer", "", "guesses"),
        Field("n_correct", "integer", "", "right guesses"),
        Field("epsilon_lower_bound", "number", "nats", "bound", minimum=0, recipe=BOUND_RECIPE),
    ),
    key=("run",),
    meaning="one audit",
    claims=({"lower_bound": "epsilon_lower_bound", "truth": "theoretical_epsilon"},),
)


def audit_rows(n_correct, *, epsilon=3.0, significance=0.05):
    """Rows of honest arithmetic for the counts given, 1,000 guesses each."""
    counts = {"n_canaries": 1000, "n_guesses": 1000, "delta": 0.0}
    bounds = one_run.epsilon_lower_bound(
        **counts, n_correct=np.array(n_correct), significance=significance
    )
    return [
        {
            "run": run,
            "method": "steinke",
            "theoretical_epsilon": epsilon,
            "significance": significance,
            **counts,
            "n_correct": correct,
            "epsilon_lower_bound": bound,
        }
        for run, (correct, bound) in enumerate(zip(n_correct, bounds, strict=True))
    ]


def draw_bounds(tables):
    audits = tables["audits"]
    figure, axes = figures.new_figure()
    axes.plot(audits["run"], audits["epsilon_lower_bound"], label="bound", **figures.series(0))
    figures.band(axes, audits["run"], 0.9 * audits["delta"], audits["theoretical_epsilon"])
    figures.paper_value(axes, [0], [0.7])
    axes.set_xlabel("run")
    axes.legend()
    return figure


BOUNDS = Figure(draw_bounds, tables=("audits",), title="Bounds", alternative_text="Bounds by run.")


def publish(results_dir, version="v0", *, rows=None, figure=True, **parameters):
    """Publish the sample package, and give its folder."""
    draft = results.Draft(STUDY, version, results_dir)
    draft.write_table("audits", audit_rows([700, 710]) if rows is None else rows, AUDITS)
    if figure:
        draft.write_figure("bounds", BOUNDS)
    return finish(draft, **parameters)


def finish(draft, **parameters):
    """Publish a draft with a provenance like a study's."""
    return draft.publish(
        title="A sample",
        parameters={"seed": 0, "epsilons": [1.0], **parameters},
        profile="smoke",
        seed=0,
        dataset={"name": "mnist5k", "sha256": "0" * 64},
        papers=({"title": "One training run", "arxiv": "2305.08846"},),
        wall_time_s=1.5,
    )
