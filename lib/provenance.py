"""Where numbers come from: the code, the libraries and the machine of this process."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from lib import paths

LIBRARIES = (
    "numpy",
    "scipy",
    "pandas",
    "matplotlib",
    "torch",
    "torchvision",
    "opacus",
    "dp-accounting",
    "joblib",
    "dask",
    "scikit-learn",
    "mlxtend",
    "frictionless",
    "papermill",
)


def environment() -> dict[str, Any]:
    """Describe what a run here depends on, JSON-typed.

    Returns:
        ``git`` (commit, ``"unknown"`` outside a clone, and whether code was changed since),
        ``libraries`` (version by name), ``python``, ``processor``, ``cores``, and ``gpu`` (None
        without one, or if torch has not been used).
    """
    return {
        "git": _git_state(),
        "libraries": _library_versions(),
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": _gpu(),
    }


def _git_state() -> dict[str, Any]:
    """Tell the commit, and whether code was changed since (results are data, not code)."""
    if _git("rev-parse", "--show-toplevel") != str(paths.ROOT):
        return {"commit": "unknown", "dirty": None}
    changes = _git("status", "--porcelain", "--", "lib", "notebooks", "environment.yml")
    return {"commit": _git("rev-parse", "HEAD") or "unknown", "dirty": changes != ""}


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(paths.ROOT), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _library_versions() -> dict[str, str]:
    versions = {}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def _processor() -> str:
    """Name the processor; Linux tells the model only in a file."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _gpu() -> str | None:
    """Name the GPU, if torch is in use anyway and has one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name()
