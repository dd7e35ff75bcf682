"""Parameters: right values in the right types, everything else refused in one line."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import papermill
import pytest
import yaml

from lib import data, paths
from lib.errors import WorkbookError
from lib.parameters import SHARED, Parameter, check, check_names, checked_value, results_parameters

TABLE = {
    "delta": Parameter("float", "δ of the guarantee", above=0, below=1),
    "n_canaries": Parameter("int", "number of canaries", minimum=1),
    "n_guesses": Parameter("int", "number of guesses", minimum=0),
    "seed": SHARED["seed"],
}
VALUES = {"delta": 1e-5, "n_canaries": 100, "n_guesses": 10, "seed": 0}


def value_of(kind, value, **limits):
    return checked_value("x", value, Parameter(kind, "a thing", **limits))


@pytest.mark.parametrize(
    ("kind", "value", "right"),
    [
        ("float", 1e-5, 1e-5),
        ("float", 1, 1.0),
        ("int", 0, 0),
        ("int", 3.0, 3),
        ("int", 2**80, 2**80),
        ("text", "local", "local"),
        ("flag", False, False),
        ("flag", "true", True),
        ("ints", [1, 2], [1, 2]),
        ("ints", "[1, 2]", [1, 2]),
        ("floats", (1, 2.5), [1.0, 2.5]),
        ("floats", "[1e-5]", [1e-5]),
        ("texts", ["sum", "residual"], ["sum", "residual"]),
    ],
)
def test_values_arrive_in_their_types(kind, value, right):
    result = value_of(kind, value)
    assert result == right
    assert type(result) is type(right)
    if isinstance(right, list):
        assert [type(each) for each in result] == [type(each) for each in right]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("float", "1e-5x"),
        ("float", ""),
        ("float", "nan"),
        ("float", float("nan")),
        ("float", float("inf")),
        ("float", "1e-400"),  # would become 0
        ("float", "1e400"),  # would become infinity
        ("float", 2**53 + 1),  # would lose its last digit
        ("float", 10**400),
        ("float", True),
        ("float", None),
        ("float", "1_000"),
        ("float", " 1.5"),
        ("int", "010"),
        ("int", 2.5),
        ("int", "2.5"),
        ("int", False),
        ("int", "1e999999"),
        ("int", [1]),
        ("text", 1),
        ("text", None),
        ("flag", 0),
        ("flag", "no"),
        ("ints", []),
        ("ints", 1),
        ("ints", [1, 1]),
        ("ints", [1, 2.5]),
        ("ints", "[1, 2"),
        ("ints", "1, 2"),
        ("floats", "[NaN]"),
        ("floats", {"a": 1}),
        ("texts", "sum"),
    ],
)
def test_wrong_values_are_refused_in_one_line(kind, value):
    with pytest.raises(
        WorkbookError, match=r"^parameter x = .* is not allowed: it must be "
    ) as caught:
        value_of(kind, value)
    assert "a thing" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "words"),
    [
        ({"above": 0}, (1e-300,), (0, 0.0, -1, "0"), "a number above 0"),
        ({"minimum": 0}, (0,), (-1e-300,), "a number at least 0"),
        ({"above": 0, "maximum": 1}, (1, 0.5), (0, 1.1), "above 0 and at most 1"),
        ({"above": 0, "below": 1}, (0.5,), (0, 1), "above 0 and below 1"),
    ],
)
def test_bounds(limits, inside, outside, words):
    for value in inside:
        assert value_of("float", value, **limits) == value
    for value in outside:
        with pytest.raises(WorkbookError, match=words):
            value_of("float", value, **limits)
        with pytest.raises(WorkbookError, match="each"):
            value_of("floats", [value], **limits)


def test_alternatives_choices_and_unknown_kinds():
    guesses = {"alternatives": ("simulated",), "minimum": 0}
    assert value_of("ints", "simulated", **guesses) == "simulated"
    assert value_of("ints", [0], **guesses) == [0]
    with pytest.raises(WorkbookError, match="each at least 0, or 'simulated'"):
        value_of("ints", "simulate", **guesses)
    with pytest.raises(WorkbookError, match="one of sum, residual"):
        value_of("texts", ["sum", "other"], choices=("sum", "residual"))
    with pytest.raises(ValueError, match="kind 'number'"):
        Parameter("number", "a thing")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("dataset", data.NAMES, ("cifar", "", None)),
        ("data_dir", ("data", "../images"), ("", 1)),
        ("results_dir", ("results",), ("",)),
        (
            "results_version",
            ("local", "v0", "v1", "v12"),
            ("", "1", "v", "v01", "v1.0", "V1", "v1\n"),
        ),
        ("seed", (0, 2**63 - 1), (-1, 2**63, "0x1")),
        ("n_jobs", (1, 8, -1, "-1"), (0, -2, True, 1.5)),
        ("scheduler", ("", "tcp://127.0.0.1:8786"), ("localhost", "tcp://host", None)),
        ("device", ("auto", "cpu", "cuda"), ("gpu", "")),
        ("figures_only", (True, False), ("yes", 1)),
    ],
)
def test_the_shared_parameters(name, right, wrong):
    for value in right:
        assert str(checked_value(name, value, SHARED[name])) == str(value)
    for value in wrong:
        message = (
            rf"^parameter {name} = {re.escape(repr(value))} \(\w+\) is not allowed: it must be "
        )
        with pytest.raises(WorkbookError, match=message):
            checked_value(name, value, SHARED[name])


def test_which_parameters_change_results():
    values = check({name: VALUES.get(name, 0) for name in TABLE}, TABLE)
    assert results_parameters(values, TABLE) == VALUES
    assert {name for name in SHARED if SHARED[name].changes_results} == {
        "dataset",
        "seed",
        "device",
    }


def test_a_dictionary_of_parameters():
    assert check(VALUES | {"delta": 1e-6}, TABLE) == SimpleNamespace(**VALUES | {"delta": 1e-6})
    with pytest.raises(WorkbookError, match=r"unknown parameter 'dleta': did you mean 'delta'\?"):
        check(VALUES | {"dleta": 1e-6}, TABLE)
    with pytest.raises(WorkbookError, match="without a value: seed"):
        check({name: VALUES[name] for name in VALUES if name != "seed"}, TABLE)
    with pytest.raises(WorkbookError, match="unknown parameter 'xyz': known are delta, n_can"):
        check_names(["xyz"], TABLE)


def test_globals_of_a_script_hold_other_names_too():
    assert check(VALUES | {"__name__": "__main__", "other": 3}, TABLE).seed == 0


def test_rules_see_the_checked_values():
    def guesses_fit(values):
        if values.n_guesses > values.n_canaries:
            raise WorkbookError(f"n_guesses = {values.n_guesses} is more than n_canaries")

    assert check(VALUES, TABLE, rules=[guesses_fit]).n_guesses == 10
    with pytest.raises(WorkbookError, match="n_guesses = 101 is more"):
        check(VALUES | {"n_guesses": 101}, TABLE, rules=[guesses_fit])


@pytest.mark.parametrize(("name", "text"), [("delta", "1e-5"), ("seed", "7"), ("delta", "0.25")])
def test_a_number_in_text_is_refused_with_a_hint(name, text):
    with pytest.raises(WorkbookError, match=rf"{name} = '{text}' \(text\).*1\.0e-5 for a number"):
        check(VALUES | {name: text}, TABLE)


# ------------------------------------------------------------- what the cells of IPython tell

DECLARING = "".join(f"{name} = {value!r}  # a comment\n" for name, value in VALUES.items())


def check_in_ipython(*cells, **changed):
    shell = SimpleNamespace(system_raise_on_error=False)
    namespace = {"__name__": "__main__", "In": ["", *cells], "get_ipython": lambda: shell}
    values = check(VALUES | changed | namespace, TABLE)
    assert shell.system_raise_on_error is True
    return values


def test_cells_in_their_right_order():
    assert check_in_ipython(DECLARING).seed == 0
    injected = "# Parameters\nseed = 7\n"
    assert (
        check_in_ipython("import os", DECLARING, injected, "%matplotlib inline", seed=7).seed == 7
    )
    # a reader who runs the notebook again, or changes a parameter in a cell of their own
    assert check_in_ipython(DECLARING, injected, DECLARING, "seed = 3").seed == 0


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["# Parameters\nseed = 7\n", DECLARING], "give the declaring cell the tag 'parameters'"),
        (["# Parameters\nseed = 7\n"], "before the cell that declares them"),
        ([DECLARING, "# Parameters\nsede = 7\n"], "unknown parameter 'sede': did you mean 'seed'"),
        ([DECLARING + "width = 3\n"], "unknown parameter 'width'"),
        ([DECLARING.replace("seed", "#")], "does not declare seed"),
        ([DECLARING.replace("seed = 0", "seed: int = 0") + "steps: int = 3\n"], "'steps'"),
    ],
)
def test_cells_that_show_a_mistake(cells, words):
    with pytest.raises(WorkbookError, match=re.escape(words)):
        check_in_ipython(*cells)


# ----------------------------------------------------------------------- a real notebook


def notebook(path, *, tags=("parameters",), more=()):
    """A tiny notebook with the parameters of TABLE."""
    table = ", ".join(f"{name!r}: {parameter!r}" for name, parameter in TABLE.items())
    start = (
        "from lib import parameters\nfrom lib.parameters import Parameter\n"
        f"values = parameters.check(globals(), {{{table}}})\n"
        "print('delta is', repr(values.delta), 'seed is', values.seed)"
    )
    cells = [nbformat.v4.new_code_cell(source) for source in (DECLARING, start, *more)]
    cells[0].metadata["tags"] = list(tags)
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), path)
    return path


def run_notebook(folder, parameters, **changes):
    """What papermill's run of the notebook prints."""
    source = notebook(folder / "in.ipynb", **changes)
    result = papermill.execute_notebook(
        source, folder / "out.ipynb", parameters, cwd=paths.ROOT, progress_bar=False
    )
    return "".join(text.text for cell in result.cells for text in cell.get("outputs", ()))


