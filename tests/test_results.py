"""Packages: what they hold, who may write them, and that no kill leaves half of one."""

import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import frictionless
import numpy as np
import pandas as pd
import pytest
import sample_study as sample

from lib import folders, provenance, results
from lib.errors import WorkbookError
from lib.results import Figure


def bound(folder):
    """The first bound of a sample package: tells which of two packages it is."""
    return results.open_package(sample.STUDY, folder.name, folder.parent.parent).tables["audits"][
        "epsilon_lower_bound"
    ][0]


def hidden(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def resources(folder):
    descriptor = json.loads((folder / "datapackage.json").read_text("utf-8"))
    return {resource["name"]: resource for resource in descriptor["resources"]}


# Contents


def test_a_package_passes_frictionless_and_verify(tmp_path):
    folder = sample.publish(tmp_path)
    report = frictionless.Package(str(folder / "datapackage.json")).validate()
    assert report.valid, report.flatten(["message"])
    assert report.stats["tasks"] == 3
    assert results.verify(folder) == []


def test_a_table_is_described_column_by_column(tmp_path):
    audits = resources(sample.publish(tmp_path))["audits"]
    fields = {field["name"]: field for field in audits["schema"]["fields"]}
    assert (audits["rows"], audits["bytes"]) == (
        2,
        (tmp_path / "sample/v0/audits.csv").stat().st_size,
    )
    assert audits["schema"]["primaryKey"] == ["run"]
    assert audits["schema"]["missingValues"] == [""]
    assert audits["claims"] == [
        {"lower_bound": "epsilon_lower_bound", "truth": "theoretical_epsilon"}
    ]
    assert fields["delta"] == {
        "name": "delta",
        "type": "number",
        "unit": "",
        "description": "δ",
        "constraints": {"required": True, "minimum": 0, "maximum": 1},
    }
    assert fields["theoretical_epsilon"]["constraints"] == {"required": False}
    assert fields["theoretical_epsilon"]["unit"] == "nats"
    assert fields["epsilon_lower_bound"]["recipe"] == sample.BOUND_RECIPE


def test_a_figure_tells_what_is_behind_it(tmp_path):
    found = resources(sample.publish(tmp_path))
    for suffix in ("png", "svg"):
        figure = found[f"bounds.{suffix}"]
        assert figure["figure"] == {"function": "sample_study.draw_bounds", "tables": ["audits"]}
        assert figure["title"] == "Bounds"
        assert figure["description"] == "Bounds by run."


def test_provenance_is_complete(tmp_path):
    folder = sample.publish(tmp_path, deltas=[1e-5], data_dir=results.paths.ROOT / "data")
    package = results.open_package("sample", "v0", tmp_path)
    assert (package.study, package.version, package.path) == ("sample", "v0", folder)
    assert package.parameters == {
        "seed": 0,
        "epsilons": [1.0],
        "deltas": [1e-5],
        "data_dir": "data",
    }
    descriptor, made = package.descriptor, package.descriptor["provenance"]
    assert (descriptor["name"], descriptor["version"], descriptor["title"]) == (
        "sample",
        "v0",
        "A sample",
    )
    assert descriptor["sources"] == [
        {"title": "One training run", "path": "https://arxiv.org/abs/2305.08846"}
    ]
    assert (made["profile"], made["seed"], made["wall_time_s"], made["threads"]) == (
        "smoke",
        0,
        1.5,
        1,
    )
    assert made["dataset"]["sha256"] == "0" * 64
    assert made["libraries"]["numpy"] == np.__version__
    assert made["python"] == ".".join(map(str, sys.version_info[:3]))
    assert made["processor"]
    assert made["cores"] == os.cpu_count()


def test_git_state_is_unknown_outside_a_clone(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance.paths, "ROOT", tmp_path)
    assert provenance.environment()["git"] == {"commit": "unknown", "dirty": None}


def test_git_state_tells_commit_and_changed_code(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance.paths, "ROOT", tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("a = 1\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for command in (("init", "-q"), ("add", "lib"), (*who, "commit", "-qm", "a")):
        assert provenance._git(*command) is not None
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "new.csv").write_text("data are not code")
    clean = provenance.environment()["git"]
    (tmp_path / "lib" / "a.py").write_text("a = 2\n")
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    assert provenance.environment()["git"] == {"commit": clean["commit"], "dirty": True}


def test_the_gpu_is_not_asked_for_when_torch_is_not_in_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert provenance.environment()["gpu"] is None


def test_what_is_written_is_what_is_read_back(tmp_path):
    draft = results.Draft("sample", "local", tmp_path)
    frame = draft.write_table("audits", sample.audit_rows([700, 400], epsilon=None), sample.AUDITS)
    sample.finish(draft)
    again = results.open_package("sample", "local", tmp_path).tables["audits"]
    pd.testing.assert_frame_equal(frame, again, check_exact=True)
    assert frame["epsilon_lower_bound"].tolist() == [
        row["epsilon_lower_bound"] for row in sample.audit_rows([700, 400])
    ]
    assert frame["theoretical_epsilon"].isna().all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": math.inf}, "table audits, row 2, column delta: inf is not finite"),
        ({"delta": 1.5}, "table audits, row 2, column delta: 1.5 is above the maximum 1"),
        ({"delta": None}, "table audits, row 2, column delta: empty, but a value is required"),
        ({"run": 0}, r"table audits, row 2: the key \(run 0\) appears a second time"),
        ({"extra": 0}, "table audits, row 2: unknown column extra"),
    ],
)
def test_bad_rows_are_refused_by_table_row_and_column(tmp_path, change, message):
    rows = sample.audit_rows([700, 710])
    rows[1] |= change
    draft = results.Draft("sample", "local", tmp_path)
    with pytest.raises(WorkbookError, match=message):
        draft.write_table("audits", rows, sample.AUDITS)


