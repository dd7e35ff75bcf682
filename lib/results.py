"""Result packages: ``results/<study>/<version>/``, the only thing that figures and text read.

A package is a Frictionless Data Package (https://datapackage.org): CSV tables, figures drawn from
them, and ``datapackage.json``, which describes every file and says where the numbers come from. It
is built in a folder of its own and put in place as a whole, so a run that dies, at whatever moment,
leaves the old package or the new one.

Versions: ``local`` is scratch and ``v0`` a study still growing, both overwritten freely; ``v1``,
``v2``, … are published and never overwritten.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pandas as pd

from lib import figures, folders, paths, provenance, tables
from lib.errors import WorkbookError
from lib.tables import Field, Table
from lib.verification import DESCRIPTOR, checksum, read_descriptor, read_file, verify

__all__ = [
    "Draft",
    "Field",
    "Figure",
    "Package",
    "Table",
    "add_files",
    "check_writable",
    "open_package",
    "redraw",
    "verify",
]

VERSION = re.compile(r"local|v(0|[1-9][0-9]*)")
OVERWRITABLE = ("local", "v0")
MEDIA_TYPES = {
    ".csv": "text/csv",
    ".html": "text/html",
    ".ipynb": "application/x-ipynb+json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True)
class Figure:
    """A figure that knows what is behind it.

    Attributes:
        draw: pure function of a module, from the tables by name to a matplotlib figure.
        tables: names of the tables it is given.
        title: one line.
        alternative_text: what a reader who cannot see it should know.
    """

    draw: Callable[[dict[str, pd.DataFrame]], matplotlib.figure.Figure]
    tables: tuple[str, ...]
    title: str
    alternative_text: str

    def __post_init__(self):
        if "<" in self.draw.__qualname__:
            raise ValueError(f"{self.draw.__qualname__}: a figure is drawn by a module's function")
        if not self.tables:
            raise ValueError(f"figure {self.title!r} is drawn from no table")


@dataclass(frozen=True)
class Package:
    """A result package as read: its tables, and what its descriptor says."""

    study: str
    version: str
    path: Path
    descriptor: dict
    tables: dict[str, pd.DataFrame]

    @property
    def parameters(self) -> dict:
        """All parameters of the run."""
        return self.descriptor["provenance"]["parameters"]


class Draft:
    """A package in the making, in a hidden folder beside the place it will take."""

    def __init__(self, study: str, version: str, results_dir: Path = paths.RESULTS):
        """Make the folder; it goes away with the draft unless it is published.

        Raises:
            WorkbookError: as ``check_writable``.
        """
        check_writable(study, version, results_dir=results_dir)
        self.study = study
        self.version = version
        self.target = Path(results_dir) / study / version
        self._resources: dict[str, dict] = {}
        with _writing(self.target):
            self.folder = folders.begin(self.target)
        self._discard = weakref.finalize(self, folders.discard, self.folder, os.getpid())

    def write_table(
        self, name: str, rows: Iterable[Mapping[str, Any]], table: Table
    ) -> pd.DataFrame:
        """Write rows as ``<name>.csv``, in the order given.

        Args:
            name: lower-case letters, digits and underscores.
            rows: one mapping a row; None is a missing value.
            table: the columns.

        Returns:
            The table as a DataFrame, read back from the file.

        Raises:
            WorkbookError: for rows that are not what ``table`` says, naming row and column.
        """
        self._check_open(name)
        schema = tables.schema(table)
        try:
            content = tables.write(rows, table)
        except WorkbookError as error:
            raise WorkbookError(f"table {name}, {error}") from None
        frame, problems = tables.read(content, schema)
        if problems:
            raise WorkbookError(f"table {name}, {problems[0]}")
        path = self.folder / f"{name}.csv"
        with _writing(path):
            folders.write(path, content)
        self._resources[name] = _describe(path, name=name) | {
            "type": "table",
            "description": table.meaning,
            "encoding": "utf-8",
            "rows": len(frame),
            "fields": len(table.fields),
            "dialect": tables.DIALECT,
            "schema": schema,
            "claims": list(table.claims),
            **({"derived": table.derived} if table.derived else {}),
        }
        return _read_table(self.folder, self._resources[name])

    def write_figure(self, name: str, figure: Figure) -> Path:
        """Draw a figure from this draft's CSV files, as ``<name>.png`` and ``<name>.svg``.

        Returns:
            The PNG file.

        Raises:
            WorkbookError: if a table that it needs has not been written.
        """
        self._check_open(name)
        self._resources |= _draw(self.folder, {name: figure}, self._resources, into=self.folder)
        return self.folder / f"{name}.png"

    def publish(
        self,
        *,
        title: str,
        parameters: Mapping[str, Any],
        profile: str,
        seed: int,
        dataset: Mapping[str, Any],
        papers: Iterable[Mapping[str, str]],
        wall_time_s: float,
        threads: int = 1,
    ) -> Path:
        """Describe the package and put it in place, all at once.

        Args:
            title: of the study, one line.
            parameters: every parameter of the run, JSON-typed.
            profile: the profile's name.
            seed: master seed.
            dataset: provenance of the data, with its checksum.
            papers: ``{"title": …, "arxiv": "2305.08846"}`` each.
            wall_time_s: duration of the run, seconds.
            threads: threads that each cell computed with.

        Returns:
            The package's folder.

        Raises:
            WorkbookError: if it is empty, cannot be written, or has been published meanwhile.
        """
        self._check_open("package")
        if not self._resources:
            raise WorkbookError(f"{self.target} would be empty: write a table first")
        descriptor = {
            "$schema": "https://datapackage.org/profiles/2.0/datapackage.json",
            "name": self.study,
            "title": title,
            "version": self.version,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "sources": [
                {"title": paper["title"], "path": f"https://arxiv.org/abs/{paper['arxiv']}"}
                for paper in papers
            ],
            "provenance": {
                "profile": profile,
                "parameters": dict(parameters),
                "seed": seed,
                "dataset": dict(dataset),
                **provenance.environment(),
                "threads": threads,
                "wall_time_s": wall_time_s,
            },
            "resources": list(self._resources.values()),
        }
        with _writing(self.target):
            folders.write(self.folder / DESCRIPTOR, _json(descriptor))
            placed = folders.put(self.folder, self.target, replace=self.version in OVERWRITABLE)
        if not placed:
            raise WorkbookError(
                f"{self.target} has been published meanwhile: choose another version"
            )
        self._discard.detach()
        return self.target

    def _check_open(self, name: str) -> None:
        if not self._discard.alive:
            raise WorkbookError(f"this draft of {self.study} is published: begin a new Draft")
        if not tables.NAME.fullmatch(name):
            raise WorkbookError(f"name {name!r}; allowed: lower-case letters, digits, underscores")


def check_writable(study: str, version: str, *, results_dir: Path = paths.RESULTS) -> None:
    """Refuse, before any work, a package that could not be put in place at its end.

    Raises:
        WorkbookError: for a bad name, a published version that exists, or a folder that cannot be
            written.
    """
    target = _target(study, version, results_dir)
    with _writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    folders.tidy(target)
    if version not in OVERWRITABLE and target.exists():
        raise WorkbookError(
            f"{target} is published and stays as it is: choose another version (a new number, or"
            " local for scratch)"
        )


def open_package(study: str, version: str, results_dir: Path = paths.RESULTS) -> Package:
    """Read a package and its tables, each checked against its hash and schema first.

    Raises:
        WorkbookError: if it is missing (naming the command that makes it) or damaged.
    """
    target = _target(study, version, results_dir)
    folders.recover(target)
    if not (target / DESCRIPTOR).is_file():
        raise WorkbookError(
            f"no package {target}: make it with"
            f" `python3 -m lib run --study {study} --version {version}`"
        )
    descriptor = read_descriptor(target)
    frames = {
        resource["name"]: _read_table(target, resource)
        for resource in descriptor["resources"]
        if "schema" in resource
    }
    return Package(study, version, target, descriptor, frames)


def add_files(path: Path, files: Mapping[str, Path]) -> None:
    """Add files made elsewhere (executed notebook, page), or replace earlier ones of that name.

    Args:
        path: folder of the package.
        files: the file to copy, by name of its resource, such as ``"notebook"``.

    Raises:
        WorkbookError: if a file would take another one's place, or the package is published and
            has it already.
    """
    path = Path(path)
    contents = {name: Path(source).read_bytes() for name, source in files.items()}
    with _revising(path) as (folder, resources):
        for name, content in contents.items():
            copy = folder / Path(files[name]).name
            if old := resources.get(name):
                if path.name not in OVERWRITABLE:
                    raise WorkbookError(f"{path} is published and has its {name} already")
                (folder / old["path"]).unlink()
            if copy.exists():
                raise WorkbookError(f"{path} has another file {copy.name}: {name} is not added")
            folders.write(copy, content)
            resources[name] = _describe(copy, name=name)


def redraw(package: Package, drawn: Mapping[str, Figure], folder: Path | None = None) -> list[str]:
    """Draw a package's figures again from its CSV files.

    Args:
        package: the package, as opened.
        drawn: the study's figures, by name.
        folder: where to write them; None replaces those of the package, unless it is published.

    Returns:
        The files that differ from the package's, by name.

    Raises:
        WorkbookError: for a published package without ``folder``, or a table that is missing.
    """
    if folder is None and package.version not in OVERWRITABLE:
        raise WorkbookError(f"{package.path} is published: redraw its figures into another folder")
    known = _by_name(package.descriptor)
    if folder is None:
        with _revising(package.path) as (staged, resources):
            made = _draw(staged, drawn, resources, into=staged)
            resources.update(made)
    else:
        with _writing(folder):
            Path(folder).mkdir(parents=True, exist_ok=True)
        made = _draw(package.path, drawn, known, into=Path(folder))
    return [
        resource["path"]
        for name, resource in made.items()
        if name not in known or known[name]["hash"] != resource["hash"]
    ]


def _draw(
    folder: Path, drawn: Mapping[str, Figure], resources: Mapping[str, dict], *, into: Path
) -> dict[str, dict]:
    """Draw figures from the CSV files in ``folder``, and describe the files made, by name."""
    made = {}
    for name, figure in drawn.items():
        if missing := [table for table in figure.tables if table not in resources]:
            raise WorkbookError(f"figure {name} needs table {', '.join(missing)}: write it first")
        frames = {table: _read_table(folder, resources[table]) for table in figure.tables}
        with figures.style():
            picture = figure.draw(frames)
        with _writing(into / name):
            files = figures.save(picture, into / name)
        for file in files:
            made[file.name] = _describe(file, name=file.name) | {
                "title": figure.title,
                "description": figure.alternative_text,
                "figure": {
                    "function": f"{figure.draw.__module__}.{figure.draw.__qualname__}",
                    "tables": list(figure.tables),
                },
            }
    return made


def _read_table(folder: Path, resource: Mapping) -> pd.DataFrame:
    """Read a table, or tell in one line why its file is not what the descriptor says."""
    content, problems = read_file(folder, resource)
    frame = None
    if not problems:
        frame, problems = tables.read(content, resource["schema"])
    if frame is None:
        raise WorkbookError(
            f"{folder / resource['path']}: {problems[0]}; restore the package or run it again"
        )
    return frame


def _describe(path: Path, *, name: str) -> dict:
    """Describe a file as a resource of a data package."""
    content = path.read_bytes()
    return {
        "name": name,
        "path": path.name,
        "format": path.suffix[1:],
        "mediatype": MEDIA_TYPES.get(path.suffix, "application/octet-stream"),
        "bytes": len(content),
        "hash": checksum(content),
    }


def _by_name(descriptor: Mapping) -> dict[str, dict]:
    return {resource["name"]: resource for resource in descriptor["resources"]}


def _target(study: str, version: str, results_dir: Path) -> Path:
    if not tables.NAME.fullmatch(study):
        raise WorkbookError(f"study {study!r}; allowed: lower-case letters, digits, underscores")
    if not VERSION.fullmatch(version):
        raise WorkbookError(
            f"results_version {version!r}; allowed: local (scratch), v0 (growing), v1, v2, …"
        )
    return Path(results_dir) / study / version


@contextmanager
def _revising(path: Path) -> Iterator[tuple[Path, dict[str, dict]]]:
    """Change a package as a whole: yields a copy of it, and its resources by name to change."""
    folders.recover(path)
    descriptor = read_descriptor(path)
    with _writing(path):
        folder = folders.begin(path)
        try:
            shutil.copytree(path, folder, dirs_exist_ok=True)
            resources = _by_name(descriptor)
            yield folder, resources
            descriptor["resources"] = list(resources.values())
            folders.write(folder / DESCRIPTOR, _json(descriptor))
            folders.put(folder, path, replace=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell in one line that a folder or disk does not take what is written."""
    try:
        yield
    except OSError as error:
        raise WorkbookError(
            f"cannot write {path}: {error.strerror or error}; free space, permit writing, or"
            " choose another results_dir"
        ) from error


def _json(descriptor: Mapping) -> bytes:
    try:
        text = json.dumps(
            descriptor, indent=2, ensure_ascii=False, allow_nan=False, default=_json_value
        )
    except (TypeError, ValueError) as error:
        raise WorkbookError(
            f"{DESCRIPTOR} cannot hold a parameter or provenance: {error}"
        ) from None
    return (text + "\n").encode("utf-8")


def _json_value(value: Any) -> Any:
    """Turn what JSON lacks into what it has; a path inside the repository stays portable."""
    if isinstance(value, Path):
        inside = value.is_relative_to(paths.ROOT)
        return (value.relative_to(paths.ROOT) if inside else value).as_posix()
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} is of type {type(value).__name__}")
