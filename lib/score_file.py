"""Auditing a training run of one's own, from a file of its canaries' scores and coins.

The file is a CSV with the columns ``score`` (larger where a canary looks more like a member) and
``included`` (true or false, 1 or 0: whether its fair coin put it into the training set).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from lib import figures, one_run, trade_off
from lib.errors import WorkbookError

COLUMNS = ("score", "included")
COINS = {"true": True, "false": False, "1": True, "0": False}
# Shares of the canaries guessed "in" when the user names no counts: fixed here, so not chosen by
# what they give.
DEFAULT_SHARES = (0.01, 0.03, 0.1, 0.3)


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read scores and coins, one canary a row.

    Returns:
        (m,) floats and (m,) booleans.

    Raises:
        WorkbookError: naming the file and, where there is one, the first bad row.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise WorkbookError(f"{path} cannot be read as a CSV file: {reason}") from error
    missing = [name for name in COLUMNS if name not in table]
    if missing or table.empty:
        what = f"no column {missing[0]}" if missing else "no row"
        raise WorkbookError(
            f"{path} has {what}; wanted: columns score and included, a row a canary"
        )
    scores = pd.to_numeric(table["score"].str.strip(), errors="coerce").to_numpy(dtype=float)
    coins = table["included"].str.strip().str.lower().map(COINS)
    for name, bad, wanted in (
        ("score", np.isnan(scores), "a number"),
        ("included", coins.isna().to_numpy(), "true or false, or 1 or 0"),
    ):
        if bad.any():
            row = int(bad.argmax())
            raise WorkbookError(
                f"{path}, row {row + 1}: {name} = {table[name][row]!r}; wanted: {wanted}"
            )
    return scores, coins.to_numpy(dtype=bool)


def parse_counts(text: str) -> tuple[int, int]:
    """Numbers of guesses from ``200`` (the 200 highest "in") or ``200+100`` (100 lowest "out").

    Raises:
        WorkbookError: for anything else.
    """
    positive, _, negative = text.partition("+")
    if not positive.isdecimal() or (negative and not negative.isdecimal()):
        raise WorkbookError(
            f"guesses = {text!r}; allowed: 200 (guesses of 'in') or 200+100 (and of 'out')"
        )
    return int(positive), int(negative or 0)


def default_counts(n_canaries: int) -> list[tuple[int, int]]:
    """The counts that are tried when none are named, by the number of canaries alone."""
    counts = (round(share * n_canaries) for share in DEFAULT_SHARES)
    return [(count, 0) for count in dict.fromkeys(max(1, count) for count in counts)]


def audit(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    delta: float,
    counts: Sequence[tuple[int, int]],
    significance: float = 0.05,
    seed: int = 0,
) -> list[one_run.Audit]:
    """Audit by every method; with several counts the best, the significance shared between them.

    Args:
        scores, included: as :func:`read` gives them.
        delta: δ of the bound; the Gaussian family is held against the scores only if δ > 0.
        counts: numbers of guesses (in, out), fixed without looking at the coins' outcome.
        significance: allowed probability of a false bound.
        seed: breaks ties between equal scores.

    Raises:
        WorkbookError: as :func:`lib.one_run.best_over_counts`.
    """
    families = {"steinke": None} | ({"fdp": trade_off.Gaussian()} if delta > 0 else {})
    return [
        one_run.best_over_counts(
            scores,
            included,
            counts=counts,
            delta=delta,
            significance=significance,
            method=method,
            family=family,
            rng=np.random.default_rng(seed),
        )
        for method, family in families.items()
    ]


def tell(result: one_run.Audit) -> str:
    """One line for a reader: the bound, and the counts it follows from."""
    if result.method == "steinke":
        bound = f"ε ≥ {result.epsilon_lower_bound:.4f} (Theorem 5.2, any mechanism)"
    else:
        bound = (
            f"ε = {result.epsilon_lower_bound:.4f} is the smallest unrefuted {result.family} "
            "(f-DP: a statement about that family, no bound for others)"
        )
    tried = f", best of {result.n_tests} counts with Bonferroni" if result.n_tests > 1 else ""
    return (
        f"{bound} at δ = {result.delta:g}, {100 * (1 - result.significance):g} % confidence: "
        f"{result.n_correct} of {result.n_guesses} guesses right ({result.n_positive} in, "
        f"{result.n_negative} out) of {result.n_canaries} canaries{tried}"
    )


def table(results: Sequence[one_run.Audit]) -> pd.DataFrame:
    """The audits as rows, with every count behind the bounds."""
    return pd.DataFrame(
        [
            asdict(result) | {"n_guesses": result.n_guesses, "n_correct": result.n_correct}
            for result in results
        ]
    )


def draw(scores: np.ndarray, included: np.ndarray) -> Figure:
    """Histogram of the finite scores of members and of the others."""
    figure, axes = figures.new_figure(height=3.2)
    finite = np.isfinite(scores)
    bins = np.histogram_bin_edges(scores[finite], bins=60)
    for i, (coin, label) in enumerate(((False, "out"), (True, "in"))):
        axes.hist(
            scores[finite & (included == coin)],
            bins=bins,
            histtype="step" if coin else "stepfilled",
            alpha=1.0 if coin else 0.35,
            color=figures.COLOURS[i],
            label=f"{label} ({int((included == coin).sum()):,})",
        )
    axes.set_xlabel("score")
    axes.set_ylabel("canaries")
    axes.legend(title="coin", alignment="left")
    return figure
