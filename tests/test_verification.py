"""Verification: whatever is tampered with is named in one line, and honest results pass."""

import json
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import sample_study as sample

from lib import one_run, one_run_audit, provenance, results, verification
from lib.errors import WorkbookError
from lib.results import Field, Table


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leave out of each package what asks git and the processor."""
    monkeypatch.setattr(provenance, "environment", dict)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return sample.publish(tmp_path_factory.mktemp("results"))


@pytest.fixture
def folder(original, tmp_path):
    """A package of the test's own, to tamper with."""
    return shutil.copytree(original, tmp_path / "sample" / "v0")


def change(folder, edit):
    """Edit a package's descriptor as a forger would."""
    path = folder / "datapackage.json"
    descriptor = json.loads(path.read_text("utf-8"))
    edit(descriptor, {resource["name"]: resource for resource in descriptor["resources"]})
    path.write_text(json.dumps(descriptor), "utf-8")


def forge(folder, old, new, name="audits"):
    """Replace text in a CSV, and make bytes and hash fit."""
    path = folder / f"{name}.csv"
    content = path.read_bytes()
    assert old.encode() in content
    path.write_bytes(content.replace(old.encode(), new.encode(), 1))

    def fit(_, resources):
        content = path.read_bytes()
        resources[name].update(bytes=len(content), hash=verification.checksum(content))

    change(folder, fit)


def the_problem(folder):
    """The only problem of a package: one line that begins with the package."""
    (problem,) = results.verify(folder)
    assert problem.startswith(f"{folder.parent.name}/{folder.name}/")
    assert "\n" not in problem
    return problem.removeprefix(f"{folder.parent.name}/{folder.name}/")


def test_an_honest_package_has_no_problem(folder):
    assert results.verify(folder) == []


# Files


def test_a_tampered_csv_is_named(folder):
    path = folder / "audits.csv"
    path.write_bytes(path.read_bytes().replace(b"steinke", b"steinkE"))
    problems = results.verify(folder)
    assert problems[0].startswith("sample/v0/audits.csv: column epsilon_lower_bound: ")
    assert "audits.csv: hash sha256:" in problems[1]
    assert len(problems) == 2


def test_a_truncated_csv_is_named(folder):
    path = folder / "audits.csv"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    size = path.stat().st_size
    told = " ".join(results.verify(folder))
    for what in ("1 rows, the descriptor says 2", f"{size} bytes, the descriptor", "hash sha256:"):
        assert what in told


@pytest.mark.parametrize("name", ["bounds.png", "bounds.svg"])
def test_a_tampered_figure_is_named(folder, name):
    with (folder / name).open("ab") as file:
        file.write(b"!")
    assert all(problem.startswith(f"sample/v0/{name}: ") for problem in results.verify(folder))
    assert len(results.verify(folder)) == 2


def test_a_missing_file_is_named(folder):
    (folder / "bounds.png").unlink()
    assert the_problem(folder) == "bounds.png: cannot be read: No such file or directory"


def test_a_missing_csv_is_named(folder):
    (folder / "audits.csv").unlink()
    assert results.verify(folder)[0] == (
        "sample/v0/audits.csv: cannot be read: No such file or directory"
    )


def test_files_that_the_package_does_not_list_are_named(folder):
    (folder / "more").mkdir()
    (folder / "more" / "extra.csv").write_text("a\n1\n")
    (folder / ".hidden").write_text("")
    assert results.verify(folder) == [
        "sample/v0/.hidden: not listed in datapackage.json",
        "sample/v0/more/extra.csv: not listed in datapackage.json",
    ]


def test_what_editors_leave_behind_is_no_problem(folder):
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "audits-checkpoint.csv").write_text("")
    (folder / ".DS_Store").write_text("")
    assert results.verify(folder) == []


def test_a_link_out_of_the_package_is_refused(folder, tmp_path):
    (folder / "audits.csv").rename(tmp_path / "audits.csv")
    (folder / "audits.csv").symlink_to(tmp_path / "audits.csv")
    assert "sample/v0/audits.csv: leads out of the package" in results.verify(folder)


