"""Study 02: how likely DP-SGD betrays which of n candidates it was trained on.

Hayes, Mahloujifar, Balle, *Bounding Training Data Reconstruction in DP-SGD*, arXiv:2302.07225. The
study is made of parts, each a module with cells, tables, figures and verdicts of its own; this one
puts them together under the names that the notebook, ``run`` and ``verify`` know.
"""

from __future__ import annotations

import pandas as pd

from lib import reconstruction_attacks, reconstruction_bounds, reconstruction_images
from lib.parameters import SHARED
from lib.study_tables import joined, merged, verdict_table

TITLE = "Reconstruction from DP-SGD: bound against attack"
NOTEBOOK = "02_reconstruction_sweep"
PAPERS = (
    {
        "title": "Bounding Training Data Reconstruction in DP-SGD",
        "authors": "Jamie Hayes, Saeed Mahloujifar, Borja Balle",
        "arxiv": "2302.07225",
    },
)
# In the order of the notebook.
PARTS = (reconstruction_bounds, reconstruction_attacks, reconstruction_images)
PARAMETERS = SHARED | merged("PARAMETERS", PARTS)
RULES, DATA_RULES = joined("RULES", PARTS), joined("DATA_RULES", PARTS)


def verdicts(tables: dict[str, pd.DataFrame]) -> list[dict]:
    """Every claim of the paper that was tried; the rows of table ``verdicts``."""
    return [row for part in PARTS for row in part.verdicts(tables)]


TABLES = merged("TABLES", PARTS) | {"verdicts": verdict_table("reconstruction_sweep")}
FIGURES = merged("FIGURES", PARTS)
