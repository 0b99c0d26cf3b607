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


def test_every_folder_of_the_readme_s_tree_exists() -> None:
    tree = re.search(r"```\n(app/.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert tree is not None
    folder = ROOT
    for line in tree[1].splitlines():
        name = line.split()[0]
        if not line.startswith(" "):
            folder = ROOT / name
        assert (folder if not line.startswith(" ") else folder / name).exists(), line


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
