"""Parameters of a study, checked at the door: before any work, each failure in one line.

A notebook declares its parameters in one cell tagged `parameters`; papermill (or the reader)
changes them; the next cell calls `check(globals(), study.PARAMETERS)`. What is wrong is said with
the parameter's name, its value and what is allowed: an unknown or misspelt name, a wrong type, a
value out of range.
"""

from __future__ import annotations

import ast
import difflib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from lib import data
from lib.errors import WorkbookError

INJECTED = "# Parameters"  # how papermill begins the cell with the changed parameters
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "text": "text",
    "flag": "true or false",
    "ints": "a list of whole numbers",
    "floats": "a list of numbers",
    "texts": "a list of texts",
}
ELEMENTS = {"ints": "int", "floats": "float", "texts": "text"}


@dataclass(frozen=True)
class Parameter:
    """One parameter: what it means and which values are allowed.

    The bounds hold for a number and for each number of a list, `choices` and `pattern` (a regular
    expression for the whole text, told to the user by `pattern_meaning`) for texts alike.
    """

    kind: str  # a key of KINDS
    meaning: str  # one line, with the unit
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None  # exclusive minimum
    below: float | None = None  # exclusive maximum
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    pattern_meaning: str = ""
    alternatives: tuple[str | int | float, ...] = ()  # allowed besides, as they are
    distinct: bool = True  # whether the values of a list must differ
    changes_results: bool = True  # False: where and how a study is computed, not what comes out

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"kind {self.kind!r} is not one of {', '.join(KINDS)}")

    @property
    def allowed(self) -> str:
        """What is allowed, in words."""
        bounds = [
            f"{words} {bound:g}" if abs(bound) < 1e6 else f"{words} {bound}"
            for words, bound in (
                ("at least", self.minimum),
                ("above", self.above),
                ("at most", self.maximum),
                ("below", self.below),
            )
            if bound is not None
        ]
        words = KINDS[self.kind]
        if self.kind in ELEMENTS and self.distinct:
            words = words.replace("a list of", "a list of different")
        if self.choices:
            one = f"one of {', '.join(self.choices)}"
            words = f"{words}, each {one}" if self.kind == "texts" else one
        elif bounds:
            words += f"{', each' if self.kind in ELEMENTS else ''} {' and '.join(bounds)}"
        elif self.pattern_meaning:
            words = self.pattern_meaning
        return ", or ".join([words, *(repr(value) for value in self.alternatives)])


_ELSEWHERE = {"changes_results": False}

# What all studies share.
SHARED: dict[str, Parameter] = {
    "dataset": Parameter("text", "name of the dataset", choices=data.NAMES),
    "data_dir": Parameter(
        "text",
        "folder of the datasets",
        pattern=".+",
        pattern_meaning="a folder, relative to the repository's root",
        **_ELSEWHERE,
    ),
    "results_dir": Parameter(
        "text",
        "folder of the result packages",
        pattern=".+",
        pattern_meaning="a folder, relative to the repository's root",
        **_ELSEWHERE,
    ),
    "results_version": Parameter(
        "text",
        "version of the result package",
        pattern=r"local|v(0|[1-9]\d*)",
        pattern_meaning="'local' (scratch), 'v0' (growing), or 'v1', 'v2', … (published)",
        **_ELSEWHERE,
    ),
    "profile": Parameter(
        "text",
        "name under which this set of parameters is kept",
        pattern=r"[a-z][a-z0-9_-]*",
        pattern_meaning="a name in lower case, such as smoke, cpu or paper",
        **_ELSEWHERE,
    ),
    "seed": Parameter("int", "seed of all randomness", minimum=0, maximum=2**63 - 1),
    "n_jobs": Parameter(
        "int",
        "worker processes on this machine; -1 for one a core",
        minimum=1,
        alternatives=(-1,),
        **_ELSEWHERE,
    ),
    "scheduler": Parameter(
        "text",
        "address of a Dask scheduler",
        pattern=r"|(tcp|tls)://\S+:\d+",
        pattern_meaning="'' (compute on this machine) or an address like 'tcp://host:8786'",
        **_ELSEWHERE,
    ),
    "device": Parameter("text", "what trains the networks", choices=("auto", "cpu", "cuda")),
    "figures_only": Parameter(
        "flag", "redraw from the kept results, compute nothing", **_ELSEWHERE
    ),
}


def check(
    namespace: Mapping[str, object],
    table: Mapping[str, Parameter],
    *,
    rules: Iterable[Callable[[SimpleNamespace], object]] = (),
) -> SimpleNamespace:
    """The values of all parameters of `table`, of the right types and within their ranges.

    Args:
        namespace: `globals()` of a notebook, or a dictionary of nothing but parameters.
        table: the study's parameters.
        rules: called with the checked values; each raises WorkbookError if they do not fit
            together.

    In IPython the cells run so far tell which names the notebook declares and papermill injects,
    and from here on a failing shell line (`!false`) fails its cell.

    Raises:
        WorkbookError: the first thing found wrong, in one line.
    """
    if "__name__" not in namespace:
        check_names(namespace, table)
    elif "In" in namespace:
        _check_cells(list(namespace["In"]), table)
        namespace["get_ipython"]().system_raise_on_error = True
    missing = [name for name in table if name not in namespace]
    if missing:
        raise WorkbookError(
            f"parameters without a value: {', '.join(missing)}; the cell tagged 'parameters' must"
            " assign them all"
        )
    values = SimpleNamespace(
        **{name: checked_value(name, namespace[name], table[name]) for name in table}
    )
    for rule in rules:
        rule(values)
    return values


