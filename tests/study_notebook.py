"""What the tests of every study do with its notebook: read it, run it, forge what it made."""

import ast
import csv
import json
import shutil

import nbformat
import yaml

from lib import parameters, paths, results, verification
from lib.verification import checksum


def _notebook(study):
    return nbformat.read(paths.NOTEBOOKS / f"{study.NOTEBOOK}.ipynb", as_version=4)


def declared(study):
    """The values in the notebook's parameters cell."""
    (cell,) = [c for c in _notebook(study).cells if "parameters" in c.metadata.get("tags", [])]
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse(cell.source).body
    }


def profile(study, name):
    """A profile's values."""
    text = (paths.NOTEBOOKS / "profiles" / name / f"{study.NOTEBOOK}.yaml").read_text()
    return yaml.safe_load(text)


def checked(study, **changes):
    """The notebook's parameters with some changed, as its set-up cell checks them."""
    return parameters.check(declared(study) | changes, study.PARAMETERS, rules=study.RULES)


def run(study, **values):
    """Run the notebook's code with these parameters, and give the study's session."""
    namespace = {"__name__": "notebook"} | declared(study) | values
    for cell in _notebook(study).cells:
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", []):
            exec(cell.source, namespace)
    return namespace["session"]


def check_whole_run(study, values, forgeries, folder):
    """Run the notebook into a folder: a sound package that names forgeries and is read again."""
    run(study, **values)
    package = folder / study.__name__.rpartition(".")[2] / "local"
    assert results.verify(package) == []
    assert set(study.TABLES) == {file.stem for file in package.glob("*.csv")}
    assert set(study.FIGURES) == {file.stem for file in package.glob("*.png")}
    descriptor = verification.read_descriptor(package)
    assert verification.omitted_checks(descriptor, study.TABLES) == []
    for number, (table, column, value, words) in enumerate(forgeries):
        forged = forge(package, folder / f"forged{number}" / "local", table, column, value)
        problems = results.verify(forged)
        assert any(words in problem for problem in problems), (table, column, problems)
    before = {file.name: file.read_bytes() for file in package.iterdir()}
    again = run(study, **values | {"figures_only": True, "seed": 5})
    assert again.p.seed == 0
    for figure in study.FIGURES:
        assert again.figure(figure).data == before[f"{figure}.png"]
    assert {file.name: file.read_bytes() for file in package.iterdir()} == before
    return descriptor


def check_profile(study, name):
    """A profile holds values of the right types that the check lets through as they are."""
    values = profile(study, name)
    p = vars(checked(study, **values))
    for parameter, value in values.items():
        assert type(p[parameter]) is type(value), parameter
        assert p[parameter] == value
    assert p["profile"] == name


def forge(package, copy, table, column, value):
    """A copy with one number of the first row changed, size and hash to match."""
    shutil.copytree(package, copy)
    with (copy / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    rows[1][rows[0].index(column)] = value
    with (copy / f"{table}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    content = (copy / f"{table}.csv").read_bytes()
    descriptor = json.loads((copy / "datapackage.json").read_text())
    (resource,) = [each for each in descriptor["resources"] if each["name"] == table]
    resource |= {"bytes": len(content), "hash": checksum(content)}
    (copy / "datapackage.json").write_text(json.dumps(descriptor))
    return copy
