"""Sweeps: the same rows whatever happens on the way, and nothing finished is lost."""

import errno
import hashlib
import importlib
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import lib
from lib import dependencies, sweep
from lib.errors import WorkbookError

# A module of lib with cells to sweep, and one it depends on.
CELLS = '''
"""Cells for tests."""

import os
import pathlib
import signal
import time

import numpy as np

from lib import helper, paths

CAPTION = "a figure"


def caption():
    return CAPTION, paths.ROOT


def note(cell):
    """Leaves a trace of a computed cell."""
    if "log" in cell:
        with open(cell["log"], "a") as log:
            log.write(f"{os.getpid()} {cell['name']}\\n")


def draw(cell, streams, dataset):
    """A few numbers of each type."""
    note(cell)
    time.sleep(cell.get("seconds", 0))
    values = streams.generator("noise").normal(size=2) + helper.offset()
    return [
        {"name": cell["name"], "value": float(value), "even": step % 2 == 0, "gap": None}
        for step, value in enumerate(values)
    ]


def mean(cell, streams, dataset):
    return [{"mean": float(dataset.train_images.mean()), "n": len(dataset.train_images)}]


def die(cell, streams, dataset):
    """Ends its process: always, or the first time if the cell names a mark."""
    mark = pathlib.Path(cell.get("mark", "/nowhere/to/be/found"))
    if cell["name"] == "c" and not mark.exists():
        if "mark" in cell:
            mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.05)
    return draw(cell, streams, dataset)


def fail(cell, streams, dataset):
    """Fails in c; if the cell names a log, after the five other cells have ended."""
    if cell["name"] == "c":
        while "log" in cell and pathlib.Path(cell["log"]).read_text().count("end") < 5:
            time.sleep(0.01)
        time.sleep(0.3 if "log" in cell else 0)  # the last of them is still on its way
        raise ValueError("no such thing")
    if cell["name"] == "refused":
        raise helper.refusal()
    rows = draw(cell, streams, dataset)
    note(cell | {"name": "end"})
    return rows


def answer(cell, streams, dataset):
    return {
        "nan": [{"x": 1.0, "loss": float("nan")}],
        "inf": [{"loss": np.float64("inf")}],
        "array": [{"loss": np.zeros((2, 2))}],
        "integer": [{"n": np.int64(3)}],
        "generator": [{"rows": (row for row in [])}],
        "table": {"loss": 1.0},
        "none": None,
        "key": [{3: 1.0}],
    }[cell["kind"]]
'''
HELPER = '''
"""What the cells depend on."""

from lib.errors import WorkbookError


def offset():
    """Zero."""
    return 0.0


def refusal():
    return WorkbookError("epsilon = 0 is not allowed")
'''
NAMES = "abcdef"


def cells(names=NAMES, **more):
    return [{"name": name, **more} for name in names]


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The module `lib.cells_for_tests`, from a folder added to the package."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "cells_for_tests.py").write_text(CELLS)
    (folder / "helper.py").write_text(HELPER)
    monkeypatch.setattr(lib, "__path__", [*lib.__path__, str(folder)])
    importlib.invalidate_caches()
    yield importlib.import_module("lib.cells_for_tests")
    for name in ("cells_for_tests", "helper"):
        sys.modules.pop(f"lib.{name}", None)
        vars(lib).pop(name, None)


@pytest.fixture
def workbook(tmp_path):
    """A copy of the library, with the cells, that other processes can import."""
    folder = tmp_path / "copy"
    (folder / "lib").mkdir(parents=True)
    for name in ("__init__", "errors", "paths", "dependencies", "sweep"):
        shutil.copy(Path(lib.__file__).with_name(f"{name}.py"), folder / "lib")
    (folder / "lib" / "cells_for_tests.py").write_text(CELLS)
    (folder / "lib" / "helper.py").write_text(HELPER)
    return folder