# The descriptor


@pytest.mark.parametrize(
    "path", ["../audits.csv", "/etc/passwd", "a/../../b", "http://localhost/a.csv", "a\\b", "", "."]
)
def test_a_path_out_of_the_package_is_refused(folder, path):
    change(folder, lambda _, resources: resources["audits"].update(path=path))
    (problem,) = results.verify(folder)
    assert "is not a package of this workbook: resources/0/path" in problem


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged, not JSON: "),
        (b"", "is damaged, not JSON: "),
        (b"\xff\xfe", "is damaged, not JSON: "),
        (b'{"name": Infinity}', "is damaged, not JSON: Infinity is not JSON"),
        (b"[" * 100_000, "is damaged, not JSON: "),
        (b"null", "is not a package of this workbook: top level: "),
        (b"{}", "is not a package of this workbook: top level: 'name' is a required property"),
    ],
)
def test_a_damaged_descriptor_is_one_line(folder, content, message):
    (folder / "datapackage.json").write_bytes(content)
    (problem,) = results.verify(folder)
    assert f"datapackage.json {message}" in problem
    assert "\n" not in problem


def test_a_folder_without_a_descriptor_is_one_line(tmp_path):
    (problem,) = results.verify(tmp_path)
    assert problem.endswith("datapackage.json cannot be read: No such file or directory")


def _no_schema(_, resources):
    del resources["audits"]["schema"]


@pytest.mark.parametrize(
    "edit",
    [
        lambda d, r: d.update(resources={"a": 1}),
        lambda d, r: d.update(resources=["audits.csv"]),
        lambda d, r: d.update(provenance=None),
        lambda d, r: d.update(profile="http://localhost:1/profile.json"),
        lambda d, r: r["audits"].update(schema="http://localhost:1/schema.json"),
        lambda d, r: r["audits"].update(dialect="http://localhost:1/dialect.json"),
        lambda d, r: r["audits"].update(profile="http://localhost:1/profile.json"),
        lambda d, r: r["audits"]["schema"].update(fields="run"),
        lambda d, r: r["audits"]["schema"].update(fields=[]),
        lambda d, r: r["audits"]["schema"].update(missingValues=["", "nan"]),
        lambda d, r: r["audits"]["schema"]["fields"][0].update(type="any"),
        lambda d, r: r["audits"]["schema"]["fields"][0]["constraints"].update(minimum="0"),
        lambda d, r: r["audits"]["schema"]["fields"][-1]["recipe"].update(function="os.system"),
        lambda d, r: r["audits"]["schema"]["fields"][-1]["recipe"].update(tolerance=10),
        lambda d, r: r["audits"]["schema"]["fields"][-1]["recipe"].update(columns=[1]),
        lambda d, r: r["audits"].update(claims=[3]),
        lambda d, r: r["bounds.png"]["figure"].update(tables=[]),
    ],
)
def test_a_descriptor_of_another_form_is_one_line(folder, edit):
    change(folder, edit)
    (problem,) = results.verify(folder)
    assert "is not a package of this workbook" in problem
    assert "\n" not in problem
    with pytest.raises(WorkbookError, match="is not a package of this workbook"):
        results.open_package("sample", "v0", folder.parent.parent)


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda d, r: r["audits"].pop("hash"), "audits.csv: no hash in the descriptor"),
        (
            lambda d, r: r["audits"].pop("bytes"),
            "audits.csv: {size} bytes, the descriptor says None",
        ),
        (lambda d, r: r["audits"].pop("rows"), "audits.csv: 2 rows, the descriptor says None"),
        (lambda d, r: r["audits"].update(rows=3), "audits.csv: 2 rows, the descriptor says 3"),
        (
            lambda d, r: r["bounds.svg"].pop("figure"),
            "bounds.svg: a figure without the tables and the function behind it",
        ),
        (
            lambda d, r: r["bounds.svg"]["figure"].update(tables=["gone"]),
            "bounds.svg: a figure without its table gone: no such CSV in the package",
        ),
        (
            lambda d, r: r["audits"]["schema"]["fields"][-1]["recipe"]["columns"].update(delta="d"),
            "audits.csv: column epsilon_lower_bound: one_run.epsilon_lower_bound takes columns that"
            " do not exist: d",
        ),
        (
            lambda d, r: r["audits"]["schema"]["fields"][1].update(
                recipe={"function": "one_run.p_value", "columns": {"delta": "delta"}}
            ),
            "audits.csv: column method: one_run.p_value gives numbers, the column holds none",
        ),
        (
            lambda d, r: r["audits"]["claims"].append({"lower_bound": "delta", "truth": "method"}),
            "audits.csv: the claim {{'lower_bound': 'delta', 'truth': 'method'}} is about columns"
            " that are not numbers",
        ),
        (
            lambda d, r: r["audits"]["claims"].append({"lower_bound": "delta", "truth": "gone"}),
            "audits.csv: the claim {{'lower_bound': 'delta', 'truth': 'gone'}} is not understood,"
            " or names no column",
        ),
        (
            lambda d, r: r["audits"]["claims"].append({"attack": "delta"}),
            "audits.csv: the claim {{'attack': 'delta'}} is not understood, or names no column",
        ),
        (
            lambda d, r: d["resources"].append(r["audits"] | {"path": "bounds.png", "hash": ""}),
            None,
        ),
    ],
)
def test_a_descriptor_that_says_too_little_or_wrong_is_named(folder, edit, problem):
    change(folder, edit)
    problems = results.verify(folder)
    if problem is None:
        assert "names of the resources are not unique" in " ".join(problems)
    else:
        size = (folder / "audits.csv").stat().st_size
        assert problems == [f"sample/v0/{problem.format(size=size)}"]