def test_papermill_with_a_number_as_text(tmp_path):
    parameters = yaml.safe_load("delta: 1e-6\nseed: 7\n")
    assert parameters["delta"] == "1e-6"
    with pytest.raises(papermill.PapermillExecutionError, match=r"delta = '1e-6' \(text\)"):
        run_notebook(tmp_path, parameters)
    assert run_notebook(tmp_path, {"delta": 1e-6, "seed": 7}) == "delta is 1e-06 seed is 7\n"


def test_papermill_with_a_lost_tag(tmp_path):
    with pytest.raises(papermill.PapermillExecutionError, match="the tag 'parameters' back"):
        run_notebook(tmp_path, {"seed": 7}, tags=())


def test_a_failing_shell_line_fails_its_cell(tmp_path):
    with pytest.raises(papermill.PapermillExecutionError, match="false"):
        run_notebook(tmp_path, {}, more=["!false"])


def test_a_misspelt_name_ends_plain_papermill_with_one_line(tmp_path):
    source = notebook(tmp_path / "in.ipynb")
    command = [sys.executable, "-m", "papermill", str(source), str(tmp_path / "out.ipynb")]
    process = subprocess.run(
        [*command, "--cwd", str(paths.ROOT), "-p", "dleta", "1e-6"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 1
    last = process.stderr.strip().splitlines()[-1]
    assert last.startswith("WorkbookError: unknown parameter 'dleta': did you mean 'delta'?")


def test_shipped_profiles_hold_typed_values():
    """YAML takes 1e-5 for text, which is refused."""
    for profile in Path(paths.NOTEBOOKS).glob("profiles/*/*.yaml"):
        for name, value in yaml.safe_load(profile.read_text()).items():
            assert not isinstance(value, str) or not re.fullmatch(r"[-+.\d].*", value), name
