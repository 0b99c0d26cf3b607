"""Imports point one way: workers -> features -> web -> storage -> domain. Read from the source, not by running it."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])

COMPOSITION = {"main", "cli", "embedded"}
"""Where the parts are put together; they may import every part of `app`, and nothing imports them."""

LEAVES = {"settings", "errors", "queue", "queue_transports"}
LAYERS = {"domain": 0, "storage": 1, "web": 2}
FEATURE = 3
THIRD_PARTY_OF_DOMAIN = {"numpy", "hyperscan", "yaml", "cel", "argon2", "pyotp"}
"""Arithmetic, hashing and reading of texts; they touch no file, network, clock or environment here."""
THIRD_PARTY_OF_CLIENT = {"httpx2", "zstandard"}
"""The dependencies of pyproject.toml without its extra."""

LINES_OF_A_MODULE = 350


def part_of(module: str) -> str:
    """`app.runs.api` -> `runs`, `workers.tasks` -> `workers`."""
    names = module.split(".")
    return names[0] if names[0] != "app" else (names[1] if len(names) > 1 else "app")


def layer_of(part: str) -> int:
    return LAYERS.get(part, FEATURE)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> set[str]:
    """Modules that the file imports, wherever in it; `from app import queue` counts as `app.queue`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            found |= {f"{module}.{name.name}" for name in node.names} if module == "app" else {module}
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_only_what_lies_below_it(path: Path) -> None:
    here = part_of(name_of(path))
    for imported in imports_of(path):
        top = imported.split(".")[0]
        if top not in {"app", "workers"}:
            continue
        there = part_of(imported)
        why = f"{name_of(path)} imports {imported}"
        if here == there or (here in COMPOSITION and there != "workers") or there in LEAVES:
            continue
        assert there not in COMPOSITION, f"{why}: nothing imports what puts the parts together"
        assert there != "workers", f"{why}: app sends a task by name"
        assert here not in LEAVES, f"{why}: {here} is a leaf"
        assert here == "workers" or layer_of(there) < layer_of(here), f"{why}: that is not below it"


@pytest.mark.parametrize("path", [p for p in MODULES if "domain" in p.parts], ids=name_of)
def test_the_domain_is_pure(path: Path) -> None:
    for imported in imports_of(path):
        top = imported.split(".")[0]
        if top == "app":
            assert imported.startswith("app.domain") or imported == "app.errors", f"{name_of(path)} imports {imported}"
        else:
            assert top in sys.stdlib_module_names or top in THIRD_PARTY_OF_DOMAIN, f"{name_of(path)} imports {imported}"


@pytest.mark.parametrize("path", [p for p in MODULES if "client" in p.parts], ids=name_of)
def test_the_client_needs_nothing_of_the_service(path: Path) -> None:
    for imported in imports_of(path):
        top = imported.split(".")[0]
        if top == "app":
            assert imported.startswith("app.client") or imported == "app.errors", f"{name_of(path)} imports {imported}"
        else:
            assert top in sys.stdlib_module_names or top in THIRD_PARTY_OF_CLIENT, f"{name_of(path)} imports {imported}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_holds_one_concept(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_OF_A_MODULE


def test_leaves_import_only_leaves() -> None:
    for leaf in LEAVES:
        path = ROOT / "app" / f"{leaf}.py"
        parts = {part_of(name) for name in imports_of(path) if name.startswith("app")}
        assert parts <= LEAVES, f"app.{leaf} imports {parts - LEAVES}"