def test_a_csv_without_schema_and_its_figures_are_named(folder):
    change(folder, _no_schema)
    assert results.verify(folder) == [
        "sample/v0/audits.csv: no table schema in the descriptor",
        "sample/v0/bounds.png: a figure without its table audits: no such CSV in the package",
        "sample/v0/bounds.svg: a figure without its table audits: no such CSV in the package",
    ]


def test_a_key_without_column_is_named(folder):
    change(folder, lambda _, resources: resources["audits"]["schema"].update(primaryKey=["gone"]))
    assert any("the primary key names no column: gone" in line for line in results.verify(folder))


def test_what_only_the_standards_tool_sees_is_told_in_one_line(folder):
    change(folder, lambda _, resources: resources["audits"].update(encoding="utf-16"))
    assert the_problem(folder).startswith("audits.csv: ")


def test_what_the_standard_refuses_is_told_in_one_line(folder):
    change(folder, lambda descriptor, _: descriptor.update(title=3))
    assert the_problem(folder).startswith("datapackage.json: ")


# Cells


@pytest.mark.parametrize("spelling", ["NaN", "INF", "-inf", "1_000", " 1.5", "٣"])
def test_numbers_that_the_standards_tool_lets_pass_are_refused(folder, spelling):
    forge(folder, "steinke,3.0", f"steinke,{spelling}")
    assert the_problem(folder) == (
        f"audits.csv: row 1, column theoretical_epsilon: {spelling!r} is not a finite number"
    )


def test_a_value_of_another_type_is_named(folder):
    forge(folder, "1000,1000,700", "1000,1000,700.5")
    assert the_problem(folder) == "audits.csv: row 1, column n_correct: '700.5' is not an integer"


def test_a_value_out_of_range_is_named(folder):
    forge(folder, "steinke,3.0,0.0", "steinke,3.0,2.0")
    assert the_problem(folder) == "audits.csv: row 1, column delta: 2.0 is above the maximum 1"


def test_a_repeated_key_is_named(folder):
    forge(folder, "\n1,steinke", "\n0,steinke")
    assert the_problem(folder) == "audits.csv: row 2: the key (run 0) appears a second time"


