"""Imports point one way: features, access, web or workers, pipeline, storage, domain. Read from the source."""

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
MODULES = sorted([*(ROOT / "app").rglob("*.py"), *(ROOT / "workers").rglob("*.py")])

COMPOSITION = {"main", "cli", "embedded"}
"""Where the parts are put together; they may import every part of `app`, and nothing imports them."""

LEAVES = {"settings", "errors", "queue", "service_log", "wakes"}
LAYERS = {"domain": 0, "client": 0, "storage": 1, "pipeline": 2, "workers": 3, "web": 3, "access": 4}
"""Workers lie beside `web`: one that loaded the pages would take 10 MB more and start more slowly."""
FEATURE = 5
SMALL_LINES = 40
SMALL = {"app.domain.access.secrets"}
THIRD_PARTY_OF_DOMAIN = {"numpy", "hyperscan", "msgspec", "yaml", "cel", "argon2", "pyotp"}
"""Arithmetic, hashing and reading of texts; they touch no file, network, clock or environment here."""
THIRD_PARTY_OF_CLIENT = {"zstandard", "threewalls"}
"""The dependencies of pyproject.toml without its extra."""


def part_of(module: str) -> str:
    """`app.runs.api` -> `runs`, `workers.tasks` -> `workers`."""
    names = module.split(".")
    return names[0] if names[0] != "app" else (names[1] if len(names) > 1 else "app")


def layer_of(part: str) -> int:
    return LAYERS.get(part, FEATURE)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def import_statements(path: Path) -> tuple[tuple[ast.Import | ast.ImportFrom, bool], ...]:
    """All imports of the file, each with whether importing the file runs it. Only statements are visited."""
    result = []
    waiting: list[tuple[ast.AST, bool]] = [(statement, True) for statement in ast.parse(path.read_text()).body]
    while waiting:
        statement, is_outermost = waiting.pop()
        if isinstance(statement, ast.Import | ast.ImportFrom):
            result.append((statement, is_outermost))
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += [(inner, False) for inner in getattr(statement, block, ())]
    return tuple(result)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the modules that the file imports anywhere; `from app import queue` counts as `app.queue`."""
    imports: set[str] = set()
    for node, _ in import_statements(path):
        if isinstance(node, ast.Import):
            imports |= {name.name for name in node.names}
        else:
            assert node.level == 0, f"{path}: imports are absolute"
            module = node.module or ""
            imports |= {f"{module}.{name.name}" for name in node.names} if module == "app" else {module}
    return frozenset(imports)


def modules_of(path: Path) -> set[str]:
    """Modules that the file imports when it is imported itself; `from app.storage import runs` is that module."""
    imports: set[str] = set()
    for node, is_outermost in import_statements(path):
        if is_outermost and isinstance(node, ast.ImportFrom):
            imports |= {node.module or "", *(f"{node.module}.{name.name}" for name in node.names)}
    return imports


def why_not_below(here: str, there: str) -> str:
    """Return why the part `here` may not import the part `there`; empty if it may."""
    if here == there or (here in COMPOSITION and there != "workers") or there in LEAVES:
        return ""
    if there in COMPOSITION:
        return "nothing imports what puts the parts together"
    if there == "workers":
        return "app sends a task by name"
    if here in LEAVES:
        return f"{here} is a leaf"
    return "" if layer_of(there) < layer_of(here) else "that is not below it"


def imports_outside(folder: str, *, third_party: Collection[str]) -> list[str]:
    """Return imports under `app/<folder>` that are neither its own, nor Python's, nor allowed."""
    outside = []
    for path in sorted((ROOT / "app" / folder).rglob("*.py")):
        for imported in imports_of(path):
            own = imported.startswith(f"app.{folder}") or imported == "app.errors"
            top = imported.split(".")[0]
            if not own and top not in sys.stdlib_module_names and top not in third_party:
                outside.append(f"{name_of(path)} imports {imported}")
    return outside


def test_a_module_imports_only_what_lies_below_it() -> None:
    wrong = []
    for path in MODULES:
        here = part_of(name_of(path))
        for imported in imports_of(path):
            if imported.split(".")[0] in {"app", "workers"} and (why := why_not_below(here, part_of(imported))):
                wrong.append(f"{name_of(path)} imports {imported}: {why}")
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {name_of(path) for path in MODULES}
    graph = {name_of(path): modules_of(path) & names - {name_of(path)} for path in MODULES}
    while leaves := {name for name, imports in graph.items() if not imports & graph.keys()}:
        graph = {name: imports for name, imports in graph.items() if name not in leaves}
    # Modules that only the cycle imports remain as well, and are printed with it.
    assert not graph, "\n".join(
        f"{name} imports {', '.join(sorted(imports & graph.keys()))}" for name, imports in graph.items()
    )


def test_a_small_module_is_one_of_a_few() -> None:
    small = {
        name_of(path)
        for path in MODULES
        if path.name != "__init__.py" and len(path.read_text().splitlines()) < SMALL_LINES
    }
    assert small <= SMALL, f"merge into the module of their concept: {', '.join(sorted(small - SMALL))}"


def test_the_domain_is_pure() -> None:
    outside = imports_outside("domain", third_party=THIRD_PARTY_OF_DOMAIN)
    assert not outside, "\n".join(outside)


