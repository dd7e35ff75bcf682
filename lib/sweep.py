"""Sweeps: a pure function mapped over cells, with every finished cell kept.

A *cell* is a small dictionary of parameters (JSON values), the unit of work. Its rows depend on
the function, the cell, the seed and the dataset, and on nothing else: not on the order of the
cells, the number of workers or threads, or the machine's other work. So a sweep can be stopped
at any moment and goes on where it was, and its rows are the same bytes either way.

`run` is the only entry. The process that calls it stores each cell the moment it ends (with
`joblib.Memory`, under `.cache/cells`); workers (`joblib.Parallel`, or a Dask cluster) only compute.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import json
import math
import os
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import joblib
import numpy as np
from joblib.externals.loky.process_executor import BrokenProcessPool
from threadpoolctl import threadpool_limits
from tqdm import tqdm

import lib
from lib import dependencies, paths
from lib.dependencies import code_digest
from lib.errors import WorkbookError

__all__ = ["CellError", "Streams", "code_digest", "progress", "run"]

Rows = list[dict]
PARENT_CHECK_SECONDS = 1.0
CLUSTER_TIMEOUT_SECONDS = 5
# What decides the digits of a result and must be equal on every machine of a cluster.
DECISIVE_PACKAGES = ("numpy", "scipy", "torch", "torchvision", "opacus", "dp-accounting")
# Read by the numerical libraries when they are loaded, which a cell itself may cause.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class CellError(Exception):
    """A cell's function failed; the text names the cell, the cause is the original error."""


# ----------------------------------------------------------------------------- randomness


class Streams:
    """The independent random streams of one cell, one for each purpose.

    The entropy of a stream is the SHA-256 digest (eight 32-bit words) of the canonical JSON of
    [seed, cell, purpose]. The length is fixed on purpose: `numpy.random.SeedSequence` pads shorter
    entropy with zeros, so that (7), (7, 0) and (7, 0, 0) would be one stream.
    """

    def __init__(self, seed: int, cell: Mapping):
        self.seed = _checked_seed(seed)
        self.cell = json.loads(_canonical(dict(cell)))

    def sequence(self, purpose: str) -> np.random.SeedSequence:
        """Seed sequence for a purpose ("coins", "initialisation", "batches", "noise", …)."""
        text = json.dumps([self.seed, self.cell, purpose], sort_keys=True, allow_nan=False)
        words = np.frombuffer(hashlib.sha256(text.encode()).digest(), dtype="<u4")
        return np.random.SeedSequence(words.tolist())

    def generator(self, purpose: str) -> np.random.Generator:
        """A fresh generator for a purpose: two calls with one purpose give equal numbers."""
        return np.random.default_rng(self.sequence(purpose))


# ------------------------------------------------------------------------------- the entry


