"""Pages: everything inside, formulas readable, text literal, images described."""

import re

import bs4
import pytest
from nbformat import v4

from lib import pages
from lib.errors import WorkbookError

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Erk"
    "Jggg=="
)
SVG = "<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'></svg>"


def notebook(*cells):
    made = v4.new_notebook(metadata={"language_info": {"name": "python"}})
    made.cells = list(cells)
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"
    return made


def page(*cells, **options):
    return bs4.BeautifulSoup(pages.notebook_page(notebook(*cells), **options), "html.parser")


def code(*outputs, source="draw()", tags=()):
    return v4.new_code_cell(
        source, outputs=list(outputs), execution_count=1, metadata={"tags": list(tags)}
    )


def shown(data, metadata=None):
    return v4.new_output("display_data", data=data, metadata=metadata or {})


def cells_of(markdown):
    table = bs4.BeautifulSoup(pages.markdown(markdown), "html.parser").table
    return [[cell.get_text() for cell in row.find_all("td")] for row in table.tbody.find_all("tr")]


# Text stays text


def test_money_is_not_mathematics():
    row = "| price | note |\n|---|---|\n| $5 and $6 | each |\n"
    assert cells_of(row) == [["$5 and $6", "each"]]
    assert "<math" not in pages.markdown("It costs $5 and $6, or \\$7 and \\$8.")


def test_money_and_mathematics_in_one_line():
    html = pages.markdown("$5 and $6 or $x$ for it")
    assert html.count("<math") == 1
    assert "$5 and $6 or <math" in html


def test_less_than_and_ampersand_appear_literally():
    assert cells_of("| a | b |\n|---|---|\n| x < y & z | `<b>` |\n") == [["x < y & z", "<b>"]]


def test_inline_html_is_kept():
    assert "<b>bold</b> text" in pages.markdown("some <b>bold</b> text")
    assert page(v4.new_markdown_cell("some <b>bold</b> text")).b.get_text() == "bold"


def test_error_text_is_literal():
    failed = v4.new_output(
        "error", ename="ValueError", evalue="<b>x</b>", traceback=["ValueError: <b>x</b>"]
    )
    made = page(code(failed, v4.new_output("stream", name="stdout", text="1 < 2 & <i>\n")))
    assert made.b is None
    assert made.i is None
    assert "ValueError: <b>x</b>" in made.get_text()
    assert "1 < 2 & <i>" in made.get_text()


def test_dollars_in_code_and_in_data_tables_are_literal():
    assert "<code>$x$</code>" in pages.markdown("`$x$`")
    made = page(code(shown({"text/html": "<table><tr><td>$5 and $6$</td></tr></table>"})))
    assert made.td.get_text() == "$5 and $6$"


# Formulas


@pytest.mark.parametrize(
    ("formula", "text"), [("$P(A|B)$", "P(A|B)"), (r"$\|x\|_2$", "‖x‖2"), (r"$a\mid b$", "a∣b")]
)
def test_bars_in_formulas_do_not_end_a_table_cell(formula, text):
    assert cells_of(f"| a | b |\n|---|---|\n| {formula} | $5 |\n") == [[text, "$5"]]


def test_bars_outside_tables_stay_as_they_are():
    assert "a||b" in pages.markdown("`a||b` and $x$")
    assert bs4.BeautifulSoup(pages.markdown("$P(A|B)$"), "html.parser").get_text() == "P(A|B)\n"


@pytest.mark.parametrize(
    "text",
    [
        "$$\n\\begin{align} a &= b \\\\ c &< d \\end{align}\n$$",
        "\\begin{equation}\n\\Pr[X \\ge v] \\le \\beta\n\\end{equation}",
        "$$\\hat\\varepsilon = \\log \\frac{p(y \\mid 1)}{p(y \\mid 0)}$$",
    ],
)
def test_displayed_formulas_are_blocks(text):
    made = bs4.BeautifulSoup(pages.markdown(text), "html.parser")
    assert made.math["display"] == "block"
    assert "\\" not in made.get_text()
    assert "(1)" not in made.get_text()  # no numbers that the notebook does not show


def test_latex_output_is_shown_as_a_formula():
    assert page(code(shown({"text/latex": "$\\displaystyle x^2$"}))).math is not None


def test_script_letters_and_arg_are_known():
    assert "𝒩" in bs4.BeautifulSoup(pages.markdown("$\\mathcal N(0, 1)$"), "html.parser").get_text()
    assert "arg" in bs4.BeautifulSoup(pages.markdown("$\\arg\\max_x f$"), "html.parser").get_text()


@pytest.mark.parametrize("formula", ["\\nosuchcommand x", "x_{", "\\left( x"])
def test_formulas_that_cannot_be_shown_are_refused_by_name(formula):
    with pytest.raises(WorkbookError, match=re.escape(repr(formula))):
        pages.markdown(f"see ${formula}$")


# Code and images


