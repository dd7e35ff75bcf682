"""The README says what is there: links, commands, and the numbers of the kept package."""

import re

import pandas as pd

from lib import commands, paths, results

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


def test_headline_table_is_that_of_the_package():
    verdicts = results.open_package("one_run_audit", "v0", paths.RESULTS).tables["verdicts"]
    assert headline_table(verdicts) in README


def headline_table(verdicts: pd.DataFrame) -> str:
    """The verdicts as the README shows them."""
    lines = ["| claim | paper | here (95 % interval) | verdict |", "|---|---|---|---|"]
    for row in verdicts.itertuples():
        interval = f"{row.ours:.2f} ({row.low:.2f} to {row.high:.2f})"
        lines.append(f"| {row.claim} | {row.paper} | {interval} | {row.verdict} |")
    return "\n".join(lines)
