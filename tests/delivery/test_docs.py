"""The documents say what the program does: settings, targets, commands, links."""

import re
import subprocess
from pathlib import Path

from app.settings import Settings
from tests.cases import every_case

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 120
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *(ROOT / "docs").glob("*.md"),
]
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_setting_stands_in_the_settings_document() -> None:
    rows = (ROOT / "docs/settings.md").read_text().splitlines()
    with every_case() as case:
        for name, field in Settings.model_fields.items():
            default = f"`{field.default}`" if field.default != "" else "empty"
            if name == "data_dir":
                default = "`data/` in the checkout, or in `~/.local/share/threewalls` for an installed wheel"
            with case(name):
                assert f"| `THREEWALLS_{name.upper()}` | {default} | {field.description} |" in rows


def test_every_make_command_is_a_target() -> None:
    with every_case() as case:
        for document in DOCUMENTS:
            with case(document):
                commands = re.findall(r"(?:^|`|&& )make ([a-z-]+)", document.read_text(), re.MULTILINE)
                assert set(commands) <= MAKE_TARGETS


def test_the_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_every_link_inside_the_project_leads_somewhere() -> None:
    with every_case() as case:
        for document in DOCUMENTS:
            with case(document):
                for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", document.read_text()):
                    assert (document.parent / target).exists(), target


def test_documents_wrap_at_the_width_of_code() -> None:
    """A table's row is one line, whatever stands in it."""
    wrong = [
        f"{document.name}:{number}: {len(line)} characters"
        for document in DOCUMENTS
        for number, line in enumerate(document.read_text().splitlines(), start=1)
        if len(line) > WIDTH and not line.lstrip().startswith("|")
    ]
    assert wrong == []


def test_the_tree_of_contributing_equals_app() -> None:
    """`app/` and `app/domain/` are listed entry by entry: folders, and modules other than `__init__`."""
    tree = re.search(r"```\n(app/\n.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert tree is not None
    lines = tree[1].splitlines()[1:]
    top = {line.split()[0] for line in lines if re.match(r" {2}\S", line)}
    domain = {line.split()[0] for line in lines if re.match(r" {4}\S", line)}
    assert len(top) + len(domain) == len(lines)
    assert top == entries(ROOT / "app")
    assert domain == entries(ROOT / "app/domain")


def entries(folder: Path) -> set[str]:
    """Return the packages (with a slash) and modules of a package."""
    packages = {f"{path.parent.name}/" for path in folder.glob("*/__init__.py")}
    return packages | {path.name for path in folder.glob("*.py")} - {"__init__.py"}


def test_every_path_that_contributing_names_exists() -> None:
    """`FEATURE` stands for any folder, `*` for any name."""
    paths = re.findall(r"`((?:app|tests|templates|bench|\.ci)/[^`\s]*)`", (ROOT / "CONTRIBUTING.md").read_text())
    assert len(paths) > 20
    with every_case() as case:
        for path in paths:
            with case(path):
                assert list(ROOT.glob(path.replace("FEATURE", "*").rstrip("/"))) or (ROOT / f"{path}.py").exists()


def test_the_index_lists_every_document() -> None:
    listed = re.findall(r"^\| \[([a-z-]+\.md)\]", (ROOT / "docs/README.md").read_text(), re.MULTILINE)
    assert sorted([*listed, "README.md"]) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


def test_no_example_tests_exit_codes_in_the_shell_or_waits_without_saying_what_is_allowed() -> None:
    """`|| [ $? -ge 4 ]` is true for 127 and 137; and a first run, which has no baseline, must fail no job."""
    examples = [*DOCUMENTS, *(ROOT / ".github").rglob("*.yml"), *(ROOT / "docs/ci").iterdir()]
    wrong = []
    for path in examples:
        text = path.read_text().replace("\\\n", " ")
        wrong += [f"{path.name}: {line}" for line in text.splitlines() if re.search(r"^[^`]*\|\| \[ *\$\?", line)]
        jobs = re.findall(r"```(?:sh|yaml|groovy)\n.*?```", text, re.DOTALL) if path == ROOT / "docs/ci.md" else [text]
        lines = [line for job in jobs for line in job.splitlines()]
        wrong += [
            f"{path.name}: {line}"
            for line in lines
            if re.search(r"^ *[^|`#]*threewalls upload .*--wait(?! --allow)", line)
        ]
    assert wrong == []


def test_no_tracked_file_names_a_package_index() -> None:
    subprocess.run([ROOT / ".ci/no-index-host"], check=True, timeout=300)
