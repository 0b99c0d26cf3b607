"""Finds the shared papers (corpus, labelled cases) that stand beside the checkout, in `../shared`."""

import os
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"


def shared_folder(name: str) -> Path:
    """`../shared/NAME`. Missing, it fails a test in CI; elsewhere, as in a public clone, the test is left out."""
    folder = SHARED / name
    if folder.is_dir():
        return folder
    if os.environ.get("CI") == "true":
        pytest.fail(f"{folder} is missing: CI must run on the shared papers")
    pytest.skip(f"{folder} is not here; it stands beside a checkout of the project team")