def results_parameters(
    values: SimpleNamespace, table: Mapping[str, Parameter]
) -> dict[str, object]:
    """The parameters that decide the results (JSON values), in the table's order."""
    return {name: getattr(values, name) for name in table if table[name].changes_results}


def check_names(names: Iterable[str], table: Mapping[str, Parameter]) -> None:
    """Refuses names that are not in the table, with the nearest that is."""
    for name in names:
        if name not in table:
            near = difflib.get_close_matches(name, table, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise WorkbookError(f"unknown parameter {name!r}: {hint}known are {', '.join(table)}")


# ----------------------------------------------------------------------- cells of a notebook


def _check_cells(cells: list[str], table: Mapping[str, Parameter]) -> None:
    """Checks the names that a notebook's cells declare and inject.

    The declaring cell is the one that assigns most of the table's names.
    """
    injected = [i for i, cell in enumerate(cells) if cell.lstrip().startswith(INJECTED)]
    assigned = {i: _assigned_names(cell) for i, cell in enumerate(cells) if i not in injected}
    shared = {i: len(names & table.keys()) for i, names in assigned.items()}
    most = max(shared.values(), default=0)
    declaring = [i for i in shared if most and shared[i] == most]

    for i in injected:
        check_names(sorted(_assigned_names(cells[i])), table)
    if injected and (not declaring or injected[0] < declaring[0]):
        raise WorkbookError(
            "parameters were injected before the cell that declares them and would be overwritten:"
            " give the declaring cell the tag 'parameters' back (and do not begin it with"
            f" '{INJECTED}')"
        )
    if declaring:
        check_names(sorted(assigned[declaring[-1]]), table)
        undeclared = [name for name in table if name not in assigned[declaring[-1]]]
        if undeclared:
            raise WorkbookError(
                f"the cell tagged 'parameters' does not declare {', '.join(undeclared)}"
            )


def _assigned_names(cell: str) -> set[str]:
    """Names that a cell assigns at its top level."""
    try:
        statements = ast.parse(cell).body
    except SyntaxError:  # a magic or a shell line
        return set()
    names = set()
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


# -------------------------------------------------------------------------------- one value


def checked_value(name: str, value: object, parameter: Parameter) -> object:
    """`value` in the parameter's type.

    Text that holds a list or true/false is converted where one is wanted: batch tools hand over
    [1, 2] as text. A number in text is refused (YAML takes 1e-5 for text, 1.0e-5 for a number).

    Raises:
        WorkbookError: not allowed; names the parameter, the value and what is allowed.
    """
    for alternative in parameter.alternatives:
        if type(value) is type(alternative) and value == alternative:
            return value
        if isinstance(value, str) and value == str(alternative):
            return alternative
    try:
        if parameter.kind in ELEMENTS:
            return _checked_list(value, parameter)
        return _checked_single(value, parameter.kind, parameter)
    except (ValueError, OverflowError):
        shown = " ".join(repr(value).split())
        shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
        kind = {"str": "text", "bool": "flag", "NoneType": "nothing"}.get(
            type(value).__name__, type(value).__name__
        )
        numeric = parameter.kind in ("int", "float") and isinstance(value, str)
        hint = "; YAML takes 1e-5 for text, 1.0e-5 for a number" if numeric else ""
        raise WorkbookError(
            f"parameter {name} = {shown} ({kind}) is not allowed: it must be {parameter.allowed}"
            f" ({parameter.meaning}){hint}"
        ) from None


def _checked_list(value: object, parameter: Parameter) -> list:
    if isinstance(value, str):
        value = json.loads(value)  # its JSONDecodeError is a ValueError
    if not isinstance(value, list | tuple) or not value:
        raise ValueError
    values = [_checked_single(each, ELEMENTS[parameter.kind], parameter) for each in value]
    if parameter.distinct and len(set(values)) < len(values):
        raise ValueError
    return values


def _checked_single(value: object, kind: str, parameter: Parameter) -> int | float | str | bool:
    """The value in its type and range, or ValueError."""
    if kind == "flag":
        return _flag(value)
    if kind == "text":
        if not isinstance(value, str):
            raise ValueError
        if parameter.choices and value not in parameter.choices:
            raise ValueError
        if parameter.pattern is not None and not re.fullmatch(parameter.pattern, value):
            raise ValueError
        return value
    number = _number(value, kind)
    if (
        (parameter.minimum is not None and number < parameter.minimum)
        or (parameter.maximum is not None and number > parameter.maximum)
        or (parameter.above is not None and number <= parameter.above)
        or (parameter.below is not None and number >= parameter.below)
    ):
        raise ValueError
    return number


def _flag(value: object) -> bool:
    if isinstance(value, str) and value in ("true", "True", "false", "False"):
        return value in ("true", "True")
    if not isinstance(value, bool):
        raise ValueError
    return value


def _number(value: object, kind: str) -> int | float:
    """An int or a finite float of the same value, or ValueError (so 3.0 is an int, 2.5 is not).

    A number in text is refused: what some reader took for text may not be the number meant.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError
    number = int(value) if kind == "int" else float(value)
    if number != value:  # a fraction, or an int too long for a float
        raise ValueError
    return number
