"""Every figure of every published package: nothing that was plotted lies outside its axes."""

import importlib

import numpy as np
import pytest

from lib import commands, figures, paths, results

# Lines that leave their axes on purpose: curves where they say nothing any more.
LEAVING = {
    "image_errors": ["lower bound, unbiased attacks"],
    "theory_drift": ["prior transfer theorem"],
    "theory_gap": ["Gaussian, σ = 1"],
    "theory_information": ["ε²/8 + δ ln 2"],
}
PUBLISHED = [
    (folder.parent.name, folder.name, name)
    for folder in sorted(paths.RESULTS.glob("*/v*"))
    for name in importlib.import_module(commands.STUDIES[folder.parent.name]).FIGURES
]


def cut_lines(figure) -> list[str]:
    """Lines with a point beyond the limits of their axes, by their labels."""
    figure.draw_without_rendering()
    found = []
    for ax in figure.axes:
        for line in ax.lines:
            if line.get_transform() != ax.transData:
                continue  # across the axes, such as a zero line
            slack = 1e-6 + 0.005 * (ax.bbox.get_points()[1] - ax.bbox.get_points()[0])
            places = ax.transData.transform(line.get_xydata())
            inside = (places >= ax.bbox.min - slack) & (places <= ax.bbox.max + slack)
            if not (inside | np.isnan(places)).all():
                found.append(str(line.get_label()))
    return found


@pytest.mark.parametrize(("study", "version", "name"), PUBLISHED)
def test_nothing_is_cut_off(study, version, name):
    package = results.open_package(study, version, paths.RESULTS)
    figure = importlib.import_module(commands.STUDIES[study]).FIGURES[name]
    with figures.style():
        drawn = figure.draw({table: package.tables[table] for table in figure.tables})
    assert set(cut_lines(drawn)) <= set(LEAVING.get(name, []))


def test_a_limit_set_too_early_is_seen():
    figure, (first, second) = figures.new_figure(1, 2, share_y=True)
    first.plot([1, 2], [0.1, 0.2])
    first.set_ylim(bottom=0)
    second.plot([1, 2], [0.1, 0.9], label="cut")
    assert cut_lines(figure) == ["cut"]
    figure, axes = figures.new_figure(1, 2, share_y=True)
    axes[0].plot([1, 2], [0.1, 0.2])
    axes[1].plot([1, 2], [0.1, 0.9])
    figures.start_at_zero(axes)
    assert cut_lines(figure) == []
