"""What studies share: how their parts are put together, and the columns of audits and verdicts.

A study's part (such as :mod:`lib.one_run_sweeps`) has cells, tables, figures and verdicts of its
own; each table that holds audits is made of these columns, so that one recipe recomputes every
bound from its counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

from lib.tables import Field, Table, recipe

COUNTS = ("n_canaries", "n_guesses", "n_correct", "delta", "significance")


def total_of(first: str, second: str) -> dict:
    """Recipe of a column that is the sum of two others."""
    return recipe("verification.total", first=first, second=second)


THEORETICAL_EPSILON = Field(
    "theoretical_epsilon",
    "number",
    "nats",
    "ε of the mechanism at δ by privacy-loss distributions, from above",
    minimum=0,
    recipe=recipe(
        "accounting.epsilon_of_rows", "noise_multiplier", "delta", "sampling_rate", "steps"
    ),
)
DELTA = Field("delta", "number", "", "δ of theory and audit", minimum=0, maximum=1)
SIGNIFICANCE = Field(
    "significance", "number", "", "allowed probability of a false bound", minimum=0
)
MECHANISM_FIELDS = (
    Field("epsilon", "number", "nats", "ε that the noise was calibrated for", minimum=0),
    THEORETICAL_EPSILON,
    DELTA,
    Field("sampling_rate", "number", "", "Poisson sampling rate q", minimum=0, maximum=1),
    Field("steps", "integer", "", "steps T", minimum=1),
    Field("noise_multiplier", "number", "clip norms", "noise standard deviation σ", minimum=0),
)
GUESS_FIELDS = (
    Field("n_positive", "integer", "", "guesses of 'in', fixed before the run", minimum=0),
    Field("n_negative", "integer", "", "guesses of 'out', fixed before the run", minimum=0),
)
LOWER_BOUND = Field(
    "epsilon_lower_bound",
    "number",
    "nats",
    "lower bound on ε at δ (Theorem 5.2)",
    minimum=0,
    recipe=recipe("one_run.epsilon_lower_bound", *COUNTS),
)
COUNT_FIELDS = (
    SIGNIFICANCE,
    Field("n_canaries", "integer", "", "canaries m", minimum=1),
    Field("n_included", "integer", "", "canaries whose coin said 'in'", minimum=0),
    *GUESS_FIELDS,
    Field("n_correct_positive", "integer", "", "guesses of 'in' that were right", minimum=0),
    Field("n_correct_negative", "integer", "", "guesses of 'out' that were right", minimum=0),
    Field(
        "n_guesses",
        "integer",
        "",
        "guesses r in all",
        minimum=0,
        recipe=total_of("n_positive", "n_negative"),
    ),
    Field(
        "n_correct",
        "integer",
        "",
        "guesses v that were right",
        minimum=0,
        recipe=total_of("n_correct_positive", "n_correct_negative"),
    ),
)
AUDIT_FIELDS = (*COUNT_FIELDS, LOWER_BOUND)
BOUND_BELOW_TRUTH = ({"lower_bound": "epsilon_lower_bound", "truth": "theoretical_epsilon"},)


def two_sets_fields(first: str, second: str) -> tuple[Field, ...]:
    """Counts and bound of an audit from many runs on two training sets.

    Args:
        first, second: what the runs of either set are, for the columns' meanings.
    """
    counts = ("n_first", "n_wrong_first", "n_second", "n_wrong_second")
    return (
        Field("n_first", "integer", "", f"runs {first}", minimum=1),
        Field("n_wrong_first", "integer", "", "of these, taken for the others", minimum=0),
        Field("n_second", "integer", "", f"runs {second}", minimum=1),
        Field("n_wrong_second", "integer", "", "of these, taken for the others", minimum=0),
        Field(
            "epsilon_lower_bound",
            "number",
            "nats",
            "lower bound on ε at δ (Clopper and Pearson), both orders of the two sets; one-sided, "
            "in that guesses wrong more often than not show nothing",
            minimum=0,
            recipe=recipe(
                "one_run.epsilon_lower_bound_from_runs", *counts, "delta", "significance"
            ),
        ),
    )


VERDICT_FIELDS = (
    Field("claim", "string", "", "what is compared"),
    Field("paper", "string", "", "what the paper reports"),
    Field("ours", "number", "", "what was measured here"),
    Field("low", "number", "", "lower end of the 95 % interval", required=False),
    Field("high", "number", "", "upper end of the 95 % interval", required=False),
    Field("verdict", "string", "", "what follows from the interval"),
    Field("reason", "string", "", "how it was computed"),
)


def verdict_table(study: str, source: str = "paper") -> Table:
    """The table of a study's verdicts, made again from its other tables by ``study.verdicts``."""
    return Table(
        fields=VERDICT_FIELDS,
        key=("claim",),
        meaning=f"one claim of the {source} against this run",
        derived=f"{study}.verdicts",
    )


def verdict_row(
    claim: str, paper: str, interval: tuple[float, float, float], verdict: str, reason: str
) -> dict:
    """The columns of :data:`VERDICT_FIELDS`.

    Args:
        claim: what is compared.
        paper: what the paper reports.
        interval: our value, and the ends of its 95 % interval (None where there is none).
        verdict: what follows.
        reason: how it was computed.
    """
    ours, low, high = interval
    return {
        "claim": claim,
        "paper": paper,
        "ours": ours,
        "low": low,
        "high": high,
        "verdict": verdict,
        "reason": reason,
    }


def in_per_cent(interval: tuple[float, float, float]) -> tuple[float, float, float]:
    """A rate and the ends of its interval, times 100."""
    return tuple(100 * value for value in interval)


def merged(name: str, parts: Iterable[ModuleType]) -> dict:
    """What all parts of a study hold under a name (``TABLES``, …), as one dictionary."""
    return {key: value for part in parts for key, value in getattr(part, name).items()}


def joined(name: str, parts: Iterable[ModuleType]) -> tuple:
    """What all parts of a study hold under a name (``RULES``, …), one after another."""
    return tuple(item for part in parts for item in getattr(part, name, ()))