def start(workbook, script, **environment):
    """Starts a Python process that sees the copy of the library (and no terminal)."""
    environment = {**os.environ, "PYTHONPATH": str(workbook), **environment}
    environment.pop("DP_WORKBOOK_TTY", None)
    start = "import json, sys\nfrom lib import sweep, cells_for_tests as example\n"
    return subprocess.Popen(
        [sys.executable, "-c", start + textwrap.dedent(script)],
        cwd=workbook,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    """What the process printed, as JSON."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return json.loads(output)


def execute(workbook, script, **environment):
    return finish(start(workbook, script, **environment))


def call(function="draw", given=None, **options):
    """The text of a script that prints the rows of a sweep as JSON."""
    options = "".join(f", {name}={value!r}" for name, value in {"seed": 7, **options}.items())
    given = cells() if given is None else given
    return f"print(json.dumps(sweep.run(example.{function}, {given!r}{options})))"


def computed(log):
    return sorted(line.split()[1] for line in Path(log).read_text().splitlines())


def wait_until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def entries(folder):
    return sorted(Path(folder).rglob("output.pkl"))


# ------------------------------------------------------------------------------ randomness


def test_streams_are_pinned():
    digest = hashlib.sha256(b'[7, {"epsilon": 1.0, "run": 3}, "noise"]').digest()
    streams = sweep.Streams(7, {"run": 3, "epsilon": 1.0})
    assert streams.sequence("noise").entropy == list(struct.unpack("<8I", digest))


def test_streams_do_not_collide():
    states = {
        tuple(sweep.Streams(0, {"run": run}).sequence("coins").generate_state(4))
        for run in range(10_000)
    }
    assert len(states) == 10_000
    keys = [(0, {}), (1, {}), (0, {"a": 0}), (0, {"a": 0, "b": 0}), (0, {"a": 1}), (0, {"b": 1})]
    keys += [(0, {"a": 1.0}), (0, {"a": True}), (0, {"a": "1"}), (0, {"a": [1]}), (10, {"a": 0})]
    draws = {
        sweep.Streams(seed, cell).generator(purpose).integers(2**63)
        for seed, cell in keys
        for purpose in ("coins", "noise", "")
    }
    assert len(draws) == 3 * len(keys)


def test_streams_know_no_order_and_no_state():
    first, second = sweep.Streams(1, {"a": 1, "b": 2}), sweep.Streams(1, {"b": 2, "a": 1})
    first.generator("coins").normal(size=5)
    assert first.generator("coins").normal() == second.generator("coins").normal()


def test_entropy_does_not_depend_on_the_hash_seed(workbook):
    script = "print(json.dumps(sweep.Streams(1, {'b': 'x', 'a': 2}).sequence('n').entropy))"
    states = [execute(workbook, script, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert states[0] == states[1] == sweep.Streams(1, {"a": 2, "b": "x"}).sequence("n").entropy


# ------------------------------------------------------------------------------- same rows


def test_rows_come_in_the_order_of_the_cells(example, tmp_path):
    rows = sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path)
    assert [row["name"] for row in rows] == [name for name in NAMES for _ in range(2)]
    assert list(rows[0]) == ["name", "value", "even", "gap"]
    assert (rows[0]["even"], rows[0]["gap"]) == (True, None)
    kept = sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path)
    assert json.dumps(kept) == json.dumps(rows)


def test_same_bytes_for_workers_orders_and_a_cell_alone(workbook, example, tmp_path):
    rows = sweep.run(example.draw, cells(), seed=7, cache_dir=tmp_path / "here")
    script = f"""
        backwards = sweep.run(example.draw, {cells()[::-1]!r}, seed=7, n_jobs=2, cache_dir="a")
        print(json.dumps([
            sweep.run(example.draw, {cells()!r}, seed=7, n_jobs=2, cache_dir="b"),
            sorted(backwards, key=lambda row: row["name"]),
            sweep.run(example.draw, {cells("d")!r}, seed=7, n_jobs=-1, cache_dir="c"),
        ]))"""
    together, backwards, alone = execute(workbook, script)
    assert json.dumps(together) == json.dumps(backwards) == json.dumps(rows)
    assert alone == rows[6:8]


def test_seed_zero_is_a_seed(example, tmp_path):
    def sweep_with(seed):
        return sweep.run(example.draw, cells("a"), seed=seed, cache_dir=tmp_path / str(seed))

    assert sweep_with(0) == sweep_with(0) != sweep_with(1)


def test_twin_cells_are_computed_once(example, tmp_path):
    log = str(tmp_path / "log")
    rows = sweep.run(example.draw, cells("aba", log=log), seed=0, cache_dir=tmp_path)
    assert computed(log) == ["a", "b"]
    assert rows[:2] == rows[4:]


def test_the_dataset_reaches_the_cells_and_the_key(workbook):
    script = """
        import dataclasses, numpy as np

        @dataclasses.dataclass(frozen=True)
        class Dataset:
            train_images: np.ndarray
            checksum: str

        ones = Dataset(np.ones((600, 28, 28, 3), np.uint8), "1")
        twos = Dataset(np.full((600, 28, 28, 3), 2, np.uint8), "2")
        cells = [{"run": 1}, {"run": 2}]
        print(json.dumps([
            sweep.run(example.mean, cells, seed=0, dataset=dataset, n_jobs=n_jobs)
            for dataset, n_jobs in ((ones, 1), (twos, 2), (ones, 2))
        ]))"""
    first, second, again = execute(workbook, script)
    assert first == again == [{"mean": 1.0, "n": 600}] * 2
    assert second == [{"mean": 2.0, "n": 600}] * 2


def test_one_thread_whatever_the_environment(workbook):
    (workbook / "lib" / "cells_for_tests.py").write_text(
        textwrap.dedent(
            """
            import threadpoolctl

            def threads(cell, streams, dataset):
                import torch
                pools = threadpoolctl.threadpool_info()
                layer = torch.nn.Linear(300, 300)
                generator = torch.Generator().manual_seed(cell["run"])
                images = torch.randn(512, 300, generator=generator)
                return [{
                    "torch": torch.get_num_threads(),
                    "most": max(pool["num_threads"] for pool in pools),
                    "sum": float((images @ images.T).sum()),
                }]
            """
        )
    )
    script = """
        import torch
        torch.set_num_threads(3)
        cells = [{"run": 1}, {"run": 2}]
        serial = sweep.run(example.threads, cells, seed=0, cache_dir="a")
        print(json.dumps([
            serial,
            sweep.run(example.threads, cells, seed=0, cache_dir="b", n_jobs=2),
            torch.get_num_threads(),
        ]))"""
    serial, workers, afterwards = execute(workbook, script, OMP_NUM_THREADS="3")
    assert serial == workers
    assert {(row["torch"], row["most"]) for row in serial} == {(1, 1)}
    assert afterwards == 3


# --------------------------------------------------------------------------- what is refused


def test_functions_that_workers_could_not_find(example, tmp_path):
    def local(cell, streams, dataset):
        return []

    local.__module__ = "lib.cells_for_tests"
    for function in (local, lambda cell, streams, dataset: [], cells, print):
        with pytest.raises(WorkbookError, match=r"cannot be swept.*top level of a module of lib"):
            sweep.run(function, cells(), seed=0, cache_dir=tmp_path)


@pytest.mark.parametrize("n_jobs", [0, -2, 1.0, True, None, "2"])
def test_numbers_of_jobs(example, tmp_path, n_jobs):
    with pytest.raises(WorkbookError, match=r"n_jobs = .* at least 1, or -1") as caught:
        sweep.run(example.draw, cells(), seed=0, n_jobs=n_jobs, cache_dir=tmp_path)
    assert repr(n_jobs) in str(caught.value)


@pytest.mark.parametrize("seed", [-1, True, 1.0, None])
def test_seeds(example, tmp_path, seed):
    with pytest.raises(WorkbookError, match=r"seed = .* is not allowed"):
        sweep.run(example.draw, cells(), seed=seed, cache_dir=tmp_path)


@pytest.mark.parametrize(
    "cell",
    [
        {"a": float("nan")},
        {"a": np.zeros(2)},
        {"a": (1, 2)},
        {1: 2},
        ["a"],
        {"a": {1}},
        {1: 2, "a": 3},
    ],
)
def test_cells_that_are_not_json(example, tmp_path, cell):
    with pytest.raises(WorkbookError, match="a cell must"):
        sweep.run(example.draw, [cell], seed=0, cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("nan", "column loss is nan"),
        ("inf", "column loss is inf"),
        ("array", "column loss holds ndarray"),
        ("integer", "column n holds int64"),
        ("generator", "column rows holds generator"),
        ("table", "must return a list of rows"),
        ("none", "must return a list of rows"),
        ("key", "column name 3 is not text"),
    ],
)
def test_rows_that_cannot_be_kept(example, tmp_path, kind, words):
    with pytest.raises(WorkbookError, match=words) as caught:
        sweep.run(example.answer, [{"kind": kind}], seed=0, cache_dir=tmp_path)
    assert f'{{"kind": "{kind}"}}' in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not entries(tmp_path)


def test_unpicklable_rows_fail_at_once_in_workers_too(workbook):
    script = """
        from lib.errors import WorkbookError
        try:
            sweep.run(example.answer, [{"kind": "generator"}, {"kind": "nan"}], seed=0, n_jobs=2)
        except WorkbookError as error:
            print(json.dumps(str(error)))"""
    assert "column" in execute(workbook, script)


# -------------------------------------------------------------------------- errors in a cell


def test_an_error_names_its_cell_and_keeps_what_is_finished(example, tmp_path):
    with pytest.raises(sweep.CellError, match=r'"name": "c".*ValueError: no such thing') as caught:
        sweep.run(example.fail, cells(), seed=0, cache_dir=tmp_path)
    assert isinstance(caught.value.__cause__, ValueError)
    assert len(entries(tmp_path)) == 2
    with pytest.raises(WorkbookError, match=r"^epsilon = 0 is not allowed$"):
        sweep.run(example.fail, cells(["refused"]), seed=0, cache_dir=tmp_path)


def test_an_error_in_a_worker(workbook):
    log = workbook / "log"
    log.touch()
    given = cells(log=str(log))
    script = f"""
        try:
            sweep.run(example.fail, {given!r}, seed=0, n_jobs=2)
        except sweep.CellError as error:
            print(json.dumps([str(error), error.__notes__]))"""
    message, notes = execute(workbook, script)
    assert '"name": "c"' in message
    assert "ValueError: no such thing" in message
    assert 'raise ValueError("no such thing")' in notes[0]
    assert len(entries(workbook / ".cache")) == 5


def test_a_killed_worker_is_told_in_one_line(workbook):
    script = f"""
        from lib.errors import WorkbookError
        try:
            sweep.run(example.die, {cells("abc")!r}, seed=0, n_jobs=2)
        except WorkbookError as error:
            print(json.dumps(str(error)))"""
    message = execute(workbook, script)
    assert "killed from outside" in message
    assert "\n" not in message


# ----------------------------------------------------------------------- stored and resumed


def test_only_missing_cells_are_computed(example, tmp_path):
    log = str(tmp_path / "log")
    sweep.run(example.draw, cells("abd", log=log), seed=0, cache_dir=tmp_path)
    sweep.run(example.draw, cells(log=log), seed=0, cache_dir=tmp_path)
    assert computed(log) == list(NAMES)


def test_a_killed_sweep_goes_on_where_it_was(workbook):
    log = str(workbook / "log")
    given = cells(log=log, seconds=0.2)
    process = start(workbook, call(given=given, n_jobs=2))
    wait_until(lambda: len(entries(workbook / ".cache")) >= 2)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    kept = len(entries(workbook / ".cache"))
    workers = {int(line.split()[0]) for line in Path(log).read_text().splitlines()}
    for worker in workers:  # they leave with their parent
        wait_until(lambda worker=worker: not is_running(worker), seconds=5)

    before = len(computed(log))
    resumed = execute(workbook, call(given=given, n_jobs=2))
    assert len(computed(log)) - before == len(given) - kept < len(given)
    undisturbed = execute(workbook, call(given=given, cache_dir="another"))
    assert json.dumps(resumed) == json.dumps(undisturbed)


def is_running(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # nobody may be there to bury it


def test_two_processes_with_the_same_sweep(workbook):
    given = cells("abcdefghijklmnop", seconds=0.02)
    processes = [start(workbook, call(given=given)) for _ in range(2)]
    first, second = map(finish, processes)
    assert json.dumps(first) == json.dumps(second)
    assert len(entries(workbook / ".cache")) == len(given)


def test_damaged_entries_are_computed_again(example, tmp_path, capsys):
    rows = sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path)
    short, empty, flipped, other = entries(tmp_path)[:4]
    short.write_bytes(short.read_bytes()[:-20])
    empty.write_bytes(b"")
    flipped.write_bytes(flipped.read_bytes().replace(b'"even": true', b'"even": null'))
    other.write_bytes(b"\x80\x04K\x07.")  # a whole pickle of something else
    capsys.readouterr()
    assert sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path) == rows
    assert capsys.readouterr().err.startswith("4 damaged cell(s) in ")
    assert sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path) == rows
    assert "damaged" not in capsys.readouterr().err


def test_a_full_disk_is_an_error_in_one_line(example, tmp_path, monkeypatch):
    sweep.run(example.draw, cells("a"), seed=0, cache_dir=tmp_path)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("joblib.numpy_pickle.dump", full)
    with pytest.raises(
        WorkbookError, match=r"cannot be kept in .*No space left on device"
    ) as caught:
        sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path)
    assert "\n" not in str(caught.value)
    assert len(entries(tmp_path)) == 1


def test_a_place_that_cannot_be_written(example, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(WorkbookError, match="cannot be kept in"):
        sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path / "file" / "cells")


# --------------------------------------------------------------------------- code of a cell


def edit(module, old, new):
    """Changes the source of a module and loads it again."""
    file = Path(module.__file__)
    assert old in file.read_text()
    edited = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace(old, new))
    os.utime(file, ns=(edited + 10**9, edited + 10**9))


def test_a_changed_helper_is_seen(example, tmp_path):
    rows = sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path)
    helper = sys.modules["lib.helper"]
    edit(helper, "return 0.0", "return 100.0")
    # The old code is still loaded: its rows must not be kept as the new code's.
    with pytest.raises(WorkbookError, match=r"helper\.py was changed after .* restart the kernel"):
        sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path)
    importlib.reload(helper)
    changed = sweep.run(example.draw, cells(), seed=0, cache_dir=tmp_path)
    assert [row["value"] for row in changed] == [row["value"] + 100 for row in rows]


def test_workers_serve_one_sweep_after_another(workbook):
    logs = [str(workbook / name) for name in ("first", "second")]
    script = f"""
        for function, log in zip((example.draw, example.fail), {logs!r}):
            given = [{{"name": name, "log": log, "seconds": 0.3}} for name in "ab"]
            sweep.run(function, given, seed=0, n_jobs=2)
        print("[]")"""
    execute(workbook, script)
    first, second = (
        {line.split()[0] for line in Path(log).read_text().split("\n")[:-1]} for log in logs
    )
    assert first == second


def test_workers_see_a_changed_helper(workbook):
    script = f"""
        import importlib, os, pathlib
        from lib import helper
        rows = [sweep.run(example.draw, {cells("ab")!r}, seed=0, n_jobs=2)]
        file = pathlib.Path(helper.__file__)
        file.write_text(file.read_text().replace("return 0.0", "return 100.0"))
        os.utime(file, (0, 0))
        importlib.reload(helper)
        rows.append(sweep.run(example.draw, {cells("ab")!r}, seed=0, n_jobs=2))
        print(json.dumps(rows))"""
    before, after = execute(workbook, script)
    assert [row["value"] for row in after] == [row["value"] + 100 for row in before]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"""A few numbers of each type."""', '"""Some numbers."""', True),
        ("def note(cell):", "# a remark\n\n\ndef note(cell):", True),
        ('CAPTION = "a figure"', 'CAPTION = "another"', True),  # the cells do not name it
        ("step % 2 == 0", "step % 2 == 1", False),
        ('if "log" in cell:', 'if "logs" in cell:', False),  # in a function that draw calls
        ("import helper, paths", "import helper, errors as paths", True),
        ("import helper, paths", "import errors as helper, paths", False),
        ("def draw(", "@print\ndef register():\n    return draw\n\n\ndef draw(", False),
        ("def draw(", "np.random.seed(1)\n\n\ndef draw(", False),
    ],
)
def test_what_the_digest_covers(example, old, new, same):
    before = sweep.code_digest(example.draw)
    edit(example, old, new)
    assert (sweep.code_digest(example.draw) == before) is same


def test_the_digest_follows_imports_inside_functions(example):
    edit(example, "    time.sleep(cell", "    from lib.data import load\n\n    time.sleep(cell")
    code = dependencies.of(example.draw)
    assert {"lib", "lib.cells_for_tests", "lib.helper", "lib.errors", "lib.data"} <= set(
        code.modules
    )
    assert {"numpy", "os", "time"} <= code.packages
    assert "torch" not in dependencies.of(example.fail).packages


# --------------------------------------------------------------------------------- progress


def test_without_a_terminal_two_lines(example, tmp_path, capfd):
    sweep.run(example.draw, cells("ab"), seed=0, cache_dir=tmp_path, description="audit")
    first, last = capfd.readouterr().err.splitlines()
    assert first == "audit: 2 cells, 0 of them kept earlier"
    assert re.fullmatch(r"audit: 2 computed in \d+ s", last)
    sweep.run(example.draw, cells("ab"), seed=0, cache_dir=tmp_path)
    assert capfd.readouterr().err.splitlines() == ["draw: 2 cells, 2 of them kept earlier"]


def test_a_bar_on_the_named_terminal(example, tmp_path, capfd, monkeypatch):
    leader, follower = pty.openpty()
    monkeypatch.setenv("DP_WORKBOOK_TTY", os.ttyname(follower))
    sweep.run(example.draw, cells("ab"), seed=0, cache_dir=tmp_path, description="audit")
    shown = ""
    while select.select([leader], [], [], 0)[0]:
        shown += os.read(leader, 10_000).decode()
    assert "audit: 100%" in shown
    assert "2/2" in shown
    assert capfd.readouterr().err == ""
    os.close(follower)
    os.close(leader)


def test_a_terminal_that_goes_away_stops_nothing(example, tmp_path, monkeypatch):
    leader, follower = pty.openpty()
    monkeypatch.setenv("DP_WORKBOOK_TTY", os.ttyname(follower))
    os.close(follower)
    with sweep.progress(3, description="audit") as advance:
        os.close(leader)
        for _ in range(3):
            time.sleep(0.6)
            advance()
    monkeypatch.setenv("DP_WORKBOOK_TTY", "/nowhere/to/be/found")
    assert sweep.run(example.draw, cells("a"), seed=0, cache_dir=tmp_path)


# ------------------------------------------------------------------------------ Dask cluster

CLUSTER = """
import dask, logging, time
from distributed import LocalCluster
from lib.errors import WorkbookError

dask.config.set({
    "distributed.scheduler.allowed-failures": 0,
    "distributed.comm.timeouts.connect": "2s",  # Dask looks that long for results of the dead
})
options = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.CRITICAL}
"""


def on_cluster(workbook, script, **environment):
    return execute(workbook, CLUSTER + textwrap.dedent(script), **environment)


def test_a_cluster_gives_the_serial_rows_though_a_worker_dies(workbook):
    given = cells("abcdefghijkl", mark=str(workbook / "mark"))
    script = f"""
        dask.config.set({{"distributed.scheduler.allowed-failures": 3}})
        with LocalCluster(n_workers=2, **options) as cluster:
            rows = sweep.run(example.die, {given!r}, seed=7, scheduler=cluster.scheduler_address)
        print(json.dumps([rows, sweep.run(example.die, {given!r}, seed=7, cache_dir="here")]))"""
    cluster, serial = on_cluster(workbook, script)
    assert (workbook / "mark").exists()
    assert json.dumps(cluster) == json.dumps(serial)
    assert len(entries(workbook / ".cache")) == len(given)


def test_what_a_cluster_gives_up_or_fails_at(workbook):
    script = f"""
        def message(function, cells):
            try:
                sweep.run(function, cells, seed=0, scheduler=cluster.scheduler_address)
            except (WorkbookError, sweep.CellError) as error:
                return [type(error).__name__, str(error), getattr(error, "__notes__", [])]

        with LocalCluster(n_workers=2, **options) as cluster:
            print(json.dumps([
                message(example.fail, {cells("ac")!r}),
                message(example.fail, {cells(["refused"])!r}),
                message(example.die, {cells("c")!r}),
            ]))"""
    failed, refused, died = on_cluster(workbook, script)
    assert failed[0] == "CellError"
    assert '"name": "c"' in failed[1]
    assert 'raise ValueError("no such thing")' in failed[2][0]
    assert refused[:2] == ["WorkbookError", "epsilon = 0 is not allowed"]
    assert died[0] == "WorkbookError"
    assert "lost a cell of lib.cells_for_tests.die" in died[1]
    assert "\n" not in died[1]


def test_workers_that_would_compute_something_else(workbook, tmp_path):
    other, empty = tmp_path / "other", tmp_path / "empty"
    shutil.copytree(workbook, other)
    (other / "lib" / "helper.py").write_text(HELPER.replace("0.0", "1.0"))
    (empty / "lib").mkdir(parents=True)
    (empty / "lib" / "__init__.py").touch()
    script = f"""
        import os, subprocess

        def message(folder):
            command = [sys.executable, "-m", "distributed.cli.dask_worker", "--no-nanny",
                       "--no-dashboard", "--nthreads", "1", cluster.scheduler_address]
            worker = subprocess.Popen(
                command, cwd=folder, env={{**os.environ, "PYTHONPATH": folder}},
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            try:
                sweep.run(example.draw, {cells("a")!r}, seed=0, scheduler=cluster.scheduler_address)
            except WorkbookError as error:
                return str(error)
            finally:
                worker.terminate()
                worker.wait()
                while cluster.scheduler.workers:
                    time.sleep(0.01)

        with LocalCluster(n_workers=0, **options) as cluster:
            print(json.dumps([message(folder) for folder in {[str(other), str(empty)]!r}]))"""
    changed, missing = on_cluster(workbook, script)
    assert "has the code of lib.cells_for_tests.draw" in changed
    assert "cannot load lib.cells_for_tests.draw" in missing
    assert changed.startswith("the Dask worker tcp://")
    assert missing.startswith("the Dask worker tcp://")
    assert not entries(workbook / ".cache")


def test_another_version_on_a_worker_is_named(monkeypatch, example):
    code = dependencies.of(example.draw)
    task = sweep._Task(example.draw, 0, None, False, code.digest)

    class Client:
        def wait_for_workers(self, *_, **__):
            pass

        def get_versions(self, packages):
            here = {"python": "3.11.7", "torch": "2.14.1"}
            there = {"python": "3.11.7", "torch": "2.13.0"}
            return {
                "client": {"packages": here},
                "workers": {"tcp://1:1": {"packages": here}, "tcp://2:2": {"packages": there}},
            }

    with pytest.raises(WorkbookError, match=r"tcp://2:2 has torch 2\.13\.0, this process 2\.14\.1"):
        sweep._check_workers(Client(), task)


def test_a_dead_address_fails_in_seconds(example, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "CLUSTER_TIMEOUT_SECONDS", 1)
    started = time.monotonic()
    with pytest.raises(WorkbookError, match="no Dask scheduler answers at scheduler") as caught:
        sweep.run(example.draw, cells(), seed=0, scheduler="tcp://127.0.0.1:9", cache_dir=tmp_path)
    assert time.monotonic() - started < 5
    assert "\n" not in str(caught.value)
