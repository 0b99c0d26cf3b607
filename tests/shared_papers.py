"""Finds the shared papers (corpus, labelled cases) next to the checkout, in `../shared`."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared_folder(name: str) -> Path:
    """`../shared/NAME`. If it is missing, a test fails in CI and is skipped elsewhere, as in a public clone."""
    folder = SHARED / name
    return folder if folder.is_dir() else _missing(folder)


def shared_file(name: str) -> Path:
    """`../shared/NAME`, one paper. If it is missing, the same applies as for a folder."""
    file = SHARED / name
    return file if file.is_file() else _missing(file)


def _missing(path: Path) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{path} is missing: CI must run on the shared papers")
    pytest.skip(f"{path} is not here; it stands beside a checkout of the project team")
