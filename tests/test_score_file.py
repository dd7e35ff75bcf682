"""Auditing one's own run from a file: what is read, what is said, what is refused."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from lib import one_run, paths, score_file
from lib.errors import WorkbookError


def write(path, scores, included):
    pd.DataFrame({"score": scores, "included": included}).to_csv(path, index=False)
    return path


def gaussian(n_canaries=5000, seed=0):
    rng = np.random.default_rng(seed)
    included = rng.random(n_canaries) < 0.5
    return included + rng.standard_normal(n_canaries), included


def command(*arguments, cwd):
    line = [sys.executable, str(paths.ROOT / "lib"), "audit", *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("coins", [("True", "False"), ("1", "0"), (" true", "FALSE ")])
def test_coins_may_be_spelt_several_ways(tmp_path, coins):
    scores, included = score_file.read(write(tmp_path / "s.csv", [0.5, "-inf"], coins))
    assert scores.tolist() == [0.5, -np.inf]
    assert included.tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("score\n1\n", "has no column included"),
        ("score,included\n", "has no row"),
        ("", "cannot be read as a CSV file"),
        ("score,included\n1,true\nx,true\n", "row 2: score = 'x'; wanted: a number"),
        ("score,included\nnan,true\n", "row 1: score = 'nan'"),
        ("score,included\n1,2\n", "row 1: included = '2'; wanted: true or false"),
        ("score,included\n1,\n", "row 1: included = ''"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, text, words):
    (tmp_path / "s.csv").write_text(text)
    with pytest.raises(WorkbookError, match=words) as told:
        score_file.read(tmp_path / "s.csv")
    assert "\n" not in str(told.value)


def test_counts_are_read_and_do_not_depend_on_scores():
    assert score_file.parse_counts("200") == (200, 0)
    assert score_file.parse_counts("0+100") == (0, 100)
    for bad in ("", "x", "-3", "+1", "1+2+3", "2.5"):
        with pytest.raises(WorkbookError, match="guesses = "):
            score_file.parse_counts(bad)
    assert score_file.default_counts(1000) == [(10, 0), (30, 0), (100, 0), (300, 0)]
    assert score_file.default_counts(3) == [(1, 0)]


def test_each_method_bounds_from_the_same_counts():
    scores, included = gaussian()
    results = score_file.audit(scores, included, delta=1e-5, counts=[(200, 100)])
    assert [result.method for result in results] == ["steinke", "fdp"]
    assert results[0].epsilon_lower_bound == one_run.epsilon_lower_bound(
        n_canaries=5000, n_guesses=300, n_correct=results[0].n_correct, delta=1e-5
    )
    assert results[0].epsilon_lower_bound < results[1].epsilon_lower_bound < 4.378
    (pure,) = score_file.audit(scores, included, delta=0.0, counts=[(200, 100)])
    assert pure.epsilon_lower_bound > results[0].epsilon_lower_bound


def test_several_counts_share_the_significance():
    scores, included = gaussian()
    best, _ = score_file.audit(scores, included, delta=1e-5, counts=[(100, 0), (300, 0)])
    assert best.n_tests == 2
    assert best.epsilon_lower_bound == one_run.epsilon_lower_bound(
        n_canaries=5000,
        n_guesses=best.n_guesses,
        n_correct=best.n_correct,
        delta=1e-5,
        significance=0.025,
    )


def test_default_counts_lie_no_more_often_than_they_may():
    """2,000 audits of 1-DP Laplace scores: at most 131 false bounds (99.9 % of Binomial(.05))."""
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(2000):
        included = rng.random(500) < 0.5
        (result,) = score_file.audit(
            included + rng.laplace(size=500),
            included,
            delta=0.0,
            counts=score_file.default_counts(500),
        )
        false += result.epsilon_lower_bound > 1
    assert false <= 131


def test_command_tells_writes_and_draws(tmp_path):
    write(tmp_path / "s.csv", *gaussian())
    options = ("--delta", "1e-5", "--guesses", "200+100", "--output", "o.csv", "--figure", "f.png")
    done = command("s.csv", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    table = pd.read_csv(tmp_path / "o.csv")
    assert len(told) == len(table) == 2
    for line, row in zip(told, table.itertuples(), strict=True):
        assert f"{row.epsilon_lower_bound:.4f}" in line
        assert f"{row.n_correct} of 300 guesses right (200 in, 100 out) of 5000 canaries" in line
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gone.csv", "--delta", "1e-5"), "gone.csv cannot be read"),
        (("s.csv", "--delta", "2"), "delta = 2.0"),
        (("s.csv", "--delta", "1e-5", "--guesses", "6000"), "n_positive = 6000"),
        (("s.csv",), "--delta"),
    ],
)
def test_command_refuses_in_one_line(tmp_path, arguments, words):
    write(tmp_path / "s.csv", *gaussian(100))
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode != 0
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
