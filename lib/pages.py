"""Executed notebooks as HTML pages that need no network and no script, and the index of them.

Formulas become MathML, figures lie inside the page, code is folded. The same notebook gives the
same bytes.
"""

import copy
import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import bs4
import jinja2
import latex2mathml.converter
import nbformat
from nbconvert import HTMLExporter
from nbconvert.filters import markdown_mistune
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

from lib import paths
from lib.errors import WorkbookError

IMAGE_TYPES = ("image/svg+xml", "image/png", "image/jpeg")
# The richest form that a page can show; never widgets or scripts.
SHOWN_TYPES = ("text/html", "text/markdown", *IMAGE_TYPES, "text/latex", "text/plain")

STYLE = """
body { margin: 0; background: #fff; color: #1a1a1a; font: 1rem/1.6 system-ui, sans-serif; }
main { max-width: 58rem; margin: 0 auto; padding: 1rem; overflow-wrap: break-word; }
h1, h2, h3 { line-height: 1.25; margin: 2rem 0 0.75rem; }
h1 { margin-top: 1rem; }
a { color: #0b57a4; }
img { max-width: 100%; height: auto; }
pre { overflow-x: auto; margin: 0.5rem 0; font-size: 0.85rem; line-height: 1.45; }
code, pre { font-family: ui-monospace, Menlo, Consolas, monospace; }
:not(pre) > code { font-size: 0.9em; background: #f2f2f2; padding: 0 0.2em; }
details { margin: 0.75rem 0; border-left: 3px solid #ccc; padding-left: 0.75rem; }
summary { cursor: pointer; color: #555; font-size: 0.9rem; }
table { display: block; width: max-content; max-width: 100%; overflow-x: auto;
        border-collapse: collapse; margin: 1rem 0; font-size: 0.9rem; }
th, td { min-width: 3rem; padding: 0.3rem 0.6rem; border: solid #ddd; border-width: 0 0 1px;
         text-align: left; }
td:last-child { min-width: 8rem; }
thead th { border-bottom: 2px solid #555; }
table.dataframe { border: 0; }
table.dataframe td:last-child { min-width: 8rem; }
thead th { text-align: left; }
math[display="block"] { display: block math; overflow: auto hidden; padding: 0.4rem 0; }
blockquote { margin: 1rem 0; padding-left: 1rem; border-left: 3px solid #0b57a4; color: #444; }
nav, footer { color: #555; font-size: 0.9rem; }
"""

TEMPLATE = """
{%- extends 'classic/base.html.j2' -%}

{%- block header -%}
{{ resources.page_head }}
{%- endblock header -%}

{%- block body_footer -%}
{{ resources.page_foot }}
{%- endblock body_footer -%}

{%- block footer -%}{%- endblock footer -%}

{%- block in_prompt -%}{%- endblock in_prompt -%}

{%- block output_area_prompt -%}{%- endblock output_area_prompt -%}

{#- Progress and warnings are for whoever runs a notebook; the notebook file keeps them. -#}
{%- block stream_stderr -%}{%- endblock stream_stderr -%}

{%- block input -%}
{%- set tags = cell.metadata.get('tags', []) -%}
<details><summary>
{%- if 'injected-parameters' in tags -%} Parameters of this run
{%- elif 'parameters' in tags -%} Parameters
{%- else -%} Code {%- endif -%}
</summary>
{{ cell.source | highlight_code(metadata=cell.metadata) }}
</details>
{%- endblock input -%}

{%- block data_svg -%}
<img src="data:image/svg+xml;base64,{{ output.data['image/svg+xml'] | text_base64 }}"
 alt="{{ output | get_metadata('alt', 'image/svg+xml') | escape_html }}">
{%- endblock data_svg -%}

{%- block data_latex -%}
{{ output.data['text/latex'] | markdown2html }}
{%- endblock data_latex -%}
"""


def notebook_page(notebook: nbformat.NotebookNode, *, index: str | None = None) -> str:
    """The page of an executed notebook.

    Args:
        notebook: with its outputs.
        index: the address, relative to the page, of the list of pages, if there is one.

    Raises:
        WorkbookError: a formula cannot be shown, or something in it lies outside the page.
    """
    notebook = copy.deepcopy(notebook)
    title = _title(notebook)
    _describe_images(notebook)
    resources = {
        "metadata": {"path": str(paths.NOTEBOOKS), "name": title},
        "page_head": _head(title, index),
        "page_foot": "</main>\n</body>\n</html>\n",
    }
    page, _ = _exporter().from_notebook_node(notebook, resources=resources)
    foreign = foreign_parts(page)
    if foreign:
        raise WorkbookError(
            f"the page of {title!r} would need something outside it: {foreign[0]}; pages hold "
            "their images themselves and no scripts: show an image or a table instead"
        )
    return page


