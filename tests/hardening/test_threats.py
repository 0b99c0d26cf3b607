"""Each threat of docs/security.md names the test that tries it, and the test is there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    section = (ROOT / "docs/security.md").read_text().partition("## Threats")[2]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def functions_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_threat_is_tried_by_a_test_that_there_is() -> None:
    assert len(rows()) > 15
    for row in rows():
        named = NAMED.findall(row)
        assert named, row
        for file, name in named:
            assert name in functions_of(ROOT / file), f"{file}::{name}"


def test_every_file_of_attacks_belongs_to_a_threat() -> None:
    named = {file for row in rows() for file, _ in NAMED.findall(row)}
    here = {str(file.relative_to(ROOT)) for file in Path(__file__).parent.glob("test_*.py")}
    assert here - named == {"tests/hardening/test_threats.py"}
