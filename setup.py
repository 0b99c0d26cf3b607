"""Add templates, static files, migrations and documents to the wheel; pyproject.toml declares everything else."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
RESOURCES = ("templates", "static", "migrations", "docs", "deploy/proxy")


class BuildWithResources(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a checkout has them beside `app`
            return
        target = Path(self.build_lib) / "app" / "_resources"
        shutil.rmtree(target, ignore_errors=True)
        for name in RESOURCES:
            source = ROOT / name
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
            else:
                shutil.copy(source, target / name)


setup(cmdclass={"build_py": BuildWithResources})