def _exporter() -> HTMLExporter:
    config = Config()
    config.NbConvertBase.display_data_priority = list(SHOWN_TYPES)
    exporter = _OfflineExporter(config=config, template_name="classic")
    exporter.raw_template = TEMPLATE
    return exporter


class _OfflineExporter(HTMLExporter):
    """nbconvert's HTML, with formulas as MathML."""

    def default_filters(self):
        yield from super().default_filters()
        yield "markdown2html", self.offline_markdown

    @jinja2.pass_context
    def offline_markdown(self, context, source):
        """Replaces nbconvert's filter, which leaves formulas to a script from the network."""
        renderer = _Renderer(
            escape=False,
            attachments=context.get("cell", {}).get("attachments", {}),
            path=context["resources"]["metadata"]["path"],
        )
        return markdown(source, renderer)


# Markdown with formulas

# As in Pandoc: no space inside the dollars and no digit after them, so "$5 and $6" is money.
INLINE_FORMULA = (
    r"(?<![\\$])\$(?![\s$])(?P<math_inline_tex>(?:[^$\\]|\\[\s\S])+?)(?<!\s)\$(?![\d$])"
)
# What the converter does not know, said in words that it does.
REWRITTEN = (
    (r"\\arg(?![a-zA-Z])", r"\\operatorname{arg}"),
    (r"\\mathscr(?![a-zA-Z])", r"\\mathcal"),
    (r"\\(math[a-z]+)\s+([A-Za-z])", r"\\\1{\2}"),
    (r"\\(begin|end)\{(align|equation|gather)\}", r"\\\1{\2*}"),
)


class _Formulas(markdown_mistune.MathInlineParser):
    """nbconvert's parser, with stricter dollars."""

    SPECIFICATION: ClassVar[dict] = {
        **markdown_mistune.MathInlineParser.SPECIFICATION,
        "inline_math_tex": INLINE_FORMULA,
    }


class _Renderer(markdown_mistune.IPythonRenderer):
    """nbconvert's renderer, with formulas as MathML."""

    def heading(self, text: str, level: int, **_) -> str:
        name = html.unescape(re.sub(r"<[^>]*>", "", text)).strip().replace(" ", "-")
        return f'<h{level} id="{html.escape(name)}">{text}</h{level}>\n'

    def image(self, text: str, url: str, title: str | None = None) -> str:
        # Not by nbconvert's own option, which also closes every tag of inline HTML where it opens.
        return super().image(text, self._src_to_base64(url) or url, title)

    def inline_math(self, body: str) -> str:
        return mathml(body, display="inline")

    def block_math(self, body: str) -> str:
        return mathml(body, display="block")

    def latex_environment(self, name: str, body: str) -> str:
        return mathml(f"\\begin{{{name}}}{body}\\end{{{name}}}", display="block")


def markdown(source: str, renderer: markdown_mistune.IPythonRenderer | None = None) -> str:
    """Markdown as HTML, its formulas as MathML."""
    parser = markdown_mistune.MarkdownWithMath(
        renderer=renderer or _Renderer(escape=False), inline=_Formulas(hard_wrap=False)
    )
    return parser.render(_keep_formulas_in_cells(source))


def mathml(formula: str, *, display: str) -> str:
    """A LaTeX formula as MathML (`display`: `inline` or `block`).

    Raises:
        WorkbookError: the formula has an unknown command or does not end.
    """
    words = formula.strip()
    below = ((r"\\(max|min|sup|inf|lim)_", r"\\\1\\limits_"),) if display == "block" else ()
    for pattern, replacement in (*REWRITTEN, *below):
        words = re.sub(pattern, replacement, words)
    try:
        converted = latex2mathml.converter.convert(words, display=display)
    except Exception as error:  # the converter's errors have no common class
        raise WorkbookError(
            f"the formula {formula!r} cannot be shown: {type(error).__name__}"
        ) from error
    unknown = re.search(r"\\[A-Za-z]+", converted)
    if unknown:
        raise WorkbookError(f"the formula {formula!r} cannot be shown: {unknown[0]} is unknown")
    return converted


def _keep_formulas_in_cells(source: str) -> str:
    """Rewrite the bars inside formulas of table rows, which would end the cell."""

    def without_bars(formula: re.Match) -> str:
        return formula[0].replace("\\|", "\\Vert{}").replace("|", "\\vert{}")

    lines = source.split("\n")
    return "\n".join(
        re.sub(INLINE_FORMULA, without_bars, line) if line.lstrip().startswith("|") else line
        for line in lines
    )