# Derived numbers


def test_a_forged_bound_with_a_fitting_hash_is_named(folder):
    honest = results.open_package("sample", "v0", folder.parent.parent).tables["audits"]
    bound = repr(float(honest["epsilon_lower_bound"][1]))
    forge(folder, bound, "0.9")
    assert the_problem(folder) == (
        "audits.csv: row 2, column epsilon_lower_bound: 0.9, but one_run.epsilon_lower_bound of its"
        f" row gives {float(bound):.9g}"
    )


def test_a_forged_count_with_a_fitting_hash_is_named(folder):
    forge(folder, "1000,1000,700", "1000,1000,760")
    assert the_problem(folder).startswith("audits.csv: row 1, column epsilon_lower_bound: 0.7")


def test_impossible_counts_are_named(folder):
    forge(folder, "1000,1000,700", "1000,1000,1700")
    assert "one_run.epsilon_lower_bound refuses its columns: n_correct" in the_problem(folder)


def test_a_difference_below_the_tolerance_is_none(folder):
    honest = results.open_package("sample", "v0", folder.parent.parent).tables["audits"]
    bound = float(honest["epsilon_lower_bound"][0])
    forge(folder, repr(bound), repr(bound + 1e-8))
    assert results.verify(folder) == []
    forge(folder, repr(bound + 1e-8), repr(bound + 1e-5))
    assert "row 1, column epsilon_lower_bound" in the_problem(folder)


@pytest.mark.parametrize("error", [IndexError("out of bounds"), KeyError("none"), ValueError("no")])
def test_tables_that_a_derived_one_cannot_be_made_from_are_named(error, monkeypatch):
    """A package of an older study, whose rows the newer verdicts do not know."""

    def refuse(frames):
        raise error

    monkeypatch.setattr(one_run_audit, "verdicts", refuse)
    frames = {"verdicts": pd.DataFrame(), "audits": pd.DataFrame()}
    (problem,) = verification._table_differences("verdicts", "one_run_audit.verdicts", frames)
    assert problem.startswith("one_run_audit.verdicts refuses the other tables: ")


def _outer(*, a, b, kind, offset=0.0):
    assert isinstance(kind, str)
    return {"sum": a + b, "product": a * b}[kind] + offset


@pytest.fixture
def outer(monkeypatch):
    """A recipe of the tests' own: takes two columns, a text and a constant."""
    monkeypatch.setitem(sys.modules, "lib.fake", SimpleNamespace(outer=_outer))
    monkeypatch.setitem(verification.RECIPES, "fake.outer", "lib.fake")
    return {
        "function": "fake.outer",
        "columns": {"a": "left", "b": "right", "kind": "kind"},
        "constants": {"offset": 0.5},
    }


def test_a_recipe_takes_columns_texts_and_constants(outer):
    frame = pd.DataFrame(
        {
            "left": pd.array([1, 2, None, 4], dtype="Int64"),
            "right": [10.0, 20.0, 30.0, 40.0],
            "kind": pd.array(["sum", "product", "sum", "sum"], dtype="str"),
        },
        index=[5, 6, 7, 8],
    )
    np.testing.assert_array_equal(
        verification.recompute(frame, outer), [11.5, 40.5, np.nan, 44.5], strict=True
    )
    np.testing.assert_array_equal(
        verification.recompute(frame, outer, offset=0.0), [11, 40, np.nan, 44]
    )
    assert verification.recompute(frame[:0], outer).shape == (0,)


def derived_table(recipe):
    return Table(
        fields=(
            Field("run", "integer", "", ""),
            Field("left", "integer", "", "", required=False),
            Field("right", "number", "", ""),
            Field("kind", "string", "", ""),
            Field("derived", "number", "", "", required=False, recipe=recipe),
        ),
        key=("run",),
        meaning="",
    )


