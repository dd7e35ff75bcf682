"""Running a notebook as papermill does, in this very interpreter, and judging what came of it."""

import ast
import logging
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import nbformat
import papermill
import yaml
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError, strip_color
from papermill.iorw import read_yaml_file

from lib import paths
from lib.errors import WorkbookError

PROFILES = paths.NOTEBOOKS / "profiles"
ENGINE = "this-interpreter"


def profile_parameters(profile: str, notebook: str) -> dict:
    """Parameters of a notebook's profile, read by the rules of `papermill -f`.

    Raises:
        WorkbookError: there is no such profile, or it is not a list of names and values.
    """
    path = PROFILES / profile / f"{notebook}.yaml"
    if not path.is_file():
        known = sorted(file.parent.name for file in PROFILES.glob(f"*/{notebook}.yaml"))
        raise WorkbookError(
            f"profile {profile!r} is not there for {notebook}: {path} is missing; "
            f"there are: {', '.join(known) or 'none'}"
        )
    try:
        parameters = read_yaml_file(str(path))
    except yaml.YAMLError as error:
        raise WorkbookError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(parameters, dict | None):
        raise WorkbookError(f"{path} must hold lines of the form `name: value`")
    return parameters or {}


def declared_parameters(notebook: Path) -> dict:
    """Names and values that the notebook's cell tagged `parameters` assigns (literals only)."""
    cells = nbformat.read(notebook, as_version=4).cells
    source = "\n".join(c.source for c in cells if "parameters" in c.metadata.get("tags", []))
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(source).body
    }


def parse_value(text: str) -> object:
    """A value given on the command line: a number, true, false, null, a list of those, or text.

    What looks like a number but is read differently here and there (`010`, `1_000`) stays text.
    """
    if text.lstrip().startswith("["):
        try:
            return _with_values(yaml.load(text, Loader=yaml.BaseLoader))
        except yaml.YAMLError as error:
            raise WorkbookError(f"{text!r} is not a list such as [1, 2, 4]") from error
    return _with_values(text)


def _with_values(item: str | list | dict) -> object:
    words = {"true": True, "false": False, "null": None, "none": None}
    if isinstance(item, list):
        return [_with_values(member) for member in item]
    if not isinstance(item, str):
        raise WorkbookError(f"value {item!r}; allowed: a number, true, false, a text, or a list")
    if item.lower() in words:
        return words[item.lower()]
    if re.fullmatch(r"[-+]?(0|[1-9][0-9]*)", item):
        return int(item)
    if "_" not in item and not re.match(r"\s|[-+]?0[0-9]", item):
        try:
            return float(item)
        except ValueError:
            pass
    return item


def run(notebook: Path, parameters: Mapping[str, object], *, kept_if_failed: Path) -> NotebookNode:
    """Execute a notebook, to its last cell, in the repository's root; return it with its outputs.

    Args:
        notebook: path of the notebook, which is not changed.
        parameters: values for the cell after the one tagged `parameters`.
        kept_if_failed: where the notebook is left, as far as it came, if it fails.

    Raises:
        WorkbookError: the notebook raised one; or it failed, died or stopped before its last cell.
    """
    paths.CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=paths.CACHE, prefix="run-") as folder:
        executed = Path(folder) / notebook.name
        try:
            result = _execute(notebook, executed, parameters)
            _require_every_cell(result)
        except (PapermillExecutionError, DeadKernelError, Unfinished) as error:
            kept_if_failed.parent.mkdir(parents=True, exist_ok=True)
            os.replace(executed, kept_if_failed)
            raise _told(error, notebook, kept_if_failed) from error
        except KeyboardInterrupt:
            logging.getLogger("asyncio").disabled = True  # it would tell how the cell ended
            raise
    for name in ("input_path", "output_path"):  # absolute, so of no use elsewhere
        result.metadata.papermill.pop(name, None)
    return result


class Unfinished(Exception):
    """Some cells of a notebook that raised nothing did not run."""


class ThisInterpreter(AsyncKernelManager):
    """Starts kernels in this interpreter, whatever kernels the user has registered by any name."""

    @property
    def kernel_spec(self) -> KernelSpec:
        command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=command, display_name="Python 3", language="python")


class _Client(PapermillNotebookClient):
    """papermill's client, which first makes sure where it is."""

    def papermill_execute_cells(self) -> None:
        self._require_same_code()
        super().papermill_execute_cells()

    def _require_same_code(self) -> None:
        where = "(__import__('sys').prefix, str(__import__('lib.paths').paths.ROOT))"
        request = self.kc.execute("", silent=True, user_expressions={"where": where})
        answer = self.wait_for_reply(request)["content"]["user_expressions"]["where"]
        here = (sys.prefix, str(paths.ROOT))
        there = answer["data"]["text/plain"] if answer["status"] == "ok" else answer["evalue"]
        if there != repr(here):
            raise WorkbookError(
                f"the notebook would run with other code ({there}) than this command {here}; "
                "unset PYTHONPATH, PYTHONHOME and PYTHONSTARTUP, then try again"
            )


class _Engine(NBClientEngine):
    """papermill's engine, with that client and those kernels."""

    @classmethod
    def execute_managed_notebook(cls, nb_man, kernel_name, **_) -> NotebookNode:
        client = _Client(
            nb_man,
            kernel_name=kernel_name,
            kernel_manager_class=ThisInterpreter,
            extra_arguments=["--IPKernelApp.log_level=40"],  # not its advice on debuggers
            startup_timeout=120,
        )
        return client.execute()


papermill_engines.register(ENGINE, _Engine)


def _execute(notebook: Path, executed: Path, parameters: Mapping[str, object]) -> NotebookNode:
    on_terminal = sys.stderr.isatty()
    if on_terminal:
        os.environ["DP_WORKBOOK_TTY"] = os.ttyname(sys.stderr.fileno())  # for the bars of sweeps
    logging.getLogger("papermill").setLevel(logging.ERROR)  # the notebook refuses unknown names
    return papermill.execute_notebook(
        notebook,
        executed,
        parameters=dict(parameters),
        engine_name=ENGINE,
        cwd=paths.ROOT,
        progress_bar={"desc": notebook.stem, "leave": False} if on_terminal else False,
    )


def _require_every_cell(notebook: NotebookNode) -> None:
    """papermill calls it a success when a cell ends the interpreter with status 0."""
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code" or not cell.source.strip():
            continue
        if cell.execution_count is None or cell.metadata.papermill.status != "completed":
            raise Unfinished(f"it ended early, at cell {number} of {len(notebook.cells)}")


def _told(error: Exception, notebook: Path, kept: Path) -> WorkbookError:
    """The failure in one line; the traceback of a bug is printed before it."""
    reason = str(error)
    if isinstance(error, PapermillExecutionError):
        if error.traceback == [f"{error.ename}: {error.evalue}"]:  # how WorkbookError shows itself
            return WorkbookError(error.evalue)
        print(strip_color("\n".join(error.traceback)), file=sys.stderr)
        first_line = (error.evalue.strip() or "no message").splitlines()[0]
        reason = f"cell [{error.exec_count}] raised {error.ename}: {first_line}"
    elif isinstance(error, DeadKernelError):
        reason = "its process died (was there enough memory?)"
    return WorkbookError(f"{notebook.name} failed: {reason}; as far as it came, it is in {kept}")