def test_code_is_folded_and_named():
    made = page(
        code(source="seed = 0", tags=["parameters"]),
        code(source="seed = 7", tags=["injected-parameters"]),
        code(),
    )
    names = [part.summary.get_text().strip() for part in made.find_all("details")]
    assert names == ["Parameters", "Parameters of this run", "Code"]
    assert not any(part.has_attr("open") for part in made.find_all("details"))
    assert "draw()" in made.find_all("details")[2].get_text()


@pytest.mark.parametrize(("kind", "data"), [("image/png", PNG), ("image/svg+xml", SVG)])
def test_images_lie_in_the_page_with_their_description(kind, data):
    described = {kind: {"alt": 'bounds "below" & above'}}
    image = page(code(shown({kind: data, "text/plain": "<Figure>"}, described))).img
    assert image["src"].startswith(f"data:{kind};base64,")
    assert image["alt"] == 'bounds "below" & above'


@pytest.mark.parametrize(("kind", "data"), [("image/png", PNG), ("image/svg+xml", SVG)])
def test_image_without_a_description_is_named_after_its_section(kind, data):
    text = v4.new_markdown_cell("# A study\n\n## Lower bounds\n\nText.")
    image = page(text, code(shown({kind: data}))).img
    assert image["alt"] == "Figure of the section “Lower bounds”"


def test_progress_and_warnings_stay_in_the_notebook():
    streams = [v4.new_output("stream", name=name, text=name) for name in ("stdout", "stderr")]
    text = page(code(*streams)).get_text()
    assert "stdout" in text
    assert "stderr" not in text


def test_widgets_and_scripts_give_way_to_plain_text():
    output = shown(
        {
            "application/vnd.jupyter.widget-view+json": {"model_id": "1"},
            "application/javascript": "alert(1)",
            "text/plain": "100%",
        }
    )
    made = page(code(output))
    assert made.script is None
    assert "100%" in made.get_text()


# Nothing from outside


@pytest.mark.parametrize(
    "part",
    [
        '<script>alert("x")</script>',
        '<script src="https://cdn.example/MathJax.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/x.css">',
        '<img src="http://example.org/x.png" alt="x">',
        '<img src="//example.org/x.png" alt="x">',
        '<img src="figure.png" alt="x">',
        '<img srcset="https://example.org/x.png 2x" alt="x">',
        "<style>@import 'https://fonts.example/x.css';</style>",
        "<style>@font-face { src: url(https://fonts.example/x.woff) }</style>",
        '<p style="background: url(https://example.org/x.png)">x</p>',
        '<p onclick="run()">x</p>',
        '<iframe src="https://example.org"></iframe>',
        '<svg><image href="https://example.org/x.png"/></svg>',
    ],
)
def test_whatever_lies_outside_is_found_and_refused(part):
    assert pages.foreign_parts(f"<html><body>{part}</body></html>")
    with pytest.raises(WorkbookError, match="outside it"):
        page(code(shown({"text/html": part})))


def test_a_full_page_stands_alone_and_keeps_plain_links():
    made = pages.notebook_page(
        notebook(
            v4.new_markdown_cell("# Title\n\n[paper](https://arxiv.org/abs/2305.08846), $x$"),
            code(shown({"image/png": PNG})),
        )
    )
    assert pages.foreign_parts(made) == []
    soup = bs4.BeautifulSoup(made, "html.parser")
    assert soup.title.get_text() == "Title"
    assert soup.a["href"] == "https://arxiv.org/abs/2305.08846"
    assert soup.nav is None


def test_same_notebook_same_bytes_and_the_notebook_is_not_changed():
    given = notebook(v4.new_markdown_cell("# Title"), code(shown({"image/png": PNG})))
    before = str(given)
    assert pages.notebook_page(given) == pages.notebook_page(given)
    assert str(given) == before


# The index


def entry(**changes):
    facts = {
        "title": "Audit <one run>",
        "version": "v1",
        "page": "one_run_audit-v1.html",
        "facts": {"profile": "cpu", "seed": "0"},
        "figures": {"../one_run_audit/v1/bounds.png": "Bounds & truth"},
        "verdicts": [{"claim": "a < b & $c$", "verdict": "agrees"}],
    }
    return pages.Entry(**{**facts, **changes})


def test_index_links_are_relative_and_cells_literal():
    made = pages.index_page([entry(), entry(version="local", page=None, verdicts=[])])
    soup = bs4.BeautifulSoup(made, "html.parser")
    assert pages.foreign_parts(made) == []
    links = [link["href"] for link in soup.find_all("a")]
    figure = "../one_run_audit/v1/bounds.png"
    assert links == ["one_run_audit-v1.html", figure, figure]
    assert soup.td.get_text() == "a < b & $c$"
    assert soup.h2.get_text() == "Audit <one run> (v1)"
    assert "holds no executed notebook" in soup.get_text()


def test_empty_index_says_how_to_fill_it():
    assert "python3 -m lib run" in pages.index_page([])


def test_pages_link_back_to_the_index():
    made = page(v4.new_markdown_cell("# Title"), index="index.html")
    assert made.nav.a["href"] == "index.html"
