"""Study 01's table of faults: rates, verdicts and figure, from rows made up here."""

import pandas as pd
import pytest

from lib import faults, figures
from lib import one_run_faults as as_test


def rows(tests, *, seen, alarms, n_wrong=20, n_right=100):
    """Audits of which ``seen`` refute each fault and ``alarms`` the right implementation."""
    made = []
    for test in tests:
        for fault, n, refuted in ((test, n_wrong, seen), (faults.RIGHT, n_right, alarms)):
            made += [
                {
                    "fault": fault,
                    "test": test,
                    "run": run,
                    "claimed_epsilon": 0.7,
                    "epsilon_lower_bound": 1.0 if run < refuted else 0.0,
                    "refuted": run < refuted,
                }
                for run in range(n)
            ]
    return pd.DataFrame(made)


def tables(**kinds):
    by_pairs = rows([faults.PAIR_FAULT], seen=20, alarms=0, n_right=20)
    return {"fault_runs": rows(list(faults.FAULTS), **kinds), "fault_pairs": by_pairs}


def test_verdicts_follow_from_the_counts():
    alarms, seen = as_test.verdicts(tables(seen=20, alarms=3))
    assert alarms["ours"] == 0.03
    assert alarms["low"] < 0.03 < alarms["high"]
    assert alarms["verdict"] == "as allowed"
    assert seen["verdict"] == f"{len(faults.FAULTS)} of {len(faults.FAULTS)}"
    alarms, seen = as_test.verdicts(tables(seen=0, alarms=14))
    assert alarms["verdict"] == "differs: too many"
    assert seen["verdict"] == f"1 of {len(faults.FAULTS)}"  # by two training sets


def test_summary_tells_how_each_fault_was_looked_for():
    summary = as_test.summary(tables(seen=5, alarms=0))
    assert len(summary) == len(faults.FAULTS) + 1
    both = summary[summary["fault"] == faults.PAIR_FAULT].set_index("by")
    assert both.loc["one run", "detected"] == 5
    assert both.loc["two training sets", "detected"] == 20


def test_figure_shows_the_rates(tmp_path):
    made = [tables(seen=n, alarms=2) for n in (3, 3, 9)]
    drawn = [
        figures.save(as_test.draw_faults(each), tmp_path / f"{i}")[0].read_bytes()
        for i, each in enumerate(made)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("name", as_test.TABLES)
def test_only_a_right_implementation_is_held_to_its_claim(name):
    """The claim that verify checks is left empty where an implementation is wrong."""
    (claim,) = as_test.TABLES[name].claims
    assert claim["truth"] == "guarantee"
    (field,) = [each for each in as_test.TABLES[name].fields if each.name == "guarantee"]
    assert not field.required
