"""The command line's commands, and how a notebook is run and judged."""

import gc
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap

import nbformat
import pytest
from nbformat import v4

from lib import commands, notebooks, paths, results
from lib.errors import WorkbookError

STUDY = '''
"""A study of one table and one figure."""
from lib import figures
from lib.parameters import SHARED, Parameter
from lib.results import Draft, Field, Figure, Table

NOTEBOOK = "07_tiny"
COUNTS = Table((Field("n", "integer", "", "a count"),), key=("n",), meaning="counts")
VERDICTS = Table(
    (
        Field("claim", "string", "", "the claim"),
        Field("ours", "number", "", "our value"),
        Field("reason", "string", "", "why"),
    ),
    key=("claim",),
    meaning="verdicts",
)

TABLES = {"counts": COUNTS, "verdicts": VERDICTS}
PARAMETERS = {name: SHARED[name] for name in ("seed", "results_dir", "results_version", "n_jobs")}
PARAMETERS |= {"n": Parameter("int", "the count", minimum=0)}
RULES = DATA_RULES = ()


def draw(tables):
    figure, axes = figures.new_figure()
    axes.plot(tables["counts"]["n"])
    return figure


def draw_otherwise(tables):
    figure = draw(tables)
    figure.axes[0].set_title("changed")
    return figure


FIGURES = {"counts": Figure(draw, ("counts",), "Counts", "A rising line")}


def write(parameters):
    draft = Draft("tiny", parameters["results_version"], parameters["results_dir"])
    draft.write_table("counts", [{"n": 1}, {"n": parameters["n"]}], COUNTS)
    draft.write_table("verdicts", [{"claim": "n", "ours": 1 / 3, "reason": "long"}], VERDICTS)
    draft.write_figure("counts", FIGURES["counts"])
    draft.publish(
        title="A tiny study", parameters=parameters, profile="smoke", seed=parameters["seed"],
        dataset={"name": "none", "sha256": ""}, papers=(), wall_time_s=1.0,
    )
'''
PARAMETERS = 'seed = 0\nn = 2\nresults_dir = ""\nresults_version = "local"\nn_jobs = 1'
WRITE = (
    "import sys\nsys.path.insert(0, {folder!r})\nimport tiny_study\n"
    "names = ['seed', 'n', 'results_dir', 'results_version', 'n_jobs']\n"
    "tiny_study.write({{name: globals()[name] for name in names}})"
)