def test_the_client_needs_nothing_of_the_service() -> None:
    outside = imports_outside("client", third_party=THIRD_PARTY_OF_CLIENT)
    assert not outside, "\n".join(outside)


def test_leaves_import_only_leaves() -> None:
    for leaf in LEAVES:
        path = ROOT / "app" / f"{leaf}.py"
        parts = {part_of(name) for name in imports_of(path) if name.startswith("app")}
        assert parts <= LEAVES, f"app.{leaf} imports {parts - LEAVES}"


@pytest.mark.server  # it imports all of the web service, which takes three processor seconds
def test_the_web_service_starts_without_packages_that_few_requests_need() -> None:
    program = "import app.main, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {"fastapi", "cel"} <= set(done.stdout.split())
    assert not {"alembic", "altair", "authlib", "prompt_toolkit", "segno", "typer", "vl_convert"} & set(
        done.stdout.split()
    )


def test_the_help_of_the_command_line_imports_no_client_of_the_network() -> None:
    program = "import app.cli, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "argparse" in done.stdout.split()
    assert not {"fastapi", "httpx2", "numpy", "pydantic", "sqlalchemy"} & set(done.stdout.split())


def test_a_class_name_means_one_thing() -> None:
    modules: dict[str, list[str]] = {}
    for path in MODULES:
        for name in re.findall(r"^ *class (\w+)", path.read_text(), re.MULTILINE):
            modules.setdefault(name, []).append(name_of(path))
    assert {name: used for name, used in modules.items() if len(used) > 1} == {}


VAGUE_NAMES = {
    *("one", "found", "known", "told", "held", "kept", "said", "made"),
    *("somebody", "nobody", "whoever", "people", "doorbell", "bell", "duel", "reign", "glimpse"),
}
VAGUE_ENDINGS = ("Given", "By", "Said", "Told", "Held", "Made", "Asked", "Beside", "Teller", "Glimpse", "Reign")


def vague_names(tree: ast.Module) -> Iterator[Any]:
    """Yield the nodes that define a vague name, except the fields of classes."""
    fields = set()
    for node in ast.walk(tree):  # a class comes before its fields
        if isinstance(node, ast.ClassDef):
            fields |= {id(field.target) for field in node.body if isinstance(field, ast.AnnAssign)}
            name = node.name
            if name.endswith(VAGUE_ENDINGS):
                yield node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            name = node.name
        elif isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in fields:
            name = node.id
        else:
            continue
        if name.strip("_") in VAGUE_NAMES:
            yield node


def test_a_name_is_a_noun_of_the_glossary() -> None:
    """Check variables, parameters, functions and classes. Fields of values stay: the API or the database shows them."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:60]}"
        for path in [*MODULES, *sorted((ROOT / "bench").rglob("*.py"))]
        for node in vague_names(ast.parse(path.read_text()))
    ]
    assert wrong == []


SENTENCES = {"detail", "sentence", "reason", "message", "headline", "because"}
READS_SENTENCES = {
    "app.storage.runs",  # values that version 0.1 stored, with their parts inside the detail
    "app.domain.verdict.comparison_words",  # the case of a sentence's first letter
}


def test_no_fact_is_parsed_out_of_a_sentence() -> None:
    parses = {"startswith", "endswith", "partition", "rpartition", "split", "removeprefix", "removesuffix"}
    wrong = []
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in parses:
                text = node.func.value
                name = text.id if isinstance(text, ast.Name) else text.attr if isinstance(text, ast.Attribute) else ""
                if name in SENTENCES and name_of(path) not in READS_SENTENCES:
                    wrong.append(f"{name_of(path)}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_no_two_functions_are_the_same() -> None:
    places: dict[str, list[str]] = {}
    for path in MODULES:
        lines = path.read_text().split("\n")
        for node in ast.walk(ast.parse("\n".join(lines))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[ast.get_docstring(node, clean=False) is not None :][:1]
                body = [line.strip() for line in lines[first[0].lineno - 1 : node.end_lineno]] if first else []
                if len(body) >= 5:
                    places.setdefault("\n".join(body), []).append(f"{name_of(path)}.{node.name}")
    assert [names for names in places.values() if len(names) > 1] == []


def test_templates_wrap_at_120_columns() -> None:
    """djlint leaves a long sentence or expression on its line, so this is checked here."""
    wrong = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in TEMPLATES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 120
    ]
    assert wrong == []


def test_templates_lie_in_the_folder_of_the_package_that_renders_them() -> None:
    named = re.compile(r'"([\w/]+\.html)"')
    rendered = {
        (name, path.relative_to(ROOT / "app").parts[0])
        for path in (ROOT / "app").rglob("*.py")
        for name in re.findall(r'"(\w+/\w+\.html)"', path.read_text())
    }
    assert {(name, package) for name, package in rendered if name.split("/")[0] != package} == set()
    files = {path.relative_to(ROOT / "templates").as_posix(): path.read_text() for path in TEMPLATES}
    included = {name for text in files.values() for name in named.findall(text)}
    loaded = {f"components/{name}.html" for name in ("ui", "figures", "runs")}  # web/templating.py
    assert set(files) - included - loaded == {name for name, _ in rendered} - included
