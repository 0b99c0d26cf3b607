"""Checks that nothing pinned here is older than `.ci/minimum-versions.yml` allows.

    .venv/bin/python .ci/pinned_versions.py             # what CI runs
    .venv/bin/python .ci/pinned_versions.py --release   # also requires a digest for every base image

Exits 1 and names each package and image that is too old, or that the list does not cover.
"""

import re
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

import yaml
from packaging.version import Version
from pins import ROOT, Image, base_images, locked_packages

MINIMUM: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / ".ci/minimum-versions.yml").read_text())


def main() -> int:
    images = list(base_images())
    problems = [*_package_problems(), *_image_problems(images)]
    unpinned = [f"{image.name}:{image.tag}" for image in images if not image.digest]
    if unpinned and "--release" in sys.argv:
        problems.append(f"{', '.join(unpinned)}: no digest. Where a registry can be reached, run: .ci/pin-images")
    print("\n".join(problems) or f"{len(MINIMUM['packages'])} packages and {len(images)} images are new enough.")
    if unpinned and not problems:
        print(f"A release needs the digest of: {', '.join(unpinned)}")
    return int(bool(problems))


def _package_problems() -> Iterator[str]:
    packages = list(chain.from_iterable(locked_packages(lock) for lock in sorted(ROOT.glob("requirements*.lock"))))
    for name, entry in MINIMUM["packages"].items():
        versions = {package.version for package in packages if package.name == name}
        if not versions:
            yield f"{name}: no lock has it. Remove it from .ci/minimum-versions.yml."
        for version in versions:
            if Version(version) < Version(entry["at_least"]):
                yield f"{name} {version}: {_too_old(entry)} Run: make lock UPGRADE='--upgrade-package {name}'"


def _image_problems(images: list[Image]) -> Iterator[str]:
    for name in MINIMUM["images"].keys() - {image.name for image in images}:
        yield f"{name}: no file uses this image. Remove it from .ci/minimum-versions.yml."
    for image in images:
        entry = MINIMUM["images"].get(image.name, {"at_least": ""})
        # Each release line has its own first fixed version, so 18.1 may be worse than 17.12.
        if image.version.rpartition(".")[0] != entry["at_least"].rpartition(".")[0]:
            yield f"{image.name}:{image.tag}: .ci/minimum-versions.yml has nothing on this line of releases. Add it."
        elif Version(image.version) < Version(entry["at_least"]):
            yield f"{image.name}:{image.tag}: {_too_old(entry)} Take a newer tag, then run: .ci/pin-images"
        if image.digest and not re.fullmatch("sha256:[0-9a-f]{64}", image.digest):
            yield f"{image.name}:{image.tag}: {image.digest} is no digest. Run: .ci/pin-images"


def _too_old(entry: dict[str, Any]) -> str:
    return f"needs {entry['at_least']} ({', '.join(entry['advisories'])})."


if __name__ == "__main__":
    sys.exit(main())
