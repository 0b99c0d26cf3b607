"""The documents name everything that the code decides."""

from pathlib import Path

from app.domain.contract.fields import FIELDS, METRICS
from app.domain.contract.values import KNOWN_MODELS
from app.domain.definitions import DEFINITIONS
from app.domain.performance.flops import PEAKS
from app.domain.run import EvidenceLevel, SemanticClass
from tests.cases import every_case

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


def test_the_glossary_tells_the_role_and_choices_of_a_field() -> None:
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