# The notebook's title and images


def _title(notebook: nbformat.NotebookNode) -> str:
    """The first top-level heading of the text."""
    for cell in notebook.cells:
        heading = re.search(r"^# +(.+)$", cell.source, re.MULTILINE)
        if cell.cell_type == "markdown" and heading:
            return heading[1].strip()
    return "Notebook"


def _describe_images(notebook: nbformat.NotebookNode) -> None:
    """Give every image that came without an alternative text the name of its section."""
    section = _title(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            headings = re.findall(r"^#+ +(.+)$", cell.source, re.MULTILINE)
            section = headings[-1].strip() if headings else section
        for output in cell.get("outputs", []):
            for kind in IMAGE_TYPES:
                if kind in output.get("data", {}):
                    about = output.metadata.setdefault(kind, {})
                    about.setdefault("alt", f"Figure of the section “{section}”")


def _head(title: str, index: str | None) -> str:
    back = f'<nav><a href="{html.escape(index)}">All studies</a></nav>\n' if index else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n"
        f"<style>{STYLE}{HtmlFormatter().get_style_defs('.highlight')}\n</style>\n"
        f"</head>\n<body>\n<main>\n{back}"
    )


# What a page must not hold

FOREIGN_TAGS = ("script", "link", "iframe", "object", "embed", "base", "form")
FETCHED = ("src", "srcset", "poster", "data", "background", "xlink:href")


def foreign_parts(page: str) -> list[str]:
    """What in a page runs a script or is fetched from elsewhere; plain links are not.

    Returns:
        The offending tags or style rules, shortened; empty for a page that stands alone.
    """
    found = []
    soup = bs4.BeautifulSoup(page, "html.parser")
    for tag in soup.find_all(True):
        fetched = [str(tag.get(name)) for name in FETCHED if tag.has_attr(name)]
        if tag.name in ("image", "use") and tag.has_attr("href"):
            fetched.append(str(tag["href"]))
        scripted = any(name.startswith("on") for name in tag.attrs)
        outside = any(not address.startswith(("data:", "#")) for address in fetched)
        if tag.name in FOREIGN_TAGS or scripted or outside:
            found.append(str(tag))
    styles = [*(tag.get_text() for tag in soup.find_all("style"))]
    styles += [tag["style"] for tag in soup.find_all(style=True)]
    for style in styles:
        found += re.findall(r"@import[^;]*|url\(\s*[\"']?(?!data:|#)[^)]*\)", style)
    return [part[:120] for part in found]


# The index


@dataclass(frozen=True)
class Entry:
    """What the index tells of one result package.

    Attributes:
        title: of the study.
        version: `local`, `v0`, `v1`, …
        page: address of the executed notebook's page, relative to the index; None if there is none.
        facts: short lines about the run, by name (profile, dataset, …).
        figures: alternative text of each figure, by its address relative to the index.
        verdicts: rows of the table of verdicts; empty if the study has none.
    """

    title: str
    version: str
    page: str | None
    facts: Mapping[str, str]
    figures: Mapping[str, str]
    verdicts: Iterable[Mapping[str, object]] = ()


def index_page(entries: Iterable[Entry]) -> str:
    """The list of all packages: what ran, its figures and verdicts, and a link to its page."""
    sections = [_section(entry) for entry in entries]
    nothing = "<p>No results yet: <code>python3 -m lib run</code> makes some.</p>\n"
    body = "<h1>Results of the workbook</h1>\n" + ("".join(sections) or nothing)
    return _head("Results of the workbook", None) + body + "</main>\n</body>\n</html>\n"


def _section(entry: Entry) -> str:
    name = html.escape(f"{entry.title} ({entry.version})")
    heading = f'<a href="{html.escape(entry.page)}">{name}</a>' if entry.page else name
    facts = " · ".join(html.escape(f"{key}: {value}") for key, value in entry.facts.items())
    figures = "".join(
        f'<p><a href="{html.escape(address)}">{html.escape(text)}</a></p>\n'
        for address, text in entry.figures.items()
    )
    missing = "" if entry.page else "<p>This package holds no executed notebook.</p>\n"
    return f"<h2>{heading}</h2>\n<p>{facts}</p>\n{missing}{html_table(entry.verdicts)}{figures}"


def html_table(rows: Iterable[Mapping[str, object]]) -> str:
    """Rows as an HTML table, every cell literally; nothing for no rows."""
    rows = list(rows)
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(str(name))}</th>" for name in rows[0])
    body = "".join(
        "<tr>"
        + "".join(f"<td>{html.escape(str(value))}</td>" for value in row.values())
        + "</tr>\n"
        for row in rows
    )
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"
