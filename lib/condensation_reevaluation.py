"""Study 03: dataset condensation under a correct protocol and a worst-case audit.

Carlini, Feldman, Nasr, *No Free Lunch in "Privacy for Free: How does Dataset Condensation Help
Privacy"*, arXiv:2209.14987. The study is made of parts, each a module with cells, tables, figures
and verdicts of its own; this one puts them together under the names that the notebook, ``run`` and
``verify`` know.
"""

from __future__ import annotations

import pandas as pd

from lib import (
    condensation_beyond,
    condensation_epsilon,
    condensation_membership,
    condensation_theory,
    condensation_worst_case,
)
from lib.parameters import SHARED
from lib.study_tables import joined, merged, verdict_table

TITLE = "Dataset condensation, attacked by a correct protocol and in the worst case"
NOTEBOOK = "03_condensation_reevaluation"
PAPERS = (
    {
        "title": "No Free Lunch in “Privacy for Free: How does Dataset Condensation Help Privacy”",
        "authors": "Nicholas Carlini, Vitaly Feldman, Milad Nasr",
        "arxiv": "2209.14987",
    },
)
# In the order of the notebook.
PARTS = (
    condensation_membership,
    condensation_epsilon,
    condensation_worst_case,
    condensation_theory,
    condensation_beyond,
)
PARAMETERS = SHARED | merged("PARAMETERS", PARTS)
RULES, DATA_RULES = joined("RULES", PARTS), joined("DATA_RULES", PARTS)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Every claim of the note that was tried; the rows of table ``verdicts``."""
    return [row for part in PARTS for row in part.verdicts(tables)]


TABLES = merged("TABLES", PARTS) | {"verdicts": verdict_table("condensation_reevaluation", "note")}
FIGURES = merged("FIGURES", PARTS)