def run(
    function: Callable[[dict, Streams, object], Rows],
    cells: Iterable[Mapping],
    *,
    seed: int,
    dataset=None,
    n_jobs: int = 1,
    scheduler: str | None = None,
    cache_dir: str | os.PathLike | None = None,
    description: str | None = None,
) -> Rows:
    """Rows of `function(cell, streams, dataset)` over all cells, in the order of the cells.

    Args:
        function: defined at the top of a module of `lib`; a pure function of its arguments that
            returns rows: flat dictionaries of text, finite numbers, booleans and None.
        cells: dictionaries of JSON values. A cell that occurs twice is computed once.
        seed: whole number, at least 0, behind all randomness (see `Streams`).
        dataset: a `lib.data.Dataset` or None, handed to the function; only its checksum decides
            whether stored rows are used again.
        n_jobs: worker processes on this machine, at least 1, or -1 for one a core. 1 computes in
            this process. Whatever it is, a cell runs with one thread.
        scheduler: address of a Dask scheduler ("tcp://host:port"), whose workers then compute
            instead (n_jobs is not used); None or "" for this machine.
        cache_dir: where finished cells are kept (default `.cache/cells` in the repository).
        description: what the progress bar calls this sweep (default: the function's name).

    Raises:
        WorkbookError: arguments that are not allowed, rows that are not JSON, a full disk, a dead
            worker or scheduler; and whatever WorkbookError the function raises.
        CellError: the function failed otherwise; the text names the cell. What was finished before
            is kept in every case.
    """
    _check_function(function)
    n_jobs, seed = _checked_n_jobs(n_jobs), _checked_seed(seed)
    texts = [_canonical(cell) for cell in cells]
    code = dependencies.of(function)
    dependencies.check_loaded(code)
    checksum = None if dataset is None else dataset.checksum
    task = _Task(function, seed, checksum, "torch" in code.packages, code.digest)

    store = _Store(paths.CACHE / "cells" if cache_dir is None else Path(cache_dir), task)
    rows = {text: store.read(text) for text in dict.fromkeys(texts)}
    store.report_damage()
    missing = [text for text, stored in rows.items() if stored is None]
    if scheduler:
        results = _on_cluster(missing, task, dataset, scheduler)
    else:
        results = _on_this_machine(missing, task, dataset, min(n_jobs, len(missing)))
    name = description or function.__name__
    with (
        progress(len(rows), done=len(rows) - len(missing), description=name) as advance,
        contextlib.closing(results),
    ):
        for text, result in results:
            if isinstance(result, Exception):
                raise result
            store.write(text, result)
            rows[text] = result
            advance()
    return [row for text in texts for row in json.loads(rows[text])]


def _check_function(function: Callable) -> None:
    module = getattr(function, "__module__", None) or "?"
    name = getattr(function, "__qualname__", None) or repr(function)
    found = getattr(sys.modules.get(module), name, None)
    if not module.startswith(f"{lib.__name__}.") or found is not function:
        raise WorkbookError(
            f"{module}.{name} cannot be swept: its cells are computed in other processes and kept"
            " by its code, so define it at the top level of a module of lib"
        )


def _checked_n_jobs(n_jobs: int) -> int:
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or (n_jobs < 1 and n_jobs != -1):
        raise WorkbookError(
            f"n_jobs = {n_jobs!r} is not allowed: give a whole number of worker processes, at"
            " least 1, or -1 for one a core"
        )
    return joblib.cpu_count() if n_jobs == -1 else n_jobs


def _checked_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise WorkbookError(f"seed = {seed!r} is not allowed: give a whole number, at least 0")
    return int(seed)


