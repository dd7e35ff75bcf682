"""The README says what is there: links, commands, and the numbers of the kept package."""

import itertools
import re

import pandas as pd

from lib import commands, one_run_white_box, paths, results

README = (paths.ROOT / "README.md").read_text(encoding="utf-8")


def test_links_lead_somewhere():
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) >= 4
    assert [link for link in links if not (paths.ROOT / link).exists()] == []


def test_commands_are_understood():
    blocks = re.findall(r"```\n(.*?)```", README, re.DOTALL)
    lines = [line.split("#")[0] for block in blocks for line in block.splitlines()]
    asked = [line.split("-m lib ")[1] for line in lines if line.startswith("$ python3 -m lib ")]
    asked += [line.split("-m lib ")[1] for line in lines if line.startswith("python3 -m lib ")]
    assert len(asked) >= 5
    for line in asked:
        assert commands.parse(line.replace("'[2, 4]'", "[2,4]").split()).command


def test_every_row_of_the_headline_table_is_one_of_the_package():
    tables = results.open_package("one_run_audit", "v1", paths.RESULTS).tables
    rows = {row_text(row) for row in tables["verdicts"].itertuples()}
    lines = README.splitlines()
    first = lines.index("| claim | paper | here (95 % interval) | verdict |") + 2
    shown = list(itertools.takewhile(lambda line: line.startswith("|"), lines[first:]))
    assert set(shown) <= rows
    headline = pd.DataFrame(one_run_white_box.verdicts(tables))
    assert {row_text(row) for row in headline.itertuples()} <= set(shown)


def row_text(row) -> str:
    """A verdict as the README shows it."""
    interval = f"{row.ours:.2f} ({row.low:.2f} to {row.high:.2f})"
    return f"| {row.claim} | {row.paper} | {interval} | {row.verdict} |"
