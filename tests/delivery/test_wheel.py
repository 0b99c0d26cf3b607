"""`pip install` of the wheel, then `migrate`, `serve` and `demo`, far from any checkout.

The virtual environment is new and holds the wheel alone; its dependencies are those of this environment, so that
nothing is downloaded. Not proven here: that the dependencies of `pyproject.toml` suffice and can be had, and that pip
builds the wheel in isolation.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import httpx2
import pytest

from tests.delivery.wheel import ROOT, build_wheel
from tests.embedded.processes import PLAIN_HTTP, running, wait_for
from tests.training_logs import training_log

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the environment."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=300)
    python = folder / "venv/bin/python"
    install = ["install", "-q", "--no-deps", "--no-index", "--disable-pip-version-check", wheel]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True, timeout=300)
    (site,) = (folder / "venv/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "venv"


@pytest.fixture
def command(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The installed command, in an empty folder and home."""
    for name in [name for name in os.environ if name.startswith(("THREEWALLS_", "PYTHONPATH", "XDG_DATA"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    path = str(installed / "bin/threewalls")
    monkeypatch.setattr("tests.embedded.processes.COMMAND", [path])
    return path


def test_what_the_service_reads_is_in_it(command: str, installed: Path) -> None:
    (site,) = (installed / "lib").glob("python*/site-packages")
    folders = {name: site / "app/_resources" / name for name in ("templates", "static", "migrations", "docs")}
    missing = [
        str(file.relative_to(ROOT))
        for name, folder in folders.items()
        for file in (ROOT / name).rglob("glossary.md" if name == "docs" else "*.*")
        if "__pycache__" not in file.parts and not (folder / file.relative_to(ROOT / name)).exists()
    ]
    files = [*(ROOT / "app").rglob("*.yaml"), *(ROOT / "app").rglob("*.toml")]
    data = [file for file in files if not (site / file.relative_to(ROOT)).exists()]
    assert (missing, data) == ([], [])


def test_migrate_and_serve(command: str, tmp_path: Path) -> None:
    subprocess.run([command, "migrate"], check=True, timeout=300)
    assert (tmp_path / ".local/share/threewalls/data/threewalls.db").exists(), "data do not lie among the packages"
    with running("serve", tmp_path / "data") as house:
        files = {"log": ("train.log", training_log())}
        run = httpx2.post(f"{house.address}/api/v1/runs", files=files, timeout=300, verify=PLAIN_HTTP).json()["id"]
        report = httpx2.get(f"{house.address}/api/v1/runs/{run}/report?wait=120", timeout=300, verify=PLAIN_HTTP).json()
        assert report["status"] == "judged", house.output
        codes = {
            path: httpx2.get(house.address + path, timeout=300, verify=PLAIN_HTTP).status_code
            for path in ("/", f"/runs/{run}", "/plan")
        }
    assert set(codes.values()) == {200}, codes


def test_demo(command: str, tmp_path: Path) -> None:
    with running("demo", tmp_path / "demo") as house:
        runs = f"{house.address}/api/v1/runs"
        wait_for(
            lambda: httpx2.get(runs, timeout=300, verify=PLAIN_HTTP).json()["total"] > 0, "the first run of the demo"
        )
