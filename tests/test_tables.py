"""CSV text: exact round trips, and everything that is refused on the way out or in."""

import math
import sys

import numpy as np
import pandas as pd
import pytest

from lib import tables
from lib.errors import WorkbookError
from lib.tables import Field, Table

TABLE = Table(
    fields=(
        Field("name", "string", "", "key"),
        Field("count", "integer", "", "count", required=False),
        Field("value", "number", "m", "length", required=False),
        Field("flag", "boolean", "", "truth", required=False),
        Field("note", "string", "", "remark", required=False),
    ),
    key=("name",),
    meaning="one thing",
)
SCHEMA = tables.schema(TABLE)
EMPTY = {"count": None, "value": None, "flag": None, "note": None}
HEADER = b"name,count,value,flag,note\n"


def round_trip(*rows):
    frame, problems = tables.read(tables.write(rows, TABLE), SCHEMA)
    assert problems == []
    return frame


@pytest.mark.parametrize(
    "text",
    [
        *("none", "None", "NA", "N/A", "null", "nan", "NaN", "inf", "-", "1", "true", "#", "'"),
        *(" padded ", 'say "no", please', "ε ≤ 1 — 🂡", "=1+1", "\ufeffmark", "\u2028"),
    ],
)
def test_text_comes_back_as_it_was(text):
    frame = round_trip({"name": text, **EMPTY, "note": text})
    assert frame.loc[0, "name"] == text
    assert frame.loc[0, "note"] == text


@pytest.mark.parametrize(
    "value",
    [0.1, 1 / 3, 1e-5, -0.0, 5e-324, sys.float_info.max, 1e22, math.pi, 3, np.float32(0.1)],
)
def test_numbers_come_back_to_the_last_bit(value):
    back = round_trip({"name": "a", **EMPTY, "value": value}).loc[0, "value"]
    assert (back, math.copysign(1, back)) == (float(value), math.copysign(1, value))


def test_the_text_of_a_file_is_as_documented():
    rows = [
        {"name": "a", "count": 2**62, "value": 1e-05, "flag": True, "note": None},
        {"name": "b", "count": None, "value": 2, "flag": np.False_, "note": 'x,"y"'},
    ]
    expected = HEADER + b'a,4611686018427387904,1e-05,true,\nb,,2.0,false,"x,""y"""\n'
    assert tables.write(rows, TABLE) == expected


def test_gaps_do_not_turn_integers_and_truth_values_into_floats():
    frame = round_trip(
        {"name": "a", **EMPTY, "count": 2**62 + 1, "flag": True}, {"name": "b", **EMPTY}
    )
    assert dict(frame.dtypes.astype(str)) == {
        "name": "str",
        "count": "Int64",
        "value": "float64",
        "flag": "boolean",
        "note": "str",
    }
    assert frame.loc[0, "count"] == 2**62 + 1
    assert frame.isna().loc[1].tolist() == [False, True, True, True, True]


def test_required_columns_have_numpy_types():
    table = Table(
        (Field("n", "integer", "", ""), Field("ok", "boolean", "", "")), key=("n",), meaning=""
    )
    frame, _ = tables.read(tables.write([{"n": 1, "ok": True}], table), tables.schema(table))
    assert [str(dtype) for dtype in frame.dtypes] == ["int64", "bool"]


def test_no_rows_keep_their_types():
    frame = round_trip()
    assert frame.empty
    assert str(frame["count"].dtype) == "Int64"


def test_rows_keep_their_order():
    names = [row["name"] for row in round_trip(*({"name": n, **EMPTY} for n in "cab")).iloc]
    assert names == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": math.nan}, r"row 2, column value: nan is not finite"),
        ({"value": math.inf}, r"row 2, column value: inf is not finite"),
        ({"value": np.float64("-inf")}, r"row 2, column value: .*-inf.* is not finite"),
        ({"value": "1.5"}, r"row 2, column value: '1.5' is of type str"),
        ({"value": True}, r"row 2, column value: True is of type bool"),
        ({"value": pd.NA}, r"row 2, column value: <NA> is of type NAType"),
        ({"count": 1.0}, r"row 2, column count: 1.0 is of type float"),
        ({"count": True}, r"row 2, column count: True is of type bool"),
        ({"flag": 1}, r"row 2, column flag: 1 is of type int"),
        ({"note": 1}, r"row 2, column note: 1 is of type int"),
        ({"note": ""}, r"row 2, column note: '' is empty text"),
        ({"note": "two\nlines"}, r"row 2, column note: .* is not one line"),
        ({"note": "\ud800"}, r"row 2, column note: .* is not one line of text"),
        ({"other": 1, "more": 2}, r"row 2: unknown column other, more; the table has name, count"),
    ],
)
def test_bad_values_are_refused_by_row_and_column(change, message):
    with pytest.raises(WorkbookError, match=message):
        tables.write([{"name": "a", **EMPTY}, {"name": "b", **EMPTY, **change}], TABLE)