@pytest.mark.parametrize(
    ("left", "derived", "problem"),
    [
        (1, 3.5, None),
        (None, None, None),
        (1, None, "row 1, column derived: nan, but fake.outer of its row gives 3.5"),
        (None, 3.5, "row 1, column derived: 3.5, but fake.outer of its row gives nan"),
    ],
)
def test_a_derived_number_is_there_if_and_only_if_its_columns_are(
    tmp_path, outer, monkeypatch, left, derived, problem
):
    field = verification._FIELD["properties"]["recipe"]["properties"]["function"]
    monkeypatch.setitem(field, "enum", [*field["enum"], "fake.outer"])
    draft = results.Draft("sample", "local", tmp_path)
    row = {"run": 0, "left": left, "right": 2.0, "kind": "sum", "derived": derived}
    draft.write_table("things", [row], derived_table(outer))
    folder = sample.finish(draft)
    if problem is None:
        assert results.verify(folder) == []
    else:
        assert the_problem(folder) == f"things.csv: {problem}"


def test_every_recipe_of_the_table_exists():
    for name in verification.RECIPES:
        assert callable(verification._function({"function": name}))


# Claims


def test_a_false_lower_bound_is_named(tmp_path):
    folder = sample.publish(tmp_path, rows=sample.audit_rows([500, 900], epsilon=1.0))
    strict = one_run.epsilon_lower_bound(
        n_canaries=1000, n_guesses=1000, n_correct=900, delta=0.0, significance=0.0005
    )
    assert the_problem(folder) == (
        "audits.csv: row 2: epsilon_lower_bound 2.02123 is above theoretical_epsilon 1, and chance"
        f" does not explain it ({strict:.6g} at significance 5.0e-04)"
    )


def test_a_hundred_honest_bounds_are_not_called_false(tmp_path):
    # Randomised response at ε = 1: each guess is right with probability e/(e + 1).
    n_correct = np.random.default_rng(0).binomial(1000, np.e / (np.e + 1), size=100)
    rows = sample.audit_rows([int(n) for n in n_correct], epsilon=1.0)
    above = sum(row["epsilon_lower_bound"] > 1 for row in rows)
    assert 1 <= above <= 15  # some miss, as 5 % should: else this test shows nothing
    assert results.verify(sample.publish(tmp_path, rows=rows, figure=False)) == []


def test_a_bound_without_guarantee_has_no_truth_to_break(tmp_path):
    rows = sample.audit_rows([900, 1000], epsilon=None)
    assert results.verify(sample.publish(tmp_path, rows=rows, figure=False)) == []


def test_a_claim_is_forged_in_vain_by_a_wide_significance(tmp_path):
    # A bound at significance 0.5 is above the truth half of the time; that proves nothing.
    rows = sample.audit_rows([740] * 2, epsilon=1.0, significance=0.5)
    assert rows[0]["epsilon_lower_bound"] > 1
    assert results.verify(sample.publish(tmp_path, rows=rows, figure=False)) == []


def attack_package(tmp_path, success_lower, success_bound):
    table = Table(
        fields=(
            Field("attack", "string", "", ""),
            Field("success_lower", "number", "", ""),
            Field("success_bound", "number", "", "", required=False),
        ),
        key=("attack",),
        meaning="one attack",
        claims=({"attack": "success_lower", "bound": "success_bound"},),
    )
    draft = results.Draft("sample", "local", tmp_path)
    row = {"attack": "prior", "success_lower": success_lower, "success_bound": success_bound}
    draft.write_table("attacks", [row], table)
    return sample.finish(draft)


def test_an_attack_above_its_bound_is_named(tmp_path):
    assert the_problem(attack_package(tmp_path, 0.4, 0.3)).startswith(
        "attacks.csv: row 1: success_lower 0.4 is above success_bound 0.3"
    )


@pytest.mark.parametrize("bound", [0.4, 0.5, None])
def test_an_attack_below_its_bound_passes(tmp_path, bound):
    assert results.verify(attack_package(tmp_path, 0.4, bound)) == []