def _canonical(cell: Mapping) -> str:
    """The one text of a cell (sorted keys), the same for equal cells; refuses what is not JSON."""
    try:
        text = json.dumps(cell, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise WorkbookError(
            f"a cell must hold JSON values only, not {_short(cell)}: {error}"
        ) from None
    if not isinstance(cell, dict) or json.loads(text) != cell:
        raise WorkbookError(
            f"a cell must be a dictionary with text keys and JSON values, not {_short(cell)}"
            " (a tuple, for example, would come back as a list)"
        )
    return text


# ------------------------------------------------------------------------ computing a cell


@dataclass(frozen=True)
class _Task:
    """What all cells of one sweep share, but the dataset; travels to the workers."""

    function: Callable
    seed: int
    checksum: str | None  # of the dataset
    uses_torch: bool
    digest: str  # of the code

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{self.function.__qualname__}"


def _compute(text: str, task: _Task, dataset) -> str:
    """The rows of one cell as JSON text."""
    where = f"cell {text} of {task.name}"
    try:
        rows = task.function(json.loads(text), Streams(task.seed, json.loads(text)), dataset)
    except WorkbookError:
        raise
    except (Exception, SystemExit) as error:
        raise CellError(f"{where} failed: {type(error).__name__}: {error}") from error
    _check_rows(rows, where)
    return json.dumps(rows, allow_nan=False)


def _check_rows(rows: Rows, where: str) -> None:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise WorkbookError(f"{where}: the function must return a list of rows (dictionaries)")
    for column, value in itertools.chain.from_iterable(row.items() for row in rows):
        if not isinstance(column, str):
            raise WorkbookError(f"{where}: the column name {column!r} is not text")
        if not isinstance(value, (str, int, float, type(None))):
            raise WorkbookError(
                f"{where}: column {column} holds {type(value).__name__} {_short(value)}; only text,"
                " numbers, booleans and None can be kept (convert with int() or float())"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise WorkbookError(
                f"{where}: column {column} is {value}, which a CSV cannot hold; use None for a"
                " value that does not exist"
            )


def _compute_in_worker(text: str, task: _Task, dataset) -> tuple[str, str | Exception]:
    """The same in another process: an error is a result too, so it overtakes no finished cell."""
    with _ONE_CELL_AT_A_TIME:
        _use_one_thread(task.uses_torch)
        try:
            return text, _compute(text, task, dataset)
        except (WorkbookError, CellError) as error:
            if error.__cause__ is not None:  # causes do not travel, notes do
                error.add_note("".join(traceback.format_exception(error.__cause__)))
            return text, error


# A Dask worker may run several tasks in threads, which would share torch's global generator.
_ONE_CELL_AT_A_TIME = threading.Lock()


def _use_one_thread(uses_torch: bool) -> threadpool_limits:
    """One thread for every numerical library: other numbers of threads give other digits."""
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    if uses_torch:
        import torch

        torch.set_num_threads(1)
    return threadpool_limits(limits=1)


@contextlib.contextmanager
def _one_thread(uses_torch: bool) -> Iterator[None]:
    """One thread within, as many as before afterwards: this process is also the user's."""
    environment = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    if uses_torch:
        import torch

        torch_threads = torch.get_num_threads()
    limits = _use_one_thread(uses_torch)
    try:
        yield
    finally:
        limits.restore_original_limits()
        if uses_torch:
            torch.set_num_threads(torch_threads)
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# -------------------------------------------------------------------------- on this machine


def _on_this_machine(texts: list[str], task: _Task, dataset, n_jobs: int) -> Iterator:
    """(cell, its rows or its error) in the order of completion, by `n_jobs` processes."""
    if n_jobs > 1:
        yield from _with_workers(texts, task, dataset, n_jobs)
        return
    for text in texts:
        with _one_thread(task.uses_torch):
            rows = _compute(text, task, dataset)
        yield text, rows


def _with_workers(texts: list[str], task: _Task, dataset, n_jobs: int) -> Iterator:
    parallel = joblib.Parallel(
        n_jobs=n_jobs,
        backend="loky",
        return_as="generator_unordered",
        batch_size=1,  # in batches, finished cells would wait for others before they are kept
        initializer=_prepare_worker,
        # Where this process has torch, later sweeps will too: the same workers for all of them.
        initargs=(os.getpid(), task.uses_torch or "torch" in sys.modules, dependencies.on_disk()),
    )
    results = parallel(joblib.delayed(_compute_in_worker)(text, task, dataset) for text in texts)
    try:
        with warnings.catch_warnings():
            # joblib replaces a worker that has grown by a large dataset, and loses no cell.
            warnings.filterwarnings("ignore", message="A worker stopped while some jobs")
            yield from results
    except BrokenProcessPool as error:
        raise WorkbookError(
            f"a worker process computing {task.name} was killed from outside, often because memory"
            " ran out; finished cells are kept: run again, perhaps with a smaller n_jobs"
        ) from error
    finally:
        with warnings.catch_warnings():
            # joblib deplores the cells in flight when a sweep ends early, which is what we want.
            warnings.filterwarnings("ignore", message=r"\d+ tasks ")
            results.close()


def _prepare_worker(parent: int, uses_torch: bool, code: str) -> None:
    """Start of a worker process, which serves one sweep after another.

    Another `code` makes joblib start new workers, which load the changed one. torch is imported
    now because later joblib would take the memory it needs for a leak, and restart the worker.
    """
    threading.Thread(target=_exit_when_orphaned, args=(parent,), daemon=True).start()
    _use_one_thread(uses_torch)


def _exit_when_orphaned(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_SECONDS)
    os._exit(1)


# ------------------------------------------------------------------------- on a Dask cluster


def _on_cluster(texts: list[str], task: _Task, dataset, scheduler: str) -> Iterator:
    """(cell, its rows or its error) in the order of completion, from the workers of a Dask cluster.

    Dask's own `map` and `as_completed`, not joblib's backend for it: that one waits for ever for a
    task which Dask gives up, for example because it ended three workers.
    """
    if not texts:
        return
    import distributed

    with _client(scheduler) as client:
        _check_workers(client, task)
        if dataset is not None:  # once to every worker, not with every cell
            dataset = client.scatter(dataset, broadcast=True, hash=False)
        futures = client.map(
            _compute_in_worker,
            texts,
            task=task,
            dataset=dataset,
            pure=False,  # a name for each task, so that two sweeps on one cluster never share one
        )
        waiting = distributed.as_completed(futures, loop=client.loop)
        del futures  # the cluster forgets each result once it has been yielded
        try:
            for future in waiting:
                yield future.result()
        except (distributed.KilledWorker, distributed.CancelledError, OSError) as error:
            raise WorkbookError(
                f"the cluster at {scheduler} lost a cell of {task.name} ({_one_line(error)});"
                " finished cells are kept: see the workers' logs (memory?) and run again"
            ) from error
        finally:
            client.cancel(list(waiting.futures))


@contextlib.contextmanager
def _client(scheduler: str) -> Iterator:
    import distributed

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the versions are compared below, as errors
            client = distributed.Client(
                scheduler, timeout=CLUSTER_TIMEOUT_SECONDS, set_as_default=False
            )
    except (OSError, ValueError) as error:
        raise WorkbookError(
            f"no Dask scheduler answers at scheduler = {scheduler!r} ({_one_line(error)}): start"
            ' one with `dask scheduler`, or set scheduler to "" to compute on this machine'
        ) from None
    with client:
        yield client


def _check_workers(client, task: _Task) -> None:
    """Refuses, by name and before any work, workers that would compute something else."""
    import distributed

    try:
        client.wait_for_workers(1, timeout=CLUSTER_TIMEOUT_SECONDS)
    except distributed.TimeoutError:
        raise WorkbookError(
            "the Dask scheduler has no workers: start some with"
            f" `dask worker {client.scheduler.address} --nthreads 1`"
        ) from None
    versions = client.get_versions(packages=DECISIVE_PACKAGES)
    expected = versions["client"]["packages"]
    for worker, found in versions["workers"].items():
        for package, version in expected.items():
            _check_equal(worker, package, found["packages"].get(package), version)
    digests = client.run(
        _digest_here, task.function.__module__, task.function.__name__, on_error="return"
    )
    for worker, digest in digests.items():
        if isinstance(digest, Exception):
            raise WorkbookError(
                f"the Dask worker {worker} cannot load {task.name} ({_one_line(digest)}): start it"
                " in an environment with this workbook (`pip install -e ./lib`)"
            )
        _check_equal(worker, f"the code of {task.name}, digest", digest, task.digest)


def _check_equal(worker: str, what: str, there: str | None, here: str | None) -> None:
    if there != here:
        raise WorkbookError(
            f"the Dask worker {worker} has {what} {there}, this process {here}: give both the same"
            " environment and the same code, then restart the worker"
        )


def _digest_here(module: str, function: str) -> str:
    """On a worker: the digest of its own copy of the code."""
    code = dependencies.of(getattr(importlib.import_module(module), function))
    dependencies.check_loaded(code)
    return code.digest


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _short(value: object) -> str:
    return " ".join(repr(value).split())[:200]


# --------------------------------------------------------------------------- finished cells


def keep(function: str, cell: str, seed: int, dataset: str | None, code: str, text: str | None):
    """What is stored for a cell: its rows as JSON `text`, with their checksum.

    Cached by all arguments but the text. Without a text there is nothing to keep: an entry that
    another process has just removed.
    """
    if text is None:
        raise LookupError("no such entry")
    return {"rows": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}


class _Store:
    """The finished cells of one sweep, on disk. Safe for several processes at once."""

    def __init__(self, folder: Path, task: _Task):
        self.folder = folder
        self.damaged = 0
        self.arguments = {
            "function": task.name,
            "seed": task.seed,
            "dataset": task.checksum,
            "code": task.digest,
        }
        with self._one_line_errors():
            self.kept = joblib.Memory(folder, verbose=0).cache(keep, ignore=["text"])

    def read(self, cell: str) -> str | None:
        """The rows of a cell as JSON text; None if they are not there or not whole."""
        entry = self.arguments | {"cell": cell, "text": None}
        if not self.kept.check_call_in_cache(**entry):
            return None
        try:
            stored = self.kept.call_and_shelve(**entry)
        except LookupError:  # removed by another process since the line above
            return None
        with contextlib.suppress(Exception):  # a damaged pickle may raise anything
            content = stored.get()
            if content["sha256"] == hashlib.sha256(content["rows"].encode()).hexdigest():
                return content["rows"]
        stored.clear()
        self.damaged += 1
        return None

    def write(self, cell: str, text: str) -> None:
        with self._one_line_errors():
            self.kept.call_and_shelve(**self.arguments, cell=cell, text=text)

    def report_damage(self) -> None:
        if self.damaged:
            print(
                f"{self.damaged} damaged cell(s) in {self.folder} will be computed again",
                file=sys.stderr,
            )

    @contextlib.contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """joblib only warns when it cannot store, and the work would be lost in silence."""
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("error", message="Unable to (cache to disk|write)")
                yield
        except (OSError, Warning) as error:
            raise WorkbookError(
                f"finished cells cannot be kept in {self.folder}"
                f" ({_one_line(error.__context__ or error)}): free or name another place, and run"
                " again; what is already there is kept"
            ) from error


# --------------------------------------------------------------------------------- progress


@contextlib.contextmanager
def progress(
    total: int, *, done: int = 0, description: str, unit: str = "cell"
) -> Iterator[Callable[[], object]]:
    """A bar with the time left on the user's terminal; yields the function that moves it by one.

    The launcher names the terminal in DP_WORKBOOK_TTY (a notebook's kernel has none of its own).
    Without a terminal, one line at the start and one at the end.
    """
    with _terminal() as terminal:
        if terminal is not None:
            with tqdm(
                total=total,
                initial=done,
                desc=description,
                unit=unit,
                file=terminal,
                ncols=os.get_terminal_size(terminal.fileno()).columns or 80,  # 0: it does not know
                mininterval=0.5,
            ) as bar:
                yield bar.update
            return
        started = time.monotonic()
        print(f"{description}: {total} {unit}s, {done} of them kept earlier", file=sys.stderr)
        yield lambda: None
        seconds = time.monotonic() - started
        if done < total:
            print(f"{description}: {total - done} computed in {seconds:.0f} s", file=sys.stderr)


@contextlib.contextmanager
def _terminal() -> Iterator:
    """The terminal to draw on, or None."""
    descriptor = None
    with contextlib.suppress(KeyError, OSError):
        # O_NOCTTY: opening it must not make it this process's controlling terminal.
        descriptor = os.open(os.environ["DP_WORKBOOK_TTY"], os.O_WRONLY | os.O_NOCTTY)
    if descriptor is None:
        yield sys.stderr if sys.stderr.isatty() else None
        return
    terminal = os.fdopen(descriptor, "w")
    try:
        yield terminal
    finally:
        with contextlib.suppress(OSError):  # closed by its user meanwhile: no reason to fail
            terminal.close()
