"""One style for every figure, and files whose bytes depend on nothing but the figure.

No global state: the style holds inside ``style()`` only, and figures are made without pyplot. The
colours are those of Okabe and Ito, told apart by colour-blind readers; markers and line styles
differ too, so that a grey print still reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

BLACK = "#000000"
# Okabe and Ito's palette, the yellow left out: too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
MARKERS = ("o", "s", "^", "D", "v", "P")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
WIDTH = 7.0  # inches, a page's text width
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.dpi": 200,
    # Text as outlines: the same picture whatever fonts the reader has.
    "svg.fonttype": "path",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


@contextmanager
def style() -> Iterator[None]:
    """Apply the workbook's style, and no other setting, until the block ends."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    width: float = WIDTH,
    height: float | None = None,
    share_x: bool | str = False,
    share_y: bool | str = False,
) -> tuple[Figure, Axes | np.ndarray]:
    """Make a figure with a grid of axes.

    Args:
        rows: rows of axes.
        columns: columns of axes.
        width: inches.
        height: inches; by default 0.62 of the width of one axes, for each row.
        share_x: whether all axes have the same horizontal range, or (``"col"``) those of a column.
        share_y: whether all axes have the same vertical range, or (``"row"``) those of a row.

    Returns:
        The figure, and its axes: one, a vector of them, or an array of shape (rows, columns).
    """
    if height is None:
        height = 0.62 * width / columns * rows
    with style():
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, sharex=share_x, sharey=share_y)
    return figure, axes


def start_at_zero(axes: Axes | np.ndarray) -> None:
    """Let the vertical axes begin at 0; to be called once everything is drawn.

    A limit set earlier holds for whatever is drawn later too, on every axes that shares the range.
    """
    for each in np.ravel(axes):
        each.set_ylim(bottom=0)


def series(index: int) -> dict[str, Any]:
    """Give colour, marker and line style of a figure's series number ``index``, from 0."""
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINE_STYLES[index % len(LINE_STYLES)],
    }


def band(axes: Axes, x, low, high, *, index: int = 0, label: str | None = None) -> None:
    """Shade an interval between ``low`` and ``high`` over ``x``, in the colour of a series."""
    axes.fill_between(
        x, low, high, color=COLOURS[index % len(COLOURS)], alpha=0.2, linewidth=0, label=label
    )


def paper_value(axes: Axes, x, y, *, label: str = "paper") -> None:
    """Mark values that the paper reports: black stars, above everything else."""
    axes.plot(
        x,
        y,
        linestyle="none",
        marker="*",
        markersize=11,
        color=BLACK,
        markeredgecolor="white",
        markeredgewidth=0.7,
        zorder=5,
        label=label,
    )


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write ``<stem>.png`` and ``<stem>.svg``; the same figure gives the same bytes.

    Neither file holds a date or a version, and the ids inside the SVG depend on its name alone (so
    that several on one page do not clash).

    Returns:
        The two files.
    """
    png, svg = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("png", "svg"))
    with style():
        matplotlib.rcParams["svg.hashsalt"] = stem.name
        figure.savefig(png, metadata={"Software": None})
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return png, svg
