"""Pins are checked against the list of minimum versions, get digests from a registry, and are listed in the SBOM."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-build.lock")
DIGEST = "sha256:" + "5e" * 32


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The files that pin something, to be changed."""
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*LOCKS, "pyproject.toml", "Dockerfile", "docker-compose.yml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def run(checkout: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, checkout / ".ci" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def replace(file: Path, pattern: str, new: str) -> None:
    text, count = re.subn(pattern, new, file.read_text(), flags=re.MULTILINE)
    assert count, pattern
    file.write_text(text)


def test_what_is_pinned_has_no_known_hole(checkout: Path) -> None:
    checked = run(checkout, "pinned_versions.py")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_each_pin_with_a_hole_is_named_with_its_advisory(checkout: Path) -> None:
    replace(checkout / "requirements.lock", "^starlette==.* ", "starlette==0.49.0 ")
    replace(checkout / "Dockerfile", r"python:3\.11\.\d+", "python:3.11.13")
    replace(checkout / "docker-compose.yml", r"redis:[\d.]+", "redis:8.0.1")
    replace(checkout / ".ci/minimum-versions.yml", "^  urllib3:", "  urllib-three:")
    checked = run(checkout, "pinned_versions.py")
    assert checked.returncode == 1
    lines = {line.split(" ")[0].rstrip(":"): line for line in checked.stdout.splitlines()}
    assert set(lines) == {"starlette", "python:3.11.13-slim-bookworm", "redis:8.0.1-bookworm", "urllib-three"}
    assert "CVE-2026-54283" in lines["starlette"]
    assert "CVE-2026-24515" in lines["python:3.11.13-slim-bookworm"]


def test_a_release_needs_the_digest_of_every_image_and_pinning_adds_it(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No registry is reached by tests: a program of this name answers as Docker's does.
    programs = checkout / "programs"
    programs.mkdir()
    (programs / "docker").write_text(f'#!/bin/sh\n[ "$1 $2 $3" = "buildx imagetools inspect" ] && echo {DIGEST}\n')
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    pin = [checkout / ".ci/pin-images"]

    for name in ("Dockerfile", "docker-compose.yml"):  # as before the first time
        (checkout / name).write_text(re.sub(r"@sha256:\S+", "", (checkout / name).read_text()))
    assert run(checkout, "pinned_versions.py", "--release").returncode == 1
    assert subprocess.run([*pin, "--check"], timeout=300, check=False).returncode == 1
    subprocess.run(pin, timeout=300, check=True)
    pinned = [
        line for name in ("Dockerfile", "docker-compose.yml") for line in (checkout / name).read_text().splitlines()
    ]
    assert sum(DIGEST in line for line in pinned) == 3
    assert run(checkout, "pinned_versions.py", "--release").returncode == 0
    assert subprocess.run([*pin, "--check"], timeout=300, check=False).returncode == 0

    replace(checkout / "docker-compose.yml", "5e" * 32, "6f" * 32)  # the tag was rebuilt since
    assert subprocess.run([*pin, "--check"], timeout=300, check=False).returncode == 1
    subprocess.run(pin, timeout=300, check=True)
    assert "6f" * 32 not in (checkout / "docker-compose.yml").read_text()


def test_the_bill_of_materials_lists_what_the_image_installs_and_the_base_images(checkout: Path) -> None:
    document = json.loads(run(checkout, "sbom.py").stdout)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    versions = {component["purl"] for component in document["components"]}
    assert len(versions) == len(document["components"])
    locked = re.findall(r"^([a-z0-9-]+)==([^ ;]+)( ;)?", (checkout / "requirements.lock").read_text(), re.MULTILINE)
    assert {f"pkg:pypi/{name}@{version}" for name, version, marker in locked if not marker} <= versions
    assert not {purl for purl in versions if purl.startswith(("pkg:pypi/django@", "pkg:pypi/colorama@"))}
    kinds = {component["name"] for component in document["components"] if component["type"] == "container"}
    assert kinds == {"postgres", "python", "redis"}
    needed = {purl for entry in document["dependencies"] for purl in entry["dependsOn"]}
    assert {purl for purl in versions if purl.startswith("pkg:pypi/")} == needed
