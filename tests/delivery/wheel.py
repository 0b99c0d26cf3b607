"""The wheel of this checkout, built without a package index."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = ("app", "workers", "threewalls", "templates", "static", "migrations", "docs", "deploy")
_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "threewalls_entry.py")


def build_wheel(folder: Path) -> Path:
    """Build it from a copy in `folder`, so that it contains nothing from an earlier build."""
    source = folder / "source"
    for name in _FOLDERS:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        shutil.copy(ROOT / name, source)
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, "-w", folder, source], check=True, timeout=300)
    return next(folder.glob("threewalls-*.whl"))
