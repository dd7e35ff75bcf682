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
from lib.parameters import SHARED
from lib.study_tables import joined, merged, verdict_table

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
PARAMETERS = SHARED | merged("PARAMETERS", PARTS)
RULES, DATA_RULES = joined("RULES", PARTS), joined("DATA_RULES", PARTS)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Every claim of the paper that was tried by experiment; the rows of table ``verdicts``."""
    return [row for part in PARTS for row in part.verdicts(tables)]


TABLES = merged("TABLES", (one_run_theory, *PARTS)) | {"verdicts": verdict_table("one_run_audit")}
FIGURES = merged("FIGURES", (one_run_theory, *PARTS))
