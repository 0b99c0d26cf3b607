"""Reads what this repository pins: the packages of a lock and the base images of Dockerfile and docker-compose.yml."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
IMAGE_FILES = ("Dockerfile", "docker-compose.yml")


@dataclass(frozen=True)
class Package:
    """A line of a lock. `needed_by` are the packages that require it; `threewalls` is this project itself."""

    requirement: Requirement
    needed_by: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.requirement.name

    @property
    def version(self) -> str:
        return next(iter(self.requirement.specifier)).version


@dataclass(frozen=True)
class Image:
    name: str
    tag: str
    digest: str
    """`sha256:...`, empty as long as `.ci/pin-images` has not added it."""

    @property
    def version(self) -> str:
        return self.tag.partition("-")[0]


def locked_packages(lock: Path) -> list[Package]:
    packages: list[Package] = []
    for line in lock.read_text().splitlines():
        if line and line[0] not in " #":
            packages.append(Package(Requirement(line.rstrip("\\ "))))
        elif needed_by := re.match(r"    #   (?:  |via )?(?!-)([a-z0-9-]+)", line.replace("# via ", "#   ")):
            packages[-1].needed_by.append(needed_by[1])
    return packages


def base_images(root: Path = ROOT) -> Iterator[Image]:
    """Yield the images that others build, each once."""
    text = "\n".join((root / name).read_text() for name in IMAGE_FILES)
    references = re.findall(r"^(?:FROM| +image:) ([a-z/]+):([^@\s]+)(?:@(\S+))?", text, re.MULTILINE)
    yield from (Image(*reference) for reference in sorted(set(references)) if reference[0] != "threewalls")
