"""Finds the shared papers (corpus, labelled cases) that stand beside the checkout, in `../shared`."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared_folder(name: str) -> Path:
    """`../shared/NAME`. Missing, it fails a test in CI; elsewhere, as in a public clone, the test is left out."""
    folder = SHARED / name
    return folder if folder.is_dir() else _missing(folder)


def shared_file(name: str) -> Path:
    """`../shared/NAME`, one paper. Missing, it is as with a folder."""
    file = SHARED / name
    return file if file.is_file() else _missing(file)


def _missing(path: Path) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{path} is missing: CI must run on the shared papers")
    pytest.skip(f"{path} is not here; it stands beside a checkout of the project team")