def write_notebook(path, *sources):
    made = v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "P", "language": "python"}}
    )
    made.cells = [v4.new_markdown_cell("# A tiny study\n\nIt has $n$ counts.")]
    made.cells.append(v4.new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]}))
    made.cells += [v4.new_code_cell(source) for source in sources]
    nbformat.write(made, path)
    return path


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A repository of one tiny study, run by the real code."""
    folders = {
        "NOTEBOOKS": tmp_path / "notebooks",
        "RESULTS": tmp_path / "results",
        "CACHE": tmp_path / ".cache",
    }
    profile = folders["NOTEBOOKS"] / "profiles" / "smoke"
    profile.mkdir(parents=True)
    folders["RESULTS"].mkdir()
    for name, folder in folders.items():
        monkeypatch.setattr(paths, name, folder)
    monkeypatch.setattr(notebooks, "PROFILES", folders["NOTEBOOKS"] / "profiles")
    monkeypatch.setattr(commands, "KEPT_FAILURES", folders["CACHE"] / "failed")
    monkeypatch.setattr(commands, "REDRAWN", folders["CACHE"] / "redrawn")
    monkeypatch.setattr(commands, "STUDIES", {"tiny": "tiny_study"})
    (tmp_path / "tiny_study.py").write_text(STUDY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tiny_study", raising=False)
    (profile / "07_tiny.yaml").write_text(f"seed: 3\nresults_dir: {folders['RESULTS']}\n")
    write_notebook(folders["NOTEBOOKS"] / "07_tiny.ipynb", WRITE.format(folder=str(tmp_path)))
    return tmp_path


def lib(*arguments):
    return commands.execute(commands.parse(list(arguments)))


def write_package(version):
    import tiny_study

    values = (3, 2, paths.RESULTS, version, 1)
    names = ("seed", "n", "results_dir", "results_version", "n_jobs")
    tiny_study.write(dict(zip(names, values, strict=True)))


@pytest.fixture
def done(tiny):
    """The tiny study, its results being there as version v1, as if `run` had made them."""
    write_package("v1")
    executed = nbformat.read(paths.NOTEBOOKS / "07_tiny.ipynb", as_version=4)
    paths.CACHE.mkdir()
    commands._add_notebook(paths.RESULTS / "tiny" / "v1", "07_tiny", executed)
    assert lib("render") == 0
    return tiny


# Arguments


def test_defaults_are_all_studies_small_and_scratch():
    request = commands.parse(["run"])
    assert (request.study, request.profile, request.version) == (None, "smoke", "local")
    assert (request.parameters, request.jobs, request.scheduler) == ([], None, None)
    assert commands.parse(["figures"]).version == "local"
    assert commands.parse(["verify"]).version is None


def test_arguments_of_test_are_passed_on():
    arguments = ["-q", "tests/test_pages.py", "-k", "money", "--version"]
    assert commands.parse(["test", *arguments]).arguments == arguments


@pytest.mark.parametrize("version", ["local", "v0", "v12"])
def test_versions(version):
    assert commands.parse(["run", "--version", version]).version == version


@pytest.mark.parametrize("version", ["v01", "1", "v", "../v1", "V1", "latest", ""])
def test_what_is_no_version(version):
    with pytest.raises(WorkbookError, match=re.escape(repr(version))):
        commands.parse(["run", "--version", version])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-7", -7),
        ("0", 0),
        ("1e-6", 1e-6),
        (".5", 0.5),
        ("1.0", 1.0),
        ("true", True),
        ("False", False),
        ("null", None),
        ("[1, 2.5,1e-5]", [1, 2.5, 1e-5]),
        ("[]", []),
        ("[a, b]", ["a", "b"]),
        ("mnist5k", "mnist5k"),
        ("tcp://10.0.0.1:8786", "tcp://10.0.0.1:8786"),
        ("2026-12-01", "2026-12-01"),
        ("", ""),
        # read as 8, 10 or 1000 by one tool or another: left to the check of the parameters
        ("010", "010"),
        ("-010", "-010"),
        ("1_000", "1_000"),
        ("[010]", ["010"]),
        ("0x10", "0x10"),
    ],
)
def test_values_given_on_the_command_line(text, value):
    found = notebooks.parse_value(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["[1, 2", "[a: b]"])
def test_broken_lists_are_refused(text):
    with pytest.raises(WorkbookError):
        notebooks.parse_value(text)


def test_given_values_win_over_options_and_options_over_the_profile(tiny):
    import tiny_study

    request = commands.parse(["run", "--jobs", "3", "-p", "seed", "9", "-p", "n", "5"])
    assert commands._parameters(tiny_study, request) == {
        "seed": 9,
        "results_dir": str(tiny / "results"),
        "results_version": "local",
        "n_jobs": 3,
        "n": 5,
    }


def test_missing_profile_says_which_there_are(tiny):
    with pytest.raises(WorkbookError, match=r"profile 'cpu' is not there.*there are: smoke"):
        lib("run", "--profile", "cpu")


@pytest.mark.parametrize("text", ["- 1\n- 2\n", "seed: [1\n"])
def test_unreadable_profile_is_named(tiny, text):
    (notebooks.PROFILES / "smoke" / "07_tiny.yaml").write_text(text)
    with pytest.raises(WorkbookError, match=r"07_tiny\.yaml"):
        notebooks.profile_parameters("smoke", "07_tiny")


# Running


def test_run_leaves_a_sound_package_with_notebook_and_page(tiny, capsys):
    assert lib("run", "-p", "n", "5", "--jobs", "2") == 0
    told = capsys.readouterr()
    folder = tiny / "results" / "tiny" / "local"
    package = results.open_package("tiny", "local", paths.RESULTS)
    assert package.tables["counts"]["n"].tolist() == [1, 5]
    assert (package.parameters["seed"], package.parameters["n_jobs"]) == (3, 2)
    assert results.verify(folder) == []
    listed = {resource["path"] for resource in package.descriptor["resources"]}
    assert {"07_tiny.ipynb", "07_tiny.html"} <= listed
    assert str(folder) in told.out
    assert "0.333" in told.out
    assert "long" not in told.out
    text = (folder / "07_tiny.ipynb").read_text()
    assert str(tiny / ".cache") not in text
    assert not list((tiny / ".cache").glob("run-*"))
    site = tiny / "results" / "site"
    assert 'href="tiny-local.html"' in (site / "index.html").read_text()
    assert "<math" in (site / "tiny-local.html").read_text()


def test_notebook_runs_here_whatever_kernels_the_user_has(tiny, monkeypatch):
    kernel = tiny / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": ["/bin/false"], "display_name": "P", "language": "python"})
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tiny / "jupyter"))
    source = "import sys, os\nprint(sys.executable, os.getcwd())"
    path = write_notebook(tiny / "where.ipynb", source)
    executed = notebooks.run(path, {"seed": 1}, kept_if_failed=tiny / "failed.ipynb")
    assert executed.cells[-1].outputs[0].text == f"{sys.executable} {paths.ROOT}\n"
    assert executed.metadata.kernelspec.name == "python3"
    assert not (tiny / "failed.ipynb").exists()


def test_kernel_with_other_code_is_refused(tiny, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    path = write_notebook(tiny / "x.ipynb", "1")
    with pytest.raises(WorkbookError, match="/another/environment"):
        notebooks.run(path, {}, kept_if_failed=tiny / "failed.ipynb")


def fail_with(tiny, *sources):
    path = write_notebook(tiny / "x.ipynb", *sources)
    with pytest.raises(WorkbookError) as failure:
        notebooks.run(path, {}, kept_if_failed=tiny / "kept" / "x.ipynb")
    assert (tiny / "kept" / "x.ipynb").exists()
    message = str(failure.value)
    assert "\n" not in message
    return message


def test_expected_failure_is_its_own_line_and_nothing_else(tiny, capsys):
    source = (
        "from lib.errors import WorkbookError\n"
        "class Refusal(WorkbookError): pass\n"
        "raise Refusal('n = 0; allowed: at least 1')"
    )
    assert fail_with(tiny, source, "late = 1") == "n = 0; allowed: at least 1"
    assert capsys.readouterr().err == ""


def test_bug_shows_its_traceback_then_one_line(tiny, capsys):
    message = fail_with(tiny, "def f():\n    return 1 / 0\nf()")
    assert "ZeroDivisionError: division by zero" in message
    assert str(tiny / "kept" / "x.ipynb") in message
    assert "return 1 / 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("import sys\nsys.exit(0)", "ended early, at cell 3 of 4"),
        ("import os\nos._exit(0)", "died"),
    ],
)
def test_ending_early_with_status_0_is_a_failure(tiny, source, part):
    assert part in fail_with(tiny, source, "2")


def test_interrupt_ends_the_notebook_too_and_leaves_nothing(tiny, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", False)
    source = (
        "import os, pathlib, signal, time\n"
        f"pathlib.Path({str(tiny / 'pid')!r}).write_text(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(60)"
    )
    path = write_notebook(tiny / "x.ipynb", source)
    # What was started in the background ignores the signal until it is told otherwise.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            notebooks.run(path, {}, kept_if_failed=tiny / "failed.ipynb")
    finally:
        signal.signal(signal.SIGINT, before)
    gc.collect()
    assert "never retrieved" not in caplog.text
    with pytest.raises(ProcessLookupError):
        os.kill(int((tiny / "pid").read_text()), 0)
    assert list((tiny / ".cache").iterdir()) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("1", "without writing"),
        (
            "import pathlib, tiny_study\ntiny_study.write(globals())\n"
            "next(pathlib.Path(results_dir).rglob('counts.csv')).write_text('n\\n1\\n3\\n')",
            "is not sound",
        ),
    ],
)
def test_a_run_without_a_sound_package_is_a_failure(tiny, source, message):
    path = paths.NOTEBOOKS / "07_tiny.ipynb"
    setup = (
        f"import sys\nsys.path.insert(0, {str(tiny)!r})\n"
        "import tiny_study\nwrite = tiny_study.write\n"
        "tiny_study.write = lambda names: write({name: names[name] for name in "
        "('seed', 'n', 'results_dir', 'results_version', 'n_jobs')})"
    )
    write_notebook(path, setup, source)
    with pytest.raises(WorkbookError, match=message):
        lib("run")


def test_the_package_of_an_earlier_run_does_not_count(tiny):
    write_package("local")
    for file in (tiny / "results" / "tiny" / "local").iterdir():
        os.utime(file, (1, 1))
    write_notebook(paths.NOTEBOOKS / "07_tiny.ipynb", "1")
    with pytest.raises(WorkbookError, match="earlier run"):
        lib("run")


def test_published_version_is_refused_before_any_work(done, monkeypatch):
    def run(*arguments, **options):
        raise AssertionError("the notebook was started")

    monkeypatch.setattr(notebooks, "run", run)
    with pytest.raises(WorkbookError, match="published"):
        lib("run", "--version", "v1", "-p", "seed", "8")


# Figures, verify, render


def test_figures_of_a_published_version_are_compared_aside(done, capsys):
    before = {path.name: path.read_bytes() for path in (done / "results/tiny/v1").iterdir()}
    assert lib("figures", "--version", "v1") == 0
    told = capsys.readouterr().out
    redrawn = done / ".cache" / "redrawn" / "tiny" / "v1"
    assert f"{redrawn / 'counts.png'}: equal\n" in told
    assert f"{redrawn / 'counts.svg'}: equal\n" in told
    assert (redrawn / "counts.png").read_bytes() == before["counts.png"]
    after = {path.name: path.read_bytes() for path in (done / "results/tiny/v1").iterdir()}
    assert after == before


def change_figure(monkeypatch):
    import tiny_study

    changed = results.Figure(tiny_study.draw_otherwise, ("counts",), "Counts", "A rising line")
    monkeypatch.setitem(tiny_study.FIGURES, "counts", changed)


def test_a_figure_that_differs_is_named_and_nothing_overwritten(done, capsys, monkeypatch):
    before = (done / "results/tiny/v1/counts.png").read_bytes()
    change_figure(monkeypatch)
    assert lib("figures", "--version", "v1") == 1
    assert "counts.png: differs" in capsys.readouterr().out
    assert (done / "results/tiny/v1/counts.png").read_bytes() == before


def test_figures_of_scratch_are_redrawn_in_place(tiny, monkeypatch):
    write_package("local")
    before = (tiny / "results/tiny/local/counts.png").read_bytes()
    change_figure(monkeypatch)
    assert lib("figures") == 0
    assert (tiny / "results/tiny/local/counts.png").read_bytes() != before
    assert lib("verify") == 0


def test_figures_without_results_name_the_command_that_makes_them(tiny):
    with pytest.raises(WorkbookError, match="python3 -m lib run --study tiny --version local"):
        lib("figures")


def test_verify_tells_every_package_and_fails_on_one(done, capsys):
    shutil.copytree(done / "results/tiny/v1", done / "results/tiny/v2")
    (done / "results/tiny/v2/counts.csv").write_text("n\n1\n7\n")
    capsys.readouterr()
    assert lib("verify") == 1
    told = capsys.readouterr().out
    assert f"{done / 'results/tiny/v1'}: sound\n" in told
    assert "counts.csv" in told
    assert lib("verify", "--version", "v1") == 0


def test_verify_without_packages_is_no_success(tiny):
    with pytest.raises(WorkbookError, match="no result package"):
        lib("verify")
    (tiny / "results" / "tiny" / "v3").mkdir(parents=True)  # a folder without a descriptor
    assert lib("verify", "--version", "v3") == 1


def test_site_is_made_anew_with_relative_links(done):
    site = done / "results" / "site"
    (site / "gone-v1.html").write_text("an old page")
    first = {path.name: path.read_bytes() for path in site.iterdir()}
    assert lib("render") == 0
    second = {path.name: path.read_bytes() for path in site.iterdir()}
    assert sorted(second) == ["index.html", "tiny-v1.html"]
    assert second["tiny-v1.html"] == first["tiny-v1.html"]
    for address in re.findall(r'(?:href|src)="([^"#]+)"', second["index.html"].decode()):
        assert (site / address).is_file(), address


# What hands over to other programs


def test_test_runs_pytest_and_returns_its_code(tmp_path):
    path = tmp_path / "test_x.py"
    path.write_text("def test_x():\n    assert False\n")
    assert lib("test", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(path)) == 1


def test_lint_fails_on_either_check(monkeypatch):
    answers = {"check": 0, "format": 0}
    asked = []

    def run(command, **options):
        asked.append(command[3])
        return subprocess.CompletedProcess(command, answers[command[3]])

    monkeypatch.setattr(commands.subprocess, "run", run)
    assert lib("lint") == 0
    assert asked == ["check", "format"]
    answers["format"] = 1
    assert lib("lint") == 1
    answers.update(check=1, format=0)
    assert lib("lint") == 1


def test_lab_opens_on_the_notebooks_in_this_environment(monkeypatch):
    calls = []
    monkeypatch.setattr(os, "execv", lambda *call: calls.append(call))
    monkeypatch.setenv("JUPYTER_PREFER_ENV_PATH", "")
    lib("lab", "--no-browser")
    [(program, command)] = calls
    assert program == sys.executable
    assert command[1:3] == ["-m", "jupyterlab"]
    assert f"--ServerApp.preferred_dir={paths.NOTEBOOKS}" in command
    assert command[-1] == "--no-browser"
    assert os.environ["JUPYTER_PREFER_ENV_PATH"] == "1"


def test_arguments_are_checked_without_any_installed_package():
    program = textwrap.dedent(
        f"""
        import sys
        sys.path.insert(0, {str(paths.ROOT)!r})
        from lib import commands
        commands.parse(["run", "--profile", "smoke"])
        """
    )
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True)
