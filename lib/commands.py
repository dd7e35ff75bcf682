"""The commands of `python3 -m lib`: what they take, and what they do inside the environment.

Importing this module needs nothing but the standard library, so that the arguments are checked
before anything is installed; each command imports what it works with.
"""

import argparse
import importlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

from lib import paths
from lib.errors import WorkbookError

STUDIES = {  # by the name of their results' folder
    "one_run_audit": "lib.one_run_audit",
    "reconstruction_sweep": "lib.reconstruction_sweep",
    "condensation_reevaluation": "lib.condensation_reevaluation",
}
PROFILES = ("smoke", "cpu", "paper")
SITE = "site"  # beside the studies' folders
KEPT_FAILURES = paths.CACHE / "failed"
REDRAWN = paths.CACHE / "redrawn"
PASSED_ON = ("test", "lab")  # commands that hand their arguments to another program

DESCRIPTION = """\
The workbook's commands. The first one sets up the environment, unless an active one has all
packages of environment.yml; each works from any folder: python3 /path/to/the/clone/lib COMMAND."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise WorkbookError(f"{message}; `{self.prog} --help` tells what is allowed")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Read the command line.

    Raises:
        WorkbookError: something unknown, or a value that is not allowed.
        SystemExit: after printing help, which was asked for (or nothing was).
    """
    parser = _parser()
    if not arguments:
        parser.print_help()
        raise SystemExit(0)
    command, *rest = arguments
    if command in PASSED_ON and rest[:1] not in (["-h"], ["--help"]):
        return argparse.Namespace(command=command, arguments=rest)
    return parser.parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python3 -m lib",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, about: str, *, version: str | None = None, study: bool = False):
        command = commands.add_parser(name, help=about, description=about, allow_abbrev=False)
        if study:
            command.add_argument("--study", choices=STUDIES, help="one study (default: all)")
            command.add_argument(
                "--version", type=_version, default=version, help="local, v0, v1, …"
            )
        return command

    scratch = {"version": "local", "study": True}
    run = add("run", "run the studies' notebooks and write their results", **scratch)
    run.add_argument("--profile", choices=PROFILES, default="smoke", help="size (default: smoke)")
    run.add_argument(
        "-p", dest="parameters", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"),
        help="a parameter of the notebook, as in papermill; may be repeated",
    )  # fmt: skip
    run.add_argument("--jobs", type=int, metavar="N", help="processes at once; -1: all cores")
    run.add_argument("--scheduler", metavar="tcp://…", help="address of a Dask cluster's scheduler")
    audit = add("audit", "bound ε from a CSV file of your own canaries' scores and coins")
    audit.add_argument("scores", type=Path, help="CSV file with the columns score and included")
    audit.add_argument("--delta", type=float, required=True, help="δ of the bound, in [0, 1]")
    audit.add_argument(
        "--guesses", nargs="+", default=[], metavar="N",
        help="guesses of 'in', or of 'in' and 'out' as 200+100; of several the best counts, with "
        "Bonferroni's correction; fix them before you look",
    )  # fmt: skip
    audit.add_argument("--significance", type=float, default=0.05, help="(default: 0.05)")
    audit.add_argument("--seed", type=int, default=0, help="breaks ties (default: 0)")
    audit.add_argument("--output", type=Path, metavar="CSV", help="write bounds and counts there")
    audit.add_argument("--figure", type=Path, metavar="PNG", help="draw the scores there")
    add("test", "run the tests; arguments are pytest's")
    add("lint", "check the code's style (ruff)")
    add("figures", "redraw figures from their tables, nothing recomputed", **scratch)
    add("verify", "check every result package again, number by number", study=True)
    add("render", "write results/site: a page for every notebook that ran")
    add("lab", "open JupyterLab; arguments are JupyterLab's")
    return parser


