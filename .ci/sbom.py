"""Prints the software bill of materials of a release as CycloneDX JSON: `make sbom`.

It lists what the image holds: the packages of requirements.lock that Linux with the image's Python installs, with their
licences and who needs them, the npm packages in static/vega/vega.js, and the base images.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any
from uuid import uuid4

from pins import ROOT, Image, Package, base_images, locked_packages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def main() -> None:
    images = list(base_images())
    packages = [package for package in locked_packages(ROOT / "requirements.lock") if _is_installed(package, images)]
    names = {package.name: _purl(package.name, package.version) for package in packages}
    root = _purl(PROJECT["name"], PROJECT["version"])
    needs: dict[str, list[str]] = {root: [], **{purl: [] for purl in names.values()}}
    for package in packages:
        for parent in package.needed_by:
            if (purl := (names | {PROJECT["name"]: root}).get(parent)) is not None:
                needs[purl].append(names[package.name])
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid4().urn,
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": _component("application", PROJECT["name"], PROJECT["version"], root)
            | {"licenses": [{"expression": PROJECT["license"]}]},
        },
        "components": [*map(_library, packages), *_scripts(), *map(_container, images)],
        "dependencies": [{"ref": purl, "dependsOn": sorted(set(needed))} for purl, needed in needs.items()],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


def _is_installed(package: Package, images: list[Image]) -> bool:
    python = next(image.version for image in images if image.name == "python")
    environment = {
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
        "python_full_version": python, "python_version": python.rpartition(".")[0],
    }  # fmt: skip
    marker = package.requirement.marker
    return marker is None or marker.evaluate(environment)


def _library(package: Package) -> dict[str, Any]:
    component = _component("library", package.name, package.version, _purl(package.name, package.version))
    try:
        licence = metadata(package.name).get("License-Expression")
    except PackageNotFoundError:
        licence = None
    return component | ({"licenses": [{"expression": licence}]} if licence else {})


def _scripts() -> Iterator[dict[str, Any]]:
    notice = (ROOT / "static/vega/NOTICE").read_text()
    for name, version, licence in re.findall(r"^(\S+) (\d\S*) \((\S+)\)$", notice, re.MULTILINE):
        component = _component("library", name, version, f"pkg:npm/{name}@{version}")
        yield component | {"licenses": [{"expression": licence}]}


def _container(image: Image) -> dict[str, Any]:
    purl = f"pkg:docker/{image.name}@{image.digest or image.tag}"
    return _component("container", image.name, image.tag, purl)


def _component(kind: str, name: str, version: str, purl: str) -> dict[str, Any]:
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


if __name__ == "__main__":
    main()
