"""Re-checking a result package from its files alone, without knowing the study.

Nothing that a package says is believed: the descriptor's form, every file's bytes, every cell, each
derived number (recomputed from the counts in its row) and each claim are checked.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from lib import tables
from lib.errors import WorkbookError

DESCRIPTOR = "datapackage.json"
# The functions a derived column may name, and the module each lives in. A package is data: it can
# choose from these, never bring its own.
RECIPES = {
    "one_run.epsilon_lower_bound": "lib.one_run",
    "one_run.epsilon_lower_bound_biased": "lib.one_run",
    "one_run.epsilon_lower_bound_from_runs": "lib.one_run",
    "one_run.p_value": "lib.one_run",
    "condensation.exponential_mechanism_epsilon": "lib.condensation",
    "intervals.rate": "lib.intervals",
    "intervals.rate_at_least": "lib.intervals",
    "intervals.rate_lower": "lib.intervals",
    "intervals.rate_upper": "lib.intervals",
    "intervals.t_lower": "lib.intervals",
    "intervals.t_upper": "lib.intervals",
    "membership.advantage": "lib.membership",
    "membership.area": "lib.membership",
    "membership.log_ratio": "lib.membership",
    "reconstruction.log_success_bound_of_rows": "lib.reconstruction",
    "reconstruction.squared_error_bound": "lib.reconstruction",
    "reconstruction.success_bound_of_rows": "lib.reconstruction",
    "trade_off.smallest_unrefuted_epsilon": "lib.trade_off",
    "accounting.delta_at_zero_of_rows": "lib.accounting",
    "accounting.epsilon_of_rows": "lib.accounting",
    "accounting.gaussian_epsilon_of_rows": "lib.accounting",
    "verification.total": "lib.verification",
}
# The functions that may make a whole table from the others.
DERIVED = {
    "condensation_beyond.grid_rows": "lib.condensation_beyond",
    "condensation_epsilon.claim_rows": "lib.condensation_epsilon",
    "condensation_epsilon.exposed_rows": "lib.condensation_epsilon",
    "condensation_membership.attack_rows": "lib.condensation_membership",
    "condensation_membership.roc_rows": "lib.condensation_membership",
    "condensation_membership.scheme_rows": "lib.condensation_membership",
    "condensation_theory.exponential_rows": "lib.condensation_theory",
    "condensation_worst_case.detection_rows": "lib.condensation_worst_case",
    "condensation_reevaluation.verdicts": "lib.condensation_reevaluation",
    "one_run_audit.verdicts": "lib.one_run_audit",
    "one_run_theory.verdicts": "lib.one_run_theory",
    "reconstruction_sweep.verdicts": "lib.reconstruction_sweep",
}
# A claim's first column must not exceed its second.
CLAIMS = {"lower_bound": "truth", "attack": "bound"}
TOLERANCE = 1e-6
# One in twenty honest 95 % bounds misses. Only a bound that misses at this level, shared by the
# rows of the table, is called false.
CLAIM_SIGNIFICANCE = 0.001
FIGURE_SUFFIXES = (".png", ".svg")
# What an editor or a file browser leaves behind by itself.
NOT_CONTENT = (".DS_Store", ".ipynb_checkpoints")

_NAMES = {"type": "object", "additionalProperties": {"type": "string"}}
_FIELD = {
    "type": "object",
    "required": ["name", "type"],
    "properties": {
        "name": {"type": "string"},
        "type": {"enum": list(tables.REQUIRED_DTYPES)},
        "constraints": {
            "type": "object",
            "properties": {
                "required": {"type": "boolean"},
                "minimum": {"type": "number"},
                "maximum": {"type": "number"},
            },
        },
        "recipe": {
            "type": "object",
            "required": ["function", "columns"],
            "properties": {
                "function": {"enum": list(RECIPES)},
                "columns": _NAMES,
                "constants": {"type": "object"},
                "tolerance": {"type": "number", "minimum": 0, "maximum": 1e-3},
            },
        },
    },
}
_RESOURCE = {
    "type": "object",
    "required": ["name", "path"],
    "properties": {
        "name": {"type": "string", "pattern": r"^[a-z0-9][a-z0-9._-]*$"},
        # Plain names below the package: no "..", no absolute path, no address.
        "path": {"type": "string", "pattern": r"^\w[\w.-]*(/\w[\w.-]*)*$"},
        "profile": False,
        "dialect": {"type": "object", "properties": {"profile": False}},
        "schema": {
            "type": "object",
            "required": ["fields"],
            "properties": {
                "profile": False,
                "fields": {"type": "array", "minItems": 1, "items": _FIELD},
                "primaryKey": {"type": "array", "items": {"type": "string"}},
                "missingValues": {"const": [""]},
            },
        },
        "claims": {"type": "array", "items": _NAMES},
        "derived": {"enum": list(DERIVED)},
        "figure": {
            "type": "object",
            "required": ["function", "tables"],
            "properties": {
                "function": {"type": "string"},
                "tables": {"type": "array", "minItems": 1, "items": {"type": "string"}},
            },
        },
    },
}
# "profile" is refused wherever the standard gives it a meaning: it can be an address to fetch.
SHAPE = {
    "type": "object",
    "required": ["name", "version", "resources", "provenance"],
    "properties": {
        "profile": False,
        "resources": {"type": "array", "items": _RESOURCE},
        "provenance": {
            "type": "object",
            "required": ["parameters"],
            "properties": {"parameters": {"type": "object"}},
        },
    },
}


def read_descriptor(folder: Path) -> dict:
    """Read a package's ``datapackage.json`` and check its form.

    Raises:
        WorkbookError: if it is missing, damaged, or not of the form this workbook writes.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    path = folder / DESCRIPTOR
    try:
        descriptor = json.loads(path.read_text("utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise WorkbookError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise WorkbookError(f"{path} is damaged, not JSON: {error}") from error
    fault = best_match(Draft202012Validator(SHAPE).iter_errors(descriptor))
    if fault is not None:
        where = "/".join(str(step) for step in fault.absolute_path) or "top level"
        raise WorkbookError(f"{path} is not a package of this workbook: {where}: {fault.message}")
    return descriptor


def checksum(content: bytes) -> str:
    """Give the hash of a file's bytes as a data package states it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def read_file(folder: Path, resource: Mapping) -> tuple[bytes, list[str]]:
    """Read one file of a package, and tell how it differs from what the descriptor says."""
    path = folder / resource["path"]
    if not path.resolve().is_relative_to(folder.resolve()):
        return b"", ["leads out of the package"]
    try:
        content = path.read_bytes()
    except OSError as error:
        return b"", [f"cannot be read: {error.strerror}"]
    problems = []
    if resource.get("bytes") != len(content):
        problems.append(f"{len(content)} bytes, the descriptor says {resource.get('bytes')}")
    if "hash" not in resource:
        problems.append("no hash in the descriptor")
    elif resource["hash"] != checksum(content):
        problems.append(f"hash {checksum(content)}, the descriptor says {resource['hash']}")
    return content, problems


def recompute(frame: pd.DataFrame, recipe: Mapping, **changed) -> np.ndarray:
    """Compute a derived column again from the columns its recipe takes.

    Args:
        frame: the table, of n rows.
        recipe: as in ``tables.Field``; its function takes whole columns, and text (such as a
            method's name) one value at a time.
        changed: arguments to use instead of the table's.

    Returns:
        n floats, NaN where a column it takes is missing.
    """
    function = _function(recipe)
    columns = recipe["columns"]
    rows = frame.reset_index(drop=True).dropna(subset=list(columns.values()))
    text = [name for name in columns.values() if isinstance(rows[name].dtype, pd.StringDtype)]
    result = np.full(len(frame), np.nan)
    if rows.empty:
        return result
    for _, group in rows.groupby(text, sort=False) if text else [(None, rows)]:
        arguments = {
            argument: group[name].iloc[0] if name in text else _numbers(group[name])
            for argument, name in columns.items()
        }
        result[group.index] = function(**(recipe.get("constants", {}) | arguments | changed))
    return result


def total(*, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Add two columns of counts."""
    return first + second


def omitted_checks(descriptor: Mapping, known: Mapping[str, tables.Table]) -> list[str]:
    """What a study has verify check about its tables, and a package's descriptor leaves out.

    Without this a package could have itself found sound by asking for nothing.

    Args:
        descriptor: of the package.
        known: the study's tables, by name.

    Returns:
        One line for each recipe, claim or derivation that is missing or not the study's.
    """
    problems = []
    for resource in descriptor["resources"]:
        table = known.get(resource["name"]) if "schema" in resource else None
        if table is None:
            continue
        columns = {field["name"]: field for field in resource["schema"]["fields"]}
        for field in table.fields:
            found = columns.get(field.name, {"recipe": field.recipe}).get("recipe")
            if found != field.recipe:
                problems.append(f"{resource['path']}: column {field.name} lacks its recipe")
        missing = [claim for claim in table.claims if claim not in resource.get("claims", [])]
        problems += [f"{resource['path']}: the claim {claim} is left out" for claim in missing]
        if resource.get("derived") != table.derived:
            problems.append(f"{resource['path']}: it does not say that {table.derived} makes it")
    return problems


def verify(folder: Path) -> list[str]:
    """Check a result package against itself.

    Args:
        folder: ``results/<study>/<version>``.

    Returns:
        What is wrong, one line each with package, file, row and column; empty if all is well.
    """
    folder = Path(folder)
    try:
        descriptor = read_descriptor(folder)
    except WorkbookError as error:
        return [str(error)]
    faults = {
        resource["path"]: _resource_problems(folder, resource, descriptor)
        for resource in descriptor["resources"]
    }
    if not any(faults.values()):
        faults |= _derived_problems(folder, descriptor)
    problems = [f"{path}: {fault}" for path, found in faults.items() for fault in found]
    listed = {DESCRIPTOR, *faults}
    problems += [f"{path}: not listed in {DESCRIPTOR}" for path in _files(folder) - listed]
    problems += _standard_problems(folder, skip={path for path, found in faults.items() if found})
    return [f"{folder.parent.name}/{folder.name}/{problem}" for problem in sorted(problems)]


def _resource_problems(folder: Path, resource: Mapping, descriptor: Mapping) -> list[str]:
    content, problems = read_file(folder, resource)
    suffix = Path(resource["path"]).suffix
    if "schema" in resource:
        problems += _table_problems(content, resource)
    elif suffix == ".csv":
        problems.append("no table schema in the descriptor")
    if suffix in FIGURE_SUFFIXES:
        problems += _figure_problems(resource, descriptor)
    return problems


def _table_problems(content: bytes, resource: Mapping) -> list[str]:
    frame, problems = tables.read(content, resource["schema"])
    if frame is None:
        return problems
    if resource.get("rows") != len(frame):
        problems.append(f"{len(frame)} rows, the descriptor says {resource.get('rows')}")
    recipes = {
        field["name"]: field["recipe"]
        for field in resource["schema"]["fields"]
        if "recipe" in field
    }
    for name, recipe in recipes.items():
        problems += _recipe_problems(frame, name, recipe)
    # A claim is worth checking only on numbers that follow from their counts.
    if not problems:
        for claim in resource.get("claims", []):
            problems += _claim_problems(frame, claim, recipes)
    return problems


def _recipe_problems(frame: pd.DataFrame, name: str, recipe: Mapping) -> list[str]:
    """Compare a derived column with what its recipe gives."""
    label = f"column {name}: {recipe['function']}"
    if unknown := set(recipe["columns"].values()).difference(frame.columns):
        return [f"{label} takes columns that do not exist: {', '.join(sorted(unknown))}"]
    if not _is_numeric(frame[name]):
        return [f"{label} gives numbers, the column holds none"]
    try:
        expected = recompute(frame, recipe)
    except (WorkbookError, TypeError, ValueError, ArithmeticError) as error:
        return [f"{label} refuses its columns: {error}"]
    found = frame[name].astype("float64").to_numpy()
    tolerance = recipe.get("tolerance", TOLERANCE)
    equal = np.isclose(found, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    wrong = np.flatnonzero(~equal)
    if not wrong.size:
        return []
    first = wrong[0]
    more = f" (and {wrong.size - 1} more in this column)" if wrong.size > 1 else ""
    return [
        f"row {first + 1}, column {name}: {found[first]:.9g}, but {recipe['function']} of its row"
        f" gives {expected[first]:.9g}{more}"
    ]


def _derived_problems(folder: Path, descriptor: Mapping) -> dict[str, list[str]]:
    """Make every derived table again from the others; what differs, by path."""
    resources = [resource for resource in descriptor["resources"] if "schema" in resource]
    frames = {
        resource["name"]: tables.read(read_file(folder, resource)[0], resource["schema"])[0]
        for resource in resources
    }
    return {
        resource["path"]: _table_differences(resource["name"], resource["derived"], frames)
        for resource in resources
        if "derived" in resource
    }


def _table_differences(name: str, derived: str, frames: Mapping) -> list[str]:
    function = getattr(importlib.import_module(DERIVED[derived]), derived.rpartition(".")[2])
    try:
        expected = function({other: frame for other, frame in frames.items() if other != name})
    except (WorkbookError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        return [f"{derived} refuses the other tables: {_one_line(str(error))}"]
    found = frames[name].to_dict("records")
    if len(found) != len(expected):
        return [f"{len(found)} rows, but {derived} gives {len(expected)}"]
    return [
        f"row {number}, column {column}: {row[column]!r}, but {derived} gives {wanted[column]!r}"
        for number, (row, wanted) in enumerate(zip(found, expected, strict=True), start=1)
        for column in row
        if not _same(row[column], wanted[column])
    ]


def _same(found: object, wanted: object) -> bool:
    """Whether a cell is what it should be: missing for None, numbers up to rounding."""
    if wanted is None or pd.isna(found):
        return wanted is None and bool(pd.isna(found))
    if isinstance(wanted, float):
        return bool(np.isclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE))
    return found == wanted


def _claim_problems(frame: pd.DataFrame, claim: Mapping, recipes: Mapping) -> list[str]:
    """Name the rows that break a claim by more than chance explains."""
    kind = next((kind for kind in CLAIMS if set(claim) == {kind, CLAIMS[kind]}), None)
    if kind is None or not set(claim.values()).issubset(frame.columns):
        return [f"the claim {dict(claim)} is not understood, or names no column"]
    name, limit = claim[kind], claim[CLAIMS[kind]]
    if not (_is_numeric(frame[name]) and _is_numeric(frame[limit])):
        return [f"the claim {dict(claim)} is about columns that are not numbers"]
    # Where there is no guarantee the limit is missing, and nothing is above it.
    above = (frame[name].astype("float64") > frame[limit].astype("float64")).to_numpy()
    if not above.any():
        return []
    significance = CLAIM_SIGNIFICANCE / len(frame)
    suspects = frame[above]
    recipe = recipes.get(name)
    if recipe and "significance" in inspect.signature(_function(recipe)).parameters:
        suspects = suspects.assign(**{name: recompute(suspects, recipe, significance=significance)})
    false = suspects[suspects[name] > suspects[limit]]
    return [
        f"row {index + 1}: {name} {frame[name][index]:.6g} is above {limit}"
        f" {frame[limit][index]:.6g}, and chance does not explain it"
        f" ({row[name]:.6g} at significance {significance:.1e})"
        for index, row in false.iterrows()
    ]


def _figure_problems(resource: Mapping, descriptor: Mapping) -> list[str]:
    if "figure" not in resource:
        return ["a figure without the tables and the function behind it"]
    known = {table["name"] for table in descriptor["resources"] if "schema" in table}
    return [
        f"a figure without its table {name}: no such CSV in the package"
        for name in resource["figure"]["tables"]
        if name not in known
    ]


def _standard_problems(folder: Path, skip: set[str]) -> list[str]:
    """Give what ``frictionless validate`` says, but for files whose faults are already named."""
    from frictionless import FrictionlessException, Package

    try:
        report = Package(str(folder / DESCRIPTOR)).validate()
    except FrictionlessException as error:
        faults = error.reasons or [error.error]
        return [_one_line(f"{DESCRIPTOR}: {fault.message}") for fault in faults]
    problems = [_one_line(f"{DESCRIPTOR}: {fault.message}") for fault in report.errors]
    for task in report.tasks:
        if task.place not in skip:
            problems += [_one_line(f"{task.place}: {fault.message}") for fault in task.errors]
    return problems


def _files(folder: Path) -> set[str]:
    """List the files below a folder, relative to it."""
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir() and not set(path.relative_to(folder).parts).intersection(NOT_CONTENT)
    }


def _function(recipe: Mapping) -> Callable:
    name = recipe["function"]
    return getattr(importlib.import_module(RECIPES[name]), name.rpartition(".")[2])


def _is_numeric(column: pd.Series) -> bool:
    return not isinstance(column.dtype, pd.StringDtype)


def _numbers(column: pd.Series) -> np.ndarray:
    """Give a column without gaps as a plain array (Int64 and boolean are pandas' own)."""
    return column.to_numpy(dtype=str(column.dtype).lower().replace("boolean", "bool"))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
