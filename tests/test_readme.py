"""The README says what is there: links, commands, and the numbers of the kept package."""

import itertools
import math
import re

import pytest

from lib import commands, paths, results

README = (paths.ROOT / "README.md").read_text(encoding="utf-8")
HEADER = "| claim | paper | here (95 % interval) | verdict |"
# What the README has tables of; claims that must be in them, beside all that differ.
SHOWN = (
    ("one_run_audit", "v2", "^white-box bound at|^share of the ceiling, (?:few|all)|more ordinary"),
    ("reconstruction_sweep", "v1", "^bound at|^top-qT|^most exposed|ε = 4, q = 0.01$"),
)


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


@pytest.mark.parametrize(("study", "version", "headline"), SHOWN)
def test_tables_show_rows_of_the_packages_and_every_difference(study, version, headline):
    verdicts = results.open_package(study, version, paths.RESULTS).tables["verdicts"]
    texts = {row.claim: row_text(row) for row in verdicts.itertuples()}
    shown = {line for line in README.splitlines() if line.startswith("| ")} & set(texts.values())
    must = verdicts["claim"].str.contains(headline) | verdicts["verdict"].str.startswith("differs")
    assert must.sum() > 2
    assert {texts[claim] for claim in verdicts["claim"][must]} <= shown


def test_tables_show_nothing_else():
    rows = {
        row_text(row)
        for study, version, _ in SHOWN
        for row in results.open_package(study, version, paths.RESULTS)
        .tables["verdicts"]
        .itertuples()
    }
    lines = README.splitlines()
    starts = [i for i, line in enumerate(lines) if line == HEADER]
    assert len(starts) == len(SHOWN)
    for start in starts:
        shown = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
        assert set(shown) <= rows


def row_text(row) -> str:
    """A verdict as the README shows it."""
    interval = "" if math.isnan(row.low) else f" ({row.low:.2f} to {row.high:.2f})"
    return f"| {row.claim} | {row.paper} | {row.ours:.2f}{interval} | {row.verdict} |"
