"""The style: no global state, told apart without colour, and the same bytes from every process."""

import os
import re
import subprocess
import sys
import time

import matplotlib
import numpy as np
import pytest

from lib import figures, paths

DRAW = """
import sys
from pathlib import Path
from lib import figures
with figures.style():
    figure, axes = figures.new_figure(1, 2)
    axes[0].plot([1, 2], [3, 4], label="a", **figures.series(0))
    figures.band(axes[0], [1, 2], [2, 3], [4, 5])
    figures.paper_value(axes[1], [1], [2])
    axes[0].set_title("success $\\\\gamma$"); axes[0].legend()
figures.save(figure, Path(sys.argv[1]) / "bounds")
"""


@pytest.fixture
def drawn():
    with figures.style():
        figure, axes = figures.new_figure()
        axes.plot([1, 2], [3, 4], label="a", **figures.series(0))
        axes.legend()
    return figure


def test_two_processes_write_equal_bytes(tmp_path):
    folders = []
    for name, extra in (("first", {}), ("second", {"SOURCE_DATE_EPOCH": "1", "LANG": "C"})):
        folder = tmp_path / name
        folder.mkdir()
        environment = os.environ | extra | {"PYTHONHASHSEED": str(len(folders) + 1)}
        subprocess.run(
            [sys.executable, "-c", DRAW, str(folder)], cwd=paths.ROOT, env=environment, check=True
        )
        folders.append(folder)
        time.sleep(1.1 if len(folders) == 1 else 0)  # a file that tells the second would differ
    for name in ("bounds.png", "bounds.svg"):
        first, second = (folder / name for folder in folders)
        assert first.read_bytes() == second.read_bytes()


def test_files_hold_no_date_and_no_version(drawn, tmp_path):
    for file in figures.save(drawn, tmp_path / "bounds"):
        content = file.read_bytes()
        assert matplotlib.__version__.encode() not in content
        assert b"dc:date" not in content
        assert b"Software" not in content


def test_ids_of_two_figures_on_one_page_do_not_clash(drawn, tmp_path):
    ids = []
    for name in ("first", "second"):
        _, svg = figures.save(drawn, tmp_path / name)
        # The groups (figure_1, axes_1) nobody refers to; clip paths and markers are referred to.
        ids.append(set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg.read_text("utf-8"))))
    marks = [{i for i in found if not i.startswith("DejaVu")} for found in ids]
    assert all(marks)
    assert not marks[0] & marks[1]


def test_the_style_of_the_process_is_untouched_and_unused(drawn, tmp_path):
    figures.save(drawn, tmp_path / "plain")
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "savefig.dpi": 50}):
        before = dict(matplotlib.rcParams)
        with figures.style():
            figure, axes = figures.new_figure()
            axes.plot([1, 2], [3, 4], label="a", **figures.series(0))
            axes.legend()
        figures.save(figure, tmp_path / "styled")
        assert dict(matplotlib.rcParams) == before
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "styled.png").read_bytes()


def test_pyplot_is_not_needed():
    code = "import sys, lib.figures; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=paths.ROOT, check=True)


def test_a_figure_is_seven_inches_wide_at_200_dots(drawn, tmp_path):
    png, _ = figures.save(drawn, tmp_path / "bounds")
    width = int.from_bytes(png.read_bytes()[16:20], "big")  # of the PNG's first chunk
    assert width == 1400


def test_axes_come_as_asked():
    _, single = figures.new_figure()
    figure, grid = figures.new_figure(2, 3, width=6, height=4)
    assert isinstance(single, matplotlib.axes.Axes)
    assert grid.shape == (2, 3)
    assert tuple(figure.get_size_inches()) == (6, 4)


def test_series_differ_in_more_than_colour():
    styles = [figures.series(index) for index in range(len(figures.COLOURS))]
    for key in ("color", "marker", "linestyle"):
        assert len({str(style[key]) for style in styles}) == len(styles)
    assert figures.series(len(styles)) == styles[0]


def test_paper_values_and_bands_are_where_they_should_be():
    _, axes = figures.new_figure()
    figures.band(axes, [0, 1], [1, 2], [3, 4], index=1, label="95 %")
    figures.paper_value(axes, [0.5], [2.5], label="paper")
    band, star = axes.collections[0], axes.lines[0]
    corners = band.get_paths()[0].vertices
    assert {tuple(corner) for corner in corners} == {(0, 1), (0, 3), (1, 2), (1, 4)}
    np.testing.assert_allclose(
        band.get_facecolor()[0][:3], matplotlib.colors.to_rgb(figures.COLOURS[1])
    )
    assert (star.get_marker(), star.get_linestyle()) == ("*", "None")
    assert star.get_xydata().tolist() == [[0.5, 2.5]]
    assert axes.get_legend_handles_labels()[1] == ["95 %", "paper"]
