"""The documents match the program: settings, commands, links, metrics, tested threats."""

import ast
import re
import subprocess
from pathlib import Path

from app.domain.contract.fields import FIELDS, METRICS
from app.domain.contract.values import KNOWN_MODELS
from app.domain.definitions import DEFINITIONS
from app.domain.performance.flops import PEAKS
from app.domain.run import EvidenceLevel, SemanticClass
from app.settings import Settings
from tests.cases import every_case
from tests.test_language import MOST_WORDS_OF_A_LEAD

ROOT = Path(__file__).resolve().parents[2]
WIDTH = 120
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *(ROOT / "docs").glob("*.md"),
]
MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_setting_is_in_the_settings_document() -> None:
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


def test_make_accepts_every_target_and_finds_the_campaigns() -> None:
    with every_case() as case:
        for target in sorted(MAKE_TARGETS):
            with case(target):
                dry_run = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
                assert dry_run.returncode == 0, dry_run.stderr
                assert target != "soak" or "tests/soak/test_samples.py" in dry_run.stdout


def test_the_readme_names_its_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text


def test_every_link_inside_the_project_leads_somewhere() -> None:
    """Files exist, and so do the headings that links into documents name."""
    headings = {document.resolve(): anchors(document.read_text()) for document in DOCUMENTS}
    with every_case() as case:
        for document in DOCUMENTS:
            with case(document):
                for target, anchor in re.findall(
                    r"\]\((?!https?://|mailto:)([^)#\s]*)#?([^)\s]*)\)", document.read_text()
                ):
                    path = (document.parent / target).resolve() if target else document.resolve()
                    assert path.exists(), target
                    assert not anchor or path not in headings or anchor in headings[path], f"{target}#{anchor}"


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a document."""
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", plain, re.MULTILINE)
    }


def test_documents_wrap_at_the_width_of_code() -> None:
    """A table row is one line, regardless of its content."""
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


def test_each_document_begins_with_a_short_lead_that_names_its_readers() -> None:
    """`/help/{name}` shows this paragraph below the title."""
    with every_case() as case:
        for path in (ROOT / "docs").glob("*.md"):
            with case(path.name):
                lead = path.read_text().split("\n\n")[1]
                assert path.name == "README.md" or lead.startswith("For ")
                assert len(lead.split()) <= MOST_WORDS_OF_A_LEAD


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


DOCS = Path(__file__).resolve().parents[2] / "docs"
GLOSSARY = (DOCS / "glossary.md").read_text()
METRICS_PAGE = (DOCS / "metrics.md").read_text()
TERMS = (
    "Run", "Series", "Contract", "Source", "Unknown", "Unset", "Stack key", "Config key", "Provisional",
    "Warm-up", "Steady state", "Short", "Spike", "Baseline", "Verdict", "Regression", "Matched A/B",
    "Evidence level", "Evidence strength", "Eligibility", "Requested", "active", "Segment", "History position",
    "Slice", "Fair for timing", "Failure", "Semantic class", "Outcome", "Availability", "Dispatcher", "Rule",
    "Suggestion", "Experiment", "Reference point", "Claim check", "Scaling", "Efficiency", "Pairwise comparison",
    "Unranked result", "Standing", "Leadership period", "Notification", "Assignee", "User",
)  # fmt: skip


def test_each_field_and_figure_has_a_line_in_the_glossary() -> None:
    with every_case() as case:
        for name in [*FIELDS, *METRICS]:
            with case(name):
                assert f"| `{name}` |" in GLOSSARY


def test_the_glossary_lists_the_role_and_choices_of_a_field() -> None:
    with every_case() as case:
        for name in FIELDS:
            with case(name):
                line = next(line for line in GLOSSARY.splitlines() if line.startswith(f"| `{name}` |"))
                assert line.split("|")[2].strip() == FIELDS[name].role
                assert all(f"`{choice}`" in line for choice in FIELDS[name].choices)


def test_each_term_is_defined() -> None:
    with every_case() as case:
        for term in TERMS:
            with case(term):
                assert f"**{term}**" in GLOSSARY


def test_each_figure_and_badge_is_explained() -> None:
    with every_case() as case:
        for word in [*METRICS, *EvidenceLevel.__args__, *SemanticClass.__args__[:2]]:
            with case(word):
                assert f"`{word}`" in METRICS_PAGE


def test_the_table_of_peaks_is_that_of_the_code() -> None:
    for gpu, peaks in PEAKS.items():
        cells = [f"{peaks[name]:g}" if name in peaks else "" for name in ("BF16", "FP8", "NVFP4")]
        assert f"| {gpu} | {' | '.join(cells)} |".replace("|  |", "| |") in METRICS_PAGE


def test_the_table_of_definitions_is_that_of_the_code() -> None:
    for rule, version in DEFINITIONS.items():
        assert f"| `{rule}` | {version} |" in METRICS_PAGE


def test_known_models_have_different_outlines() -> None:
    outlines = {(m.layers, m.hidden, m.heads, m.experts, m.topk) for m in KNOWN_MODELS}
    assert len(outlines) == len(KNOWN_MODELS)


NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows() -> list[str]:
    section = (ROOT / "docs/security.md").read_text().partition("## Threats")[2]
    return [line for line in section.splitlines() if line.startswith("| ")][1:]


def functions_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_threat_names_an_existing_test() -> None:
    assert len(rows()) > 15
    for row in rows():
        named = NAMED.findall(row)
        assert named, row
        for file, name in named:
            assert name in functions_of(ROOT / file), f"{file}::{name}"


def test_every_file_of_attacks_belongs_to_a_threat() -> None:
    named = {file for row in rows() for file, _ in NAMED.findall(row)}
    here = {str(file.relative_to(ROOT)) for file in (ROOT / "tests/hardening").glob("test_*.py")}
    assert here <= named