def _version(text: str) -> str:
    if not re.fullmatch(r"local|v(0|[1-9][0-9]*)", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not local, v0, v1, …")
    return text


def execute(request: argparse.Namespace) -> int:
    """Do a command; return its exit code. Called in the environment that stands."""
    commands = {
        "run": run,
        "audit": audit,
        "test": test,
        "lint": lint,
        "figures": figures,
        "verify": verify,
        "render": render,
        "lab": lab,
    }
    return commands[request.command](request)


# Running


def run(request: argparse.Namespace) -> int:
    """Run the asked studies one after the other, then write the site."""
    for name in _studies(request):
        _run_study(name, request)
    return render(request)


def _run_study(name: str, request: argparse.Namespace) -> None:
    from lib import notebooks, results
    from lib import parameters as door

    started = time.time()
    study = _module(name)
    notebook = paths.NOTEBOOKS / f"{study.NOTEBOOK}.ipynb"
    parameters = _parameters(study, request)
    # The notebook checks them too, but only once its kernel has started.
    declared = notebooks.declared_parameters(notebook)
    door.check(declared | parameters, study.PARAMETERS, rules=study.RULES)
    version = str(parameters["results_version"])
    results_dir = paths.ROOT / str(parameters.get("results_dir", paths.RESULTS))
    only_read = parameters.get("figures_only") is True
    if not only_read:
        results.check_writable(name, version, results_dir=results_dir)
    print(f"{name}: running {_short(notebook)}, profile {request.profile} …", file=sys.stderr)
    executed = notebooks.run(notebook, parameters, kept_if_failed=KEPT_FAILURES / f"{name}.ipynb")
    package = results_dir / name / version
    _require_package(package, None if only_read else started)
    if not only_read or version in results.OVERWRITABLE:
        _add_notebook(package, study.NOTEBOOK, executed)
    _summarise(name, version, results_dir, time.time() - started)


def _parameters(study: ModuleType, request: argparse.Namespace) -> dict[str, object]:
    """A run's parameters: the profile's, then those that options name, then those given by `-p`."""
    from lib import notebooks

    options = {
        "results_version": request.version,
        "n_jobs": request.jobs,
        "scheduler": request.scheduler,
    }
    return {
        **notebooks.profile_parameters(request.profile, study.NOTEBOOK),
        **{name: value for name, value in options.items() if value is not None},
        **{name: notebooks.parse_value(value) for name, value in request.parameters},
    }


def _require_package(package: Path, started: float | None) -> None:
    """A notebook that ran to its end has not succeeded before its package is there, and sound."""
    descriptor = package / "datapackage.json"
    if not descriptor.is_file():
        raise WorkbookError(f"the notebook ran to its end without writing {package}")
    clock = 2  # seconds by which a file system's may be behind
    if started is not None and descriptor.stat().st_mtime < started - clock:
        raise WorkbookError(f"the notebook ran to its end, but {package} is from an earlier run")
    problems = _problems(package)
    if problems:
        raise WorkbookError(f"{package} is not sound ({len(problems)} problems): {problems[0]}")


def _add_notebook(package: Path, name: str, executed) -> None:
    """Keep the executed notebook and its page in the package."""
    import tempfile

    import nbformat

    from lib import pages, results

    with tempfile.TemporaryDirectory(dir=paths.CACHE, prefix="run-") as folder:
        notebook, page = Path(folder) / f"{name}.ipynb", Path(folder) / f"{name}.html"
        nbformat.write(executed, notebook)
        page.write_text(pages.notebook_page(executed), encoding="utf-8")
        results.add_files(package, {"notebook": notebook, "page": page})


def _summarise(name: str, version: str, results_dir: Path, seconds: float) -> None:
    from lib import results

    package = results.open_package(name, version, results_dir)
    drawn = ", ".join(sorted(path.name for path in package.path.glob("*.png"))) or "none"
    where = f"{_short(package.path)} ({len(package.tables)} tables; figures: {drawn})"
    print(f"{name}: {seconds:.0f} s, results in {where}")
    if "verdicts" in package.tables:
        print(_headlines(package).to_string(index=False))


def _headlines(package):
    """A package's verdicts, short: numbers rounded, reasons left to the page."""
    verdicts = package.tables["verdicts"]
    return verdicts.drop(columns="reason", errors="ignore").round(3)


# A run of one's own


def audit(request: argparse.Namespace) -> int:
    """Bound ε from a file of scores and coins."""
    from lib import figures, score_file

    scores, included = score_file.read(request.scores)
    counts = [score_file.parse_counts(text) for text in request.guesses]
    results = score_file.audit(
        scores,
        included,
        delta=request.delta,
        counts=counts or score_file.default_counts(scores.size),
        significance=request.significance,
        seed=request.seed,
    )
    for result in results:
        print(score_file.tell(result))
    try:
        if request.output:
            score_file.table(results).to_csv(request.output, index=False, lineterminator="\n")
        if request.figure:
            with figures.style():
                score_file.draw(scores, included).savefig(request.figure)
    except (OSError, ValueError) as error:
        raise WorkbookError(f"cannot write: {error}") from error
    return 0


# Checking


def test(request: argparse.Namespace) -> int:
    """Run pytest on the tests, or with the arguments given."""
    return _tool("pytest", *request.arguments)


def lint(_: argparse.Namespace) -> int:
    """Check the style of the library, the tests and the notebooks."""
    folders = [name for name in ("lib", "tests", "notebooks") if (paths.ROOT / name).is_dir()]
    return _tool("ruff", "check", *folders) or _tool("ruff", "format", "--check", *folders)


def _tool(module: str, *arguments: str) -> int:
    sys.stdout.flush()
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=paths.ROOT, check=False).returncode


