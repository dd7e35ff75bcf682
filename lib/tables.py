r"""Tidy tables as CSV: what a column means, rows to text, and text back to typed columns.

The text is UTF-8 with ``\n`` line ends; a number is written so that reading gives the same float,
a truth value is ``true`` or ``false``, and an empty cell, and nothing else, means missing. Reading
is as strict as writing, so text such as ``None`` or ``nan`` survives and a number is never guessed.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import WorkbookError

NAME = re.compile(r"[a-z][a-z0-9_]*")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# The column types of pandas; the second ones hold gaps without turning into floats.
REQUIRED_DTYPES = {"integer": "int64", "number": "float64", "string": "str", "boolean": "bool"}
OPTIONAL_DTYPES = {"integer": "Int64", "number": "float64", "string": "str", "boolean": "boolean"}
DIALECT = {
    "delimiter": ",",
    "lineTerminator": "\n",
    "quoteChar": '"',
    "doubleQuote": True,
    "skipInitialSpace": False,
    "header": True,
}


@dataclass(frozen=True)
class Field:
    """One column of a table.

    Attributes:
        name: lower-case letters, digits and underscores.
        type: ``"integer"``, ``"number"``, ``"string"`` or ``"boolean"``.
        unit: unit of the values, ``""`` for none.
        meaning: what a value says, one line.
        required: whether a cell may not be empty.
        minimum: smallest allowed value.
        maximum: largest allowed value.
        recipe: how the column follows from others, for a derived number:
            ``{"function": "one_run.p_value", "columns": {argument: column, …}}``, if need be with
            ``"constants": {argument: value, …}`` and ``"tolerance"`` (relative and absolute).
    """

    name: str
    type: str
    unit: str
    meaning: str
    required: bool = True
    minimum: float | None = None
    maximum: float | None = None
    recipe: dict | None = None

    def __post_init__(self):
        if not NAME.fullmatch(self.name):
            raise ValueError(f"column name {self.name!r}: allowed are lower-case snake_case names")
        if self.type not in REQUIRED_DTYPES:
            raise ValueError(f"column {self.name}: type {self.type!r} is none of {REQUIRED_DTYPES}")


@dataclass(frozen=True)
class Table:
    """The columns of a table, and what must hold between them.

    Attributes:
        fields: the columns, in the order of the file.
        key: columns whose values together name a row; no two rows share them.
        meaning: what one row is.
        claims: what no honest row may break beyond chance, each ``{"lower_bound": column, "truth":
            column}`` or ``{"attack": column, "bound": column}``: the first is not above the second.
        derived: the function that makes the whole table from the package's other ones, such as
            ``"one_run_audit.verdicts"``; None for a table of observations.
    """

    fields: tuple[Field, ...]
    key: tuple[str, ...]
    meaning: str
    claims: tuple[dict, ...] = ()
    derived: str | None = None

    def __post_init__(self):
        names = [field.name for field in self.fields]
        if len(set(names)) < len(names):
            raise ValueError(f"a column name appears twice in {names}")
        required = {field.name for field in self.fields if field.required}
        if not self.key or not required.issuperset(self.key):
            raise ValueError(f"key {self.key}: allowed are one or more required columns")
        recipes = [field.recipe["columns"] for field in self.fields if field.recipe]
        used = {column for mapping in (*recipes, *self.claims) for column in mapping.values()}
        if unknown := used.difference(names):
            raise ValueError(f"a recipe or claim names columns that do not exist: {unknown}")


def recipe(function: str, *columns: str, **renamed: str) -> dict:
    """A field's recipe: ``function`` of columns with its arguments' names, or others as given."""
    return {"function": function, "columns": dict(zip(columns, columns, strict=True)) | renamed}


def schema(table: Table) -> dict:
    """Describe a table as a Frictionless table schema (https://datapackage.org)."""
    return {
        "fields": [_field_schema(field) for field in table.fields],
        "primaryKey": list(table.key),
        "missingValues": [""],
    }


def write(rows: Iterable[Mapping[str, Any]], table: Table) -> bytes:
    """Turn rows into the text of a CSV file, in the order given.

    Args:
        rows: one mapping a row, with exactly the columns of ``table``; None is a missing value.
        table: the columns.

    Raises:
        WorkbookError: for a missing or unknown column, a value of the wrong type, a number that is
            not finite or empty text, each with row and column.
    """
    names = [field.name for field in table.fields]
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for number, row in enumerate(rows, start=1):
        _check_columns(number, row, names)
        writer.writerow([_cell(number, row[field.name], field) for field in table.fields])
    return text.getvalue().encode("utf-8")


def read(content: bytes, schema: Mapping) -> tuple[pd.DataFrame | None, list[str]]:
    """Read a CSV file by its table schema, believing nothing.

    Args:
        content: the bytes of the file.
        schema: a table schema as ``schema`` makes it.

    Returns:
        The typed columns (integers and truth values of an optional column as ``Int64`` and
        ``boolean``, missing numbers as NaN), or None if anything is wrong, and what is wrong, a
        line each. Rows are counted from 1, without the header.
    """
    fields = schema["fields"]
    rows, problems = _split(content, [field["name"] for field in fields])
    if problems:
        return None, problems
    columns = {}
    for index, field in enumerate(fields):
        values, faults = _read_column([row[index] for row in rows], field)
        problems += faults
        columns[field["name"]] = values
    if problems:
        return None, problems
    frame = pd.DataFrame(
        {f["name"]: pd.Series(columns[f["name"]], dtype=_dtype(f)) for f in fields}
    )
    problems = _key_problems(frame, schema.get("primaryKey", []))
    return (None if problems else frame), problems


def _field_schema(field: Field) -> dict:
    constraints = {"required": field.required}
    if field.minimum is not None:
        constraints["minimum"] = field.minimum
    if field.maximum is not None:
        constraints["maximum"] = field.maximum
    described = {
        "name": field.name,
        "type": field.type,
        "unit": field.unit,
        "description": field.meaning,
        "constraints": constraints,
    }
    if field.type == "boolean":
        described |= {"trueValues": ["true"], "falseValues": ["false"]}
    if field.recipe:
        described["recipe"] = field.recipe
    return described


def _check_columns(number: int, row: Mapping, names: list[str]) -> None:
    if missing := [name for name in names if name not in row]:
        raise WorkbookError(f"row {number}: no column {', '.join(missing)}; give None if missing")
    if unknown := [str(name) for name in row if name not in names]:
        raise WorkbookError(
            f"row {number}: unknown column {', '.join(unknown)}; the table has {', '.join(names)}"
        )


def _cell(number: int, value: Any, field: Field) -> str:
    """Write one value, so that reading the cell gives it back exactly."""

    def refuse(reason: str) -> WorkbookError:
        return WorkbookError(f"row {number}, column {field.name}: {value!r} {reason}")

    is_truth = isinstance(value, bool | np.bool_)
    is_integer = isinstance(value, int | np.integer) and not is_truth
    if value is None:
        return ""
    if field.type == "boolean" and is_truth:
        return "true" if value else "false"
    if field.type == "integer" and is_integer:
        return str(int(value))
    if field.type == "number" and (is_integer or isinstance(value, float | np.floating)):
        if not math.isfinite(value):
            raise refuse("is not finite; give None for a missing value")
        return repr(float(value))
    if field.type == "string" and isinstance(value, str):
        if not value:
            raise refuse("is empty text; give None for a missing value")
        if CONTROL.search(value) or not _encodes(value):
            raise refuse("is not one line of text")
        return value
    raise refuse(f"is of type {type(value).__name__}; the column holds {field.type} values")


def _encodes(text: str) -> bool:
    """Tell whether text can be stored: half of a surrogate pair cannot."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _split(content: bytes, names: list[str]) -> tuple[list[list[str]], list[str]]:
    """Cut the bytes into rows of cells, all as long as the header."""
    try:
        text = content.decode("utf-8")
        header, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except (UnicodeDecodeError, csv.Error) as error:
        return [], [f"not readable as UTF-8 CSV: {error}"]
    except ValueError:
        return [], ["the file is empty"]
    if header != names:
        return [], [f"the columns are {','.join(header)!r}, the schema says {','.join(names)!r}"]
    if b"\r" in content:
        return [], ["the lines do not end in \\n alone"]
    problems = [
        f"row {number}: {len(row)} cells where the header has {len(names)}"
        for number, row in enumerate(rows, start=1)
        if len(row) != len(names)
    ]
    return rows, problems


def _read_column(cells: list[str], field: Mapping) -> tuple[list, list[str]]:
    values, faults = [], []
    for number, cell in enumerate(cells, start=1):
        try:
            values.append(_value(cell, field))
        except ValueError as error:
            faults.append(f"row {number}, column {field['name']}: {error}")
    if len(faults) > 1:
        faults = [f"{faults[0]} (and {len(faults) - 1} more in this column)"]
    return values, faults


def _value(cell: str, field: Mapping) -> Any:
    """Read one cell, or raise ValueError saying why it is refused."""
    constraints = field.get("constraints", {})
    if cell == "":
        if constraints.get("required"):
            raise ValueError("empty, but a value is required")
        return None
    value = _READERS[field["type"]](cell)
    if "minimum" in constraints and value < constraints["minimum"]:
        raise ValueError(f"{cell} is below the minimum {constraints['minimum']}")
    if "maximum" in constraints and value > constraints["maximum"]:
        raise ValueError(f"{cell} is above the maximum {constraints['maximum']}")
    return value


def _read_integer(cell: str) -> int:
    if not INTEGER.fullmatch(cell):
        raise ValueError(f"{cell!r} is not an integer")
    if len(cell) > 20 or not -(2**63) <= int(cell) < 2**63:
        raise ValueError(f"{cell} does not fit into 64 bits")
    return int(cell)


def _read_number(cell: str) -> float:
    if not NUMBER.fullmatch(cell):
        raise ValueError(f"{cell!r} is not a finite number")
    if not math.isfinite(float(cell)):
        raise ValueError(f"{cell} is too large for a number")
    return float(cell)


def _read_string(cell: str) -> str:
    if CONTROL.search(cell):
        raise ValueError(f"{cell!r} is not one line of text")
    return cell


def _read_boolean(cell: str) -> bool:
    if cell not in ("true", "false"):
        raise ValueError(f"{cell!r} is neither true nor false")
    return cell == "true"


_READERS = {
    "integer": _read_integer,
    "number": _read_number,
    "string": _read_string,
    "boolean": _read_boolean,
}


def _dtype(field: Mapping) -> str:
    required = field.get("constraints", {}).get("required", False)
    return (REQUIRED_DTYPES if required else OPTIONAL_DTYPES)[field["type"]]


def _key_problems(frame: pd.DataFrame, key: list[str]) -> list[str]:
    if unknown := set(key).difference(frame.columns):
        return [f"the primary key names no column: {', '.join(sorted(unknown))}"]
    if not key:
        return []
    repeated = np.flatnonzero(frame.duplicated(key))
    if not repeated.size:
        return []
    values = frame.loc[repeated[0], key]
    shown = ", ".join(f"{column} {value}" for column, value in values.items())
    return [f"row {repeated[0] + 1}: the key ({shown}) appears a second time"]