def test_the_same_run_gives_the_same_csv_and_figures(tmp_path):
    first, second = sample.publish(tmp_path / "a"), sample.publish(tmp_path / "b")
    for name in ("audits.csv", "bounds.png", "bounds.svg"):
        assert (first / name).read_bytes() == (second / name).read_bytes()


def test_a_figure_is_drawn_from_the_file_alone(tmp_path):
    draft = results.Draft("sample", "local", tmp_path)
    with pytest.raises(WorkbookError, match="figure bounds needs table audits: write it first"):
        draft.write_figure("bounds", sample.BOUNDS)
    draft.write_table("audits", sample.audit_rows([700]), sample.AUDITS)
    (draft.folder / "audits.csv").write_text("tampered")
    with pytest.raises(WorkbookError, match=r"audits.csv: 8 bytes, the descriptor says"):
        draft.write_figure("bounds", sample.BOUNDS)


def test_a_figure_needs_a_function_that_can_be_found_and_a_table():
    with pytest.raises(ValueError, match="module's function"):
        Figure(lambda tables: None, tables=("audits",), title="", alternative_text="")
    with pytest.raises(ValueError, match="no table"):
        Figure(sample.draw_bounds, tables=(), title="Bounds", alternative_text="")


# Who may write


@pytest.mark.parametrize("version", ["v", "v01", "V1", "1", "", "latest", "../v1", "v1\n"])
def test_a_version_has_one_of_the_three_forms(tmp_path, version):
    with pytest.raises(WorkbookError, match=r"results_version .* allowed: local"):
        results.check_writable("sample", version, results_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("study", ["", "..", "a/b", "A"])
def test_a_study_has_a_plain_name(tmp_path, study):
    with pytest.raises(WorkbookError, match=r"study .* allowed"):
        results.check_writable(study, "v0", results_dir=tmp_path)


@pytest.mark.parametrize("version", ["local", "v0"])
def test_scratch_and_v0_are_overwritten(tmp_path, version):
    folder = sample.publish(tmp_path, version, figure=False)
    before = bound(folder)
    sample.publish(tmp_path, version, rows=sample.audit_rows([900]), figure=False)
    assert bound(folder) > before
    assert results.verify(folder) == []
    assert hidden(folder.parent) == []


def test_a_published_version_is_refused_before_any_work(tmp_path):
    folder = sample.publish(tmp_path, "v1", figure=False)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for refused in (results.check_writable, lambda *a, results_dir: results.Draft(*a, results_dir)):
        with pytest.raises(WorkbookError, match=r"v1 is published .* choose another version"):
            refused("sample", "v1", results_dir=tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert hidden(folder.parent) == []


def test_of_two_that_publish_one_version_the_second_is_refused(tmp_path):
    late = results.Draft("sample", "v1", tmp_path)
    late.write_table("audits", sample.audit_rows([900]), sample.AUDITS)
    folder = sample.publish(tmp_path, "v1", figure=False)
    before = bound(folder)
    with pytest.raises(WorkbookError, match="published meanwhile"):
        sample.finish(late)
    assert bound(folder) == before
    del late
    assert hidden(folder.parent) == []


def test_an_unwritable_folder_is_refused_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(WorkbookError, match=r"cannot write .*file/sample: Not a directory") as told:
        results.check_writable("sample", "v0", results_dir=tmp_path / "file")
    assert "\n" not in str(told.value)


def test_a_folder_without_permission_is_refused_in_one_line(tmp_path, monkeypatch):
    def refused(**_):  # no mode of a folder keeps the superuser out
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    with pytest.raises(WorkbookError, match="Permission denied; free space, permit writing"):
        results.check_writable("sample", "v0", results_dir=tmp_path)


def test_a_full_disk_is_told_in_one_line_and_leaves_the_old_package(tmp_path, monkeypatch):
    folder = sample.publish(tmp_path, figure=False)
    before = bound(folder)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WorkbookError, match=r"audits.csv: No space left on device; free space"):
        sample.publish(tmp_path, rows=sample.audit_rows([900]), figure=False)
    assert bound(folder) == before
    assert hidden(folder.parent) == []


def test_an_empty_draft_is_not_a_result(tmp_path):
    with pytest.raises(WorkbookError, match="would be empty: write a table first"):
        sample.finish(results.Draft("sample", "v0", tmp_path))


def test_a_published_draft_takes_nothing_more(tmp_path):
    draft = results.Draft("sample", "v0", tmp_path)
    draft.write_table("audits", sample.audit_rows([700]), sample.AUDITS)
    sample.finish(draft)
    with pytest.raises(WorkbookError, match="is published: begin a new Draft"):
        draft.write_table("audits", sample.audit_rows([700]), sample.AUDITS)


def test_parameters_must_be_json(tmp_path):
    for value in (math.nan, {1, 2}):
        with pytest.raises(WorkbookError, match="cannot hold a parameter"):
            sample.publish(tmp_path, figure=False, bad=value)
    assert not (tmp_path / "sample" / "v0").exists()


# Reading


def test_a_missing_package_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(
        WorkbookError, match="make it with `python3 -m lib run --study sample --version v3`"
    ):
        results.open_package("sample", "v3", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("audits.csv", b"tampered", "audits.csv: 8 bytes, the descriptor says"),
        ("datapackage.json", b'{"resources"', "datapackage.json is damaged, not JSON"),
        ("datapackage.json", b'{"a": NaN}', "damaged, not JSON: NaN is not JSON"),
        ("datapackage.json", b"[" * 100_000, "damaged, not JSON"),
        ("datapackage.json", b"\xff", "damaged, not JSON"),
        ("datapackage.json", b"[]", "not a package of this workbook: top level"),
    ],
)
def test_a_damaged_package_is_not_read(tmp_path, file, content, message):
    folder = sample.publish(tmp_path, figure=False)
    (folder / file).write_bytes(content)
    with pytest.raises(WorkbookError, match=message) as told:
        results.open_package("sample", "v0", tmp_path)
    assert "\n" not in str(told.value)