def test_a_missing_column_is_named():
    with pytest.raises(WorkbookError, match="row 1: no column value, note"):
        tables.write([{"name": "a", "count": 1, "flag": None}], TABLE)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("a,,1_000,,", "row 1, column value: '1_000' is not a finite number"),
        ("a,, 1.5,,", "row 1, column value: ' 1.5' is not a finite number"),
        ("a,,NaN,,", "row 1, column value: 'NaN' is not a finite number"),
        ("a,,INF,,", "row 1, column value: 'INF' is not a finite number"),
        ("a,,-inf,,", "row 1, column value: '-inf' is not a finite number"),
        ("a,,0x1p3,,", "row 1, column value: '0x1p3' is not a finite number"),
        ("a,,1e999,,", "row 1, column value: 1e999 is too large"),
        ("a,,١,,", "row 1, column value: '١' is not a finite number"),
        ("a,1.0,,,", "row 1, column count: '1.0' is not an integer"),
        ("a,1_0,,,", "row 1, column count: '1_0' is not an integer"),
        ("a,010,,,", "row 1, column count: '010' is not an integer"),
        ("a,9223372036854775808,,,", "row 1, column count: 9223372036854775808 does not fit"),
        ("a,,,True,", "row 1, column flag: 'True' is neither true nor false"),
        ("a,,,1,", "row 1, column flag: '1' is neither true nor false"),
        (",1,,,", "row 1, column name: empty, but a value is required"),
        ("a,1,,", "row 1: 4 cells where the header has 5"),
        ("", "row 1: 0 cells where the header has 5"),
        ('a,,,,"x', "not readable as UTF-8 CSV: unexpected end of data"),
        ('a,,,,"x\ny"', "row 1, column note: 'x\\ny' is not one line of text"),
        ("a,,,,\r", "the lines do not end in \\n alone"),
    ],
)
def test_a_strange_cell_is_refused_on_reading(cells, message):
    frame, problems = tables.read(HEADER + cells.encode() + b"\n", SCHEMA)
    assert frame is None
    assert [problem[: len(message)] for problem in problems] == [message]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\xff\xfe", "not readable as UTF-8 CSV"),
        (b"name,count\n", "the columns are 'name,count', the schema says"),
        (b"\xef\xbb\xbf" + HEADER, r"the columns are '\ufeffname,"),
    ],
)
def test_a_strange_file_is_refused_on_reading(content, message):
    frame, problems = tables.read(content, SCHEMA)
    assert frame is None
    assert len(problems) == 1
    assert problems[0].startswith(message)


def test_each_column_tells_its_first_fault_and_how_many_follow():
    _, problems = tables.read(HEADER + b"a,x,nan,,\nb,y,1,,\nc,z,2,,\n", SCHEMA)
    assert problems == [
        "row 1, column count: 'x' is not an integer (and 2 more in this column)",
        "row 1, column value: 'nan' is not a finite number",
    ]


def test_bounds_of_a_column_hold_inclusively():
    table = Table(
        (Field("p", "number", "", "share", minimum=0, maximum=1),), key=("p",), meaning=""
    )
    schema = tables.schema(table)
    assert tables.read(b"p\n0\n1\n", schema)[1] == []
    assert tables.read(b"p\n-0.1\n", schema)[1] == ["row 1, column p: -0.1 is below the minimum 0"]
    assert tables.read(b"p\n1.1\n", schema)[1] == ["row 1, column p: 1.1 is above the maximum 1"]


def test_a_key_that_appears_twice_is_refused():
    table = Table(
        (Field("a", "integer", "", ""), Field("b", "string", "", "")), key=("a", "b"), meaning=""
    )
    _, problems = tables.read(b"a,b\n1,x\n1,y\n2,x\n1,y\n", tables.schema(table))
    assert problems == ["row 4: the key (a 1, b y) appears a second time"]


@pytest.mark.parametrize(
    ("fields", "key", "claims"),
    [
        ((Field("a", "integer", "", ""), Field("a", "integer", "", "")), ("a",), ()),
        ((Field("a", "integer", "", ""),), (), ()),
        ((Field("a", "integer", "", ""),), ("b",), ()),
        ((Field("a", "integer", "", "", required=False),), ("a",), ()),
        ((Field("a", "integer", "", ""),), ("a",), ({"lower_bound": "a", "truth": "b"},)),
        (
            (Field("a", "number", "", "", recipe={"function": "f", "columns": {"x": "b"}}),),
            ("a",),
            (),
        ),
    ],
    ids=[
        "twice",
        "no key",
        "unknown key",
        "optional key",
        "unknown claim",
        "unknown recipe column",
    ],
)
def test_a_table_that_contradicts_itself_is_a_bug(fields, key, claims):
    with pytest.raises(ValueError, match=r"twice|key|do not exist"):
        Table(fields, key=key, meaning="", claims=claims)


@pytest.mark.parametrize(("name", "kind"), [("Name", "integer"), ("a b", "integer"), ("a", "int")])
def test_a_field_has_a_plain_name_and_a_known_type(name, kind):
    with pytest.raises(ValueError, match="column"):
        Field(name, kind, "", "")
