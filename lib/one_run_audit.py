"""Study 01: how much of the ε of DP-SGD one training run can demonstrate.

Steinke, Nasr, Jagielski, *Privacy Auditing with One (1) Training Run*, arXiv:2305.08846. The study
is made of parts, each a module with cells, tables, figures and verdicts of its own; this one puts
them together under the names that the notebook, ``run`` and ``verify`` know.
"""

from __future__ import annotations

import pandas as pd

from lib import (
    one_run_beyond,
    one_run_black_box,
    one_run_faults,
    one_run_procedures,
    one_run_sweeps,
    one_run_theory,
    one_run_white_box,
)
from lib.one_run_tables import VERDICT_FIELDS
from lib.parameters import SHARED
from lib.tables import Table

TITLE = "Privacy auditing with one training run"
NOTEBOOK = "01_one_run_audit"
PAPERS = (
    {
        "title": "Privacy Auditing with One (1) Training Run",
        "authors": "Thomas Steinke, Milad Nasr, Matthew Jagielski",
        "arxiv": "2305.08846",
    },
)
# In the order of the notebook.
PARTS = (
    one_run_white_box,
    one_run_sweeps,
    one_run_black_box,
    one_run_procedures,
    one_run_beyond,
    one_run_faults,
)
PARAMETERS = SHARED | {
    name: parameter for part in PARTS for name, parameter in part.PARAMETERS.items()
}
RULES = tuple(rule for part in PARTS for rule in part.RULES)
DATA_RULES = tuple(rule for part in PARTS for rule in getattr(part, "DATA_RULES", ()))


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Every claim of the paper that was tried by experiment; the rows of table ``verdicts``."""
    return [row for part in PARTS for row in part.verdicts(tables)]


TABLES = (
    one_run_theory.TABLES
    | {name: table for part in PARTS for name, table in part.TABLES.items()}
    | {
        "verdicts": Table(
            fields=VERDICT_FIELDS,
            key=("claim",),
            meaning="one claim of the paper against this run",
            derived="one_run_audit.verdicts",
        )
    }
)
FIGURES = one_run_theory.FIGURES | {
    name: figure for part in PARTS for name, figure in part.FIGURES.items()
}