# Adding to a package, drawing again


@pytest.fixture
def extras(tmp_path):
    folder = tmp_path / "extras"
    folder.mkdir()
    (folder / "01_sample.ipynb").write_text("{}")
    (folder / "01_sample.html").write_text("<p>sample</p>")
    return {"notebook": folder / "01_sample.ipynb", "page": folder / "01_sample.html"}


def test_notebook_and_page_become_part_of_the_package(tmp_path, extras):
    folder = sample.publish(tmp_path)
    before = set(resources(folder))
    results.add_files(folder, extras)
    assert set(resources(folder)) == before | {"notebook", "page"}
    assert (folder / "01_sample.ipynb").read_text() == "{}"
    assert results.verify(folder) == []
    extras["notebook"].write_text('{"cells": []}')
    results.add_files(folder, extras)
    assert (folder / "01_sample.ipynb").read_text() == '{"cells": []}'
    assert results.verify(folder) == []
    assert hidden(folder.parent) == []


def test_a_published_package_takes_its_notebook_once(tmp_path, extras):
    folder = sample.publish(tmp_path, "v1", figure=False)
    results.add_files(folder, extras)
    extras["notebook"].write_text("changed")
    with pytest.raises(WorkbookError, match="is published and has its notebook already"):
        results.add_files(folder, extras)
    assert (folder / "01_sample.ipynb").read_text() == "{}"
    assert hidden(folder.parent) == []