def verify(request: argparse.Namespace) -> int:
    """Check the result packages; 1 if one has a problem."""
    bad = 0
    for folder in _packages(request):
        problems = _problems(folder)
        bad += bool(problems)
        print(f"{_short(folder)}: {f'{len(problems)} problems' if problems else 'sound'}")
        for problem in problems:
            print(f"  {problem}")
    return 1 if bad else 0


def _problems(folder: Path) -> list[str]:
    """What is wrong with a package, its study's own checks among it."""
    from lib import results, verification

    problems = results.verify(folder)
    if problems or folder.parent.name not in STUDIES:
        return problems
    known = _module(folder.parent.name).TABLES
    return verification.omitted_checks(verification.read_descriptor(folder), known)


def figures(request: argparse.Namespace) -> int:
    """Redraw one version's figures: scratch in place; any other aside, 1 if a byte differs."""
    from lib import results

    different = 0
    for name in _studies(request):
        package = results.open_package(name, request.version, paths.RESULTS)
        aside = None if request.version == "local" else REDRAWN / name / request.version
        changed = results.redraw(package, _module(name).FIGURES, aside)
        same, other = ("equal", "differs") if aside else ("as before", "redrawn, and changed")
        for path in sorted(file for file in (aside or package.path).iterdir() if _is_figure(file)):
            print(f"{_short(path)}: {other if path.name in changed else same}")
        different += len(changed)
    return 1 if different and request.version != "local" else 0


def _is_figure(path: Path) -> bool:
    return path.suffix in (".png", ".svg")


# Reading


def render(_: argparse.Namespace) -> int:
    """Write the site: a page for every executed notebook in the packages, and the index of them."""
    import nbformat

    from lib import pages, results

    site = paths.RESULTS / SITE
    written = {}
    entries = []
    for folder in _packages():
        try:
            package = results.open_package(folder.parent.name, folder.name, paths.RESULTS)
        except WorkbookError as error:  # one damaged package must not hide the others
            print(f"left out: {error}", file=sys.stderr)
            continue
        page = None
        for notebook in folder.glob("*.ipynb"):
            page = f"{package.study}-{package.version}.html"
            executed = nbformat.read(notebook, as_version=4)
            written[page] = pages.notebook_page(executed, index="index.html")
        entries.append(_entry(package, page))
    written["index.html"] = pages.index_page(entries)
    site.mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        unfinished = site / f".{name}.{os.getpid()}"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(site / name)
    for old in site.glob("*.html"):
        if old.name not in written:
            old.unlink()
    print(f"Read the results at {_short(site / 'index.html')} (a file for any browser).")
    return 0


def _entry(package, page: str | None):
    """What the index tells of a package."""
    from lib import pages

    made = package.descriptor["provenance"]
    return pages.Entry(
        title=package.descriptor["title"],
        version=package.version,
        page=page,
        facts={
            "profile": made["profile"],
            "dataset": made["dataset"].get("name", "none"),
            "seed": str(made["seed"]),
            "wall time": f"{made['wall_time_s']:.0f} s",
            "made": package.descriptor["created"],
        },
        figures={
            f"../{package.study}/{package.version}/{resource['path']}": resource["title"]
            for resource in package.descriptor["resources"]
            if resource["path"].endswith(".png")
        },
        verdicts=_headlines(package).to_dict("records") if "verdicts" in package.tables else [],
    )


def lab(request: argparse.Namespace) -> int:
    """Become JupyterLab, opened on the notebooks."""
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not one of the user's
    as_root = ["--allow-root"] if os.geteuid() == 0 else []
    folders = [f"--ServerApp.root_dir={paths.ROOT}", f"--ServerApp.preferred_dir={paths.NOTEBOOKS}"]
    command = [sys.executable, "-m", "jupyterlab", *folders, *as_root, *request.arguments]
    sys.stdout.flush()
    os.execv(sys.executable, command)


# What they share


def _studies(request: argparse.Namespace) -> list[str]:
    return [request.study] if request.study else list(STUDIES)


def _module(name: str) -> ModuleType:
    return importlib.import_module(STUDIES[name])


def _packages(request: argparse.Namespace | None = None) -> list[Path]:
    """Folders of the result packages that are asked for (all, without a request).

    Raises:
        WorkbookError: a request finds none.
    """
    study = (request and request.study) or "*"
    version = (request and request.version) or "*"
    folders = [
        folder
        for folder in sorted(paths.RESULTS.glob(f"{study}/{version}"))
        if folder.is_dir() and folder.parent.name != SITE and "." not in folder.name
    ]
    if request and not folders:
        raise WorkbookError(
            f"no result package {paths.RESULTS / study / version}: `python3 -m lib run` makes some"
        )
    return folders


def _short(path: Path) -> str:
    """A path as seen from the repository's root, if it lies there."""
    return str(path.relative_to(paths.ROOT) if path.is_relative_to(paths.ROOT) else path)
