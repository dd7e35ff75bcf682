"""One notebook's run: parameters → cells → tables → figures → package.

What every notebook does in the same way, so that its own cells are about its subject. With
``figures_only`` nothing is computed or written: tables and parameters come from the package.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
from IPython.display import HTML, Image

from lib import data, parameters, paths, results, sweep
from lib.errors import WorkbookError

SHOWN_WIDTH = 700  # pixels: a page's text width; the files themselves are finer


class Session:
    """A study being run, or read again, in a notebook. Made by :func:`begin`."""

    def __init__(self, study: ModuleType, p: SimpleNamespace):
        self.study = study
        self.p = p
        self.tables: dict[str, pd.DataFrame] = {}
        self._others: dict[str, data.Dataset] = {}
        self._started = time.monotonic()
        name, folder = study.__name__.rpartition(".")[2], paths.ROOT / p.results_dir
        if p.figures_only:
            self.dataset = None
            self.package = results.open_package(name, p.results_version, folder)
            self.p = SimpleNamespace(**vars(p) | self.package.parameters | {"figures_only": True})
        else:
            p.device = _device(p.device)
            self.dataset = self._load(p.dataset)
            for rule in study.DATA_RULES:
                rule(self)
            self.package = results.Draft(name, p.results_version, folder)

    def table(
        self,
        name: str,
        cell: Callable,
        cells: Callable[[Session], list[dict]],
        *,
        uses_data: bool | str = False,
    ) -> pd.DataFrame:
        """Compute a table cell by cell (what is cached is not computed again) and write its CSV.

        Args:
            name: of the table.
            cell: the study's function of one cell, as in :func:`lib.sweep.run`.
            cells: lists the cells, from the session's parameters, dataset and earlier tables.
            uses_data: whether the rows depend on the dataset; or the name of another dataset.

        Returns:
            The table, as read from its CSV.
        """
        if self.p.figures_only:
            return self._read(name)
        rows = sweep.run(
            cell,
            cells(self),
            seed=self.p.seed,
            dataset=self.dataset_of(uses_data),
            n_jobs=self.p.n_jobs,
            scheduler=self.p.scheduler,
            description=name,
        )
        return self._write(name, rows)

    def derive(self, name: str, function: Callable[[Mapping], list[dict]]) -> pd.DataFrame:
        """Make a table from the earlier ones, write its CSV, and return it as read from there."""
        if self.p.figures_only:
            return self._read(name)
        return self._write(name, function(self.tables))

    def figure(self, name: str) -> Image:
        """Draw a figure of the study from the CSVs and show it."""
        figure = self.study.FIGURES[name]
        if self.p.figures_only:
            with tempfile.TemporaryDirectory() as folder:
                results.redraw(self.package, {name: figure}, Path(folder))
                png = (Path(folder) / f"{name}.png").read_bytes()
        else:
            png = self.package.write_figure(name, figure).read_bytes()
        return Image(png, alt=figure.alternative_text, width=SHOWN_WIDTH)

    def publish(self) -> Path:
        """Put the package in place and say where; with ``figures_only`` just say where it is."""
        if self.p.figures_only:
            return self.package.path
        return self.package.publish(
            title=self.study.TITLE,
            parameters=vars(self.p),
            profile=self.p.profile,
            seed=self.p.seed,
            dataset=self._provenance(),
            papers=self.study.PAPERS,
            wall_time_s=round(time.monotonic() - self._started, 1),
        )

    def dataset_of(self, which: bool | str) -> data.Dataset | None:
        """The run's dataset (True), that of a name, or none (False)."""
        if which is False:
            return None
        if which is True or which == self.dataset.name:
            return self.dataset
        if which not in self._others:
            self._others[which] = self._load(which)
        return self._others[which]

    def _load(self, name: str) -> data.Dataset:
        return data.load(name, paths.ROOT / self.p.data_dir)

    def _provenance(self) -> dict:
        others = [other.provenance for other in self._others.values()]
        return self.dataset.provenance | ({"others": others} if others else {})

    def _read(self, name: str) -> pd.DataFrame:
        if name not in self.package.tables:
            raise WorkbookError(f"{self.package.path} has no table {name}; run the study again")
        self.tables[name] = self.package.tables[name]
        return self.tables[name]

    def _write(self, name: str, rows: list[dict]) -> pd.DataFrame:
        self.tables[name] = self.package.write_table(name, rows, self.study.TABLES[name])
        return self.tables[name]


def show(table: pd.DataFrame, *, digits: int = 3) -> HTML:
    """A table for a reader: whole texts, numbers to ``digits`` decimals, – where there is none."""
    with pd.option_context("display.max_colwidth", None):
        return HTML(
            table.to_html(
                index=False, border=0, na_rep="–", float_format=lambda x: f"{x:.{digits}f}"
            )
        )


def scaled_down(session: Session) -> pd.DataFrame:
    """What this run has smaller, or otherwise, than the profile ``paper``, for a reader."""
    from lib import notebooks

    full = notebooks.profile_parameters("paper", session.study.NOTEBOOK)
    here = parameters.results_parameters(session.p, session.study.PARAMETERS)
    rows = [
        {"parameter": name, "meaning": session.study.PARAMETERS[name].meaning}
        | {"here": str(value), "profile paper": str(full[name])}
        for name, value in here.items()
        if name in full and name != "device" and value != full[name]
    ]
    return pd.DataFrame(rows, columns=["parameter", "meaning", "here", "profile paper"])


def begin(namespace: Mapping, study: ModuleType) -> Session:
    """Check a notebook's parameters, before any work, and open its package.

    Args:
        namespace: the notebook's ``globals()``.
        study: the study's module.

    Raises:
        WorkbookError: for a parameter, dataset or package that is not as it must be.
    """
    return Session(study, parameters.check(namespace, study.PARAMETERS, rules=study.RULES))


def _device(device: str) -> str:
    """``cpu`` or ``cuda``, whatever ``auto`` finds; part of every result's provenance."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise WorkbookError(
            "device = cuda, but this machine has no GPU that torch can use; allowed: cpu, auto"
        )
    return device