def test_a_file_does_not_take_the_place_of_another(tmp_path):
    folder = sample.publish(tmp_path, figure=False)
    with pytest.raises(WorkbookError, match=r"has another file audits.csv: page is not added"):
        results.add_files(folder, {"page": folder / "audits.csv"})
    assert results.verify(folder) == []


def draw_reversed(tables):
    figure = sample.draw_bounds(tables)
    figure.axes[0].invert_xaxis()
    return figure


REVERSED = Figure(draw_reversed, tables=("audits",), title="Reversed", alternative_text="Back.")


def test_figures_are_redrawn_elsewhere_and_compared(tmp_path):
    folder = sample.publish(tmp_path, "v1")
    package = results.open_package("sample", "v1", tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert results.redraw(package, {"bounds": sample.BOUNDS}, tmp_path / "again" / "here") == []
    assert (tmp_path / "again/here/bounds.svg").read_bytes() == before["bounds.svg"]
    changed = results.redraw(package, {"bounds": REVERSED}, tmp_path / "again")
    assert changed == ["bounds.png", "bounds.svg"]
    with pytest.raises(WorkbookError, match="redraw its figures into another folder"):
        results.redraw(package, {"bounds": REVERSED})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_figures_of_scratch_are_replaced_in_place(tmp_path):
    folder = sample.publish(tmp_path, "local")
    package = results.open_package("sample", "local", tmp_path)
    before = (folder / "bounds.png").read_bytes()
    assert results.redraw(package, {"bounds": sample.BOUNDS}) == []
    assert results.redraw(package, {"bounds": REVERSED}) == ["bounds.png", "bounds.svg"]
    assert (folder / "bounds.png").read_bytes() != before
    assert resources(folder)["bounds.png"]["title"] == "Reversed"
    assert results.verify(folder) == []


# Kills and rivals


@pytest.fixture
def quick(monkeypatch):
    """Leave out of each of many packages what asks git and the processor."""
    monkeypatch.setattr(provenance, "environment", dict)


def killed_at(step, action):
    """Run an action in a process that dies without a word at its step-th touch of the disk.

    Returns:
        Whether it died; False if it ended before.
    """

    def body():
        left = step

        def count(event, _):
            nonlocal left
            if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir"):
                left -= 1
                if left < 0:
                    os._exit(9)

        sys.addaudithook(count)
        action()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    process.join()
    assert process.exitcode in (0, 9)
    return process.exitcode == 9


def steps_survived(action, after):
    """Kill an action at every step in turn, check what is left; the number of steps."""
    step = 0
    while killed_at(step, action):
        after()
        step += 1
    return step


def test_a_kill_at_any_moment_of_publishing_leaves_the_old_or_the_new(tmp_path, quick):
    rows = {"old": sample.audit_rows([700]), "new": sample.audit_rows([900])}
    expected = {kind: row[0]["epsilon_lower_bound"] for kind, row in rows.items()}
    folder = sample.publish(tmp_path, rows=rows["old"], figure=False)
    seen, out_of_place = [], []

    def after():
        out_of_place.append(not folder.exists())
        seen.append(next(kind for kind, value in expected.items() if value == bound(folder)))
        assert results.verify(folder) == []
        # The next run is not disturbed, and cleans up.
        sample.publish(tmp_path, rows=rows["old"], figure=False)
        assert bound(folder) == expected["old"]
        assert hidden(folder.parent) == []

    def action():
        sample.publish(tmp_path, rows=rows["new"], figure=False)

    steps = steps_survived(action, after)
    assert steps == len(seen) >= 15
    assert any(out_of_place)  # killed between the two renames, too
    assert set(seen) == {"old", "new"}


def test_a_kill_while_a_first_package_is_published_leaves_none_or_all(tmp_path, quick):
    target = tmp_path / "sample" / "v1"
    seen = []

    def after():
        seen.append(target.exists())
        if seen[-1]:
            assert results.verify(target) == []
            shutil.rmtree(target)

    def action():
        sample.publish(tmp_path, "v1", rows=sample.audit_rows([900]), figure=False)

    assert steps_survived(action, after) >= 10
    assert results.verify(target) == []
    shutil.rmtree(target)
    results.check_writable("sample", "v1", results_dir=tmp_path)
    assert hidden(target.parent) == []


def test_a_kill_while_files_are_added_leaves_them_all_or_none(tmp_path, extras, quick):
    folder = sample.publish(tmp_path, figure=False)
    seen = set()

    def after():
        results.open_package("sample", "v0", tmp_path)
        assert results.verify(folder) == []
        seen.add("notebook" in resources(folder))
        sample.publish(tmp_path, figure=False)

    assert steps_survived(lambda: results.add_files(folder, extras), after) >= 10
    assert seen == {False, True}


def test_two_writers_at_once_leave_one_whole_package(tmp_path, quick):
    folder = sample.publish(tmp_path, figure=False)
    bounds = {n: sample.audit_rows([n])[0]["epsilon_lower_bound"] for n in (700, 800, 900)}
    failures, stop = [], threading.Event()

    def write(n_correct):
        try:
            for _ in range(15):
                sample.publish(tmp_path, rows=sample.audit_rows([n_correct]), figure=False)
        except Exception as error:  # noqa: BLE001, told to the test
            failures.append(error)

    def recover():
        # A reader that finds the place empty puts the old package back under the writers' feet.
        while not stop.is_set():
            folders.recover(folder)

    writers = [threading.Thread(target=write, args=(n,)) for n in bounds]
    reader = threading.Thread(target=recover)
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert failures == []
    assert bound(folder) in bounds.values()
    assert results.verify(folder) == []


def test_a_living_writers_folder_is_left_alone(tmp_path):
    living = results.Draft("sample", "v0", tmp_path)
    living.write_table("audits", sample.audit_rows([900]), sample.AUDITS)
    sample.publish(tmp_path, figure=False)
    results.check_writable("sample", "v0", results_dir=tmp_path)
    sample.finish(living)
    assert bound(tmp_path / "sample" / "v0") == sample.audit_rows([900])[0]["epsilon_lower_bound"]


def test_another_computers_folder_is_left_alone_until_it_is_old(tmp_path):
    folder = tmp_path / "sample" / ".v0.staging-elsewhere-1-00ff"
    folder.mkdir(parents=True)
    results.check_writable("sample", "v0", results_dir=tmp_path)
    assert folder.exists()
    long_ago = folder.stat().st_mtime - folders.ABANDONED_AFTER_S - 1
    os.utime(folder, (long_ago, long_ago))
    results.check_writable("sample", "v0", results_dir=tmp_path)
    assert not folder.exists()


def test_v1_does_not_tidy_v10(tmp_path):
    other = results.Draft("sample", "v10", tmp_path)
    results.check_writable("sample", "v1", results_dir=tmp_path)
    assert other.folder.exists()


def test_a_dropped_draft_leaves_nothing_but_a_forked_copy_leaves_it_alone(tmp_path):
    draft = results.Draft("sample", "v0", tmp_path)
    folder = draft.folder

    def drop_copy():
        nonlocal draft
        del draft

    process = multiprocessing.get_context("fork").Process(target=drop_copy)
    process.start()
    process.join()
    assert folder.exists()
    del draft
    assert not folder.exists()


def test_results_import_without_torch():
    code = "import sys, lib.results; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent, check=True)
