"""The rules are those of the founding papers, and no change that they propose breaks a launch."""

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from app.domain.rules.change import change_of
from app.domain.rules.engine import Evaluation, evaluate
from app.domain.rules.load import built_in_rules
from app.domain.rules.rule import Facts, Kind
from tests.cases import every_case
from tests.shared_papers import SHARED, shared_file, shared_folder

# --- Nothing that the founding documents say is missing from the rules, nor any rule of the fact base.

COVERAGE: Mapping[str, Mapping[str, list[str]]] = yaml.safe_load(
    (Path(__file__).parent / "coverage.yaml").read_text(encoding="utf-8")
)
_ID = re.compile(
    r"\b(?:contract|fit|scale|disp|eo|ov|cg|prec|comp|host|profile|val|nsys|vlm)(?:-[a-z0-9]+)*-(?:[a-z0-9]+|\*)"
)
_ROW = re.compile(r"\| (?P<id>[a-z0-9-]+) \| (?P<phase>\w+) \| (?P<wall>\w+) \| (?P<next>[^|]*) \|")
_ENTRY = re.compile(r"\*\*(?P<id>[a-z0-9-]+)\*\* \| (?P<phase>\w+) \| (?P<wall>\w+) \|")
LEAST = 114
"""Rules that trace to the founding documents."""


def _named(words: list[str]) -> set[str]:
    """The rules that a list of names and patterns stands for; a name without a rule stands for itself."""
    rules = built_in_rules().rules
    keys: set[str] = set()
    for word in words:
        matches = {name for name, rule in rules.items() if rule.kind == "candidate" and fnmatch(name, word)}
        keys |= matches or {word}
    return keys


def test_a_statement_of_the_founding_documents_has_its_rules() -> None:
    with every_case() as case:
        for document, statement in [(name, row) for name, rows in COVERAGE.items() for row in rows]:
            with case((document, statement)):
                missing = _named(COVERAGE[document][statement]) - set(built_in_rules().rules)

                assert missing == set()


def test_all_rules_that_trace_to_the_founding_documents_are_there() -> None:
    traced = _named([word for rows in COVERAGE.values() for words in rows.values() for word in words])

    assert len(traced & set(built_in_rules().rules)) >= LEAST


def _section(start: str, end: str) -> str:
    text = shared_file("KNOWLEDGE.md").read_text(encoding="utf-8")
    return text.split(start)[1].split(end)[0]


def test_every_rule_that_the_fact_base_traces_is_traced_here() -> None:
    covered = set(_ID.findall(_section("# G. Coverage", "# H. ")))
    ours = {word for rows in COVERAGE.values() for words in rows.values() for word in words}

    assert {word for word in covered - ours if "*" not in word} == set()
    assert {word for word in covered - ours if _named([word]) - _named(list(ours))} == set()


@pytest.mark.parametrize(
    ("start", "end", "kind"),
    [
        ("## C.1", "## C.2", "blocker"),
        ("## C.2", "## C.3", "warning"),
        ("## C.3", "## C.4", None),
        ("## C.4", "# D. ", "candidate"),
    ],
)
def test_every_rule_of_the_fact_base_is_built_in_with_its_phase_wall_and_kind(
    start: str, end: str, kind: Kind | None
) -> None:
    rules = built_in_rules().rules
    wanted = {}
    for line in _section(start, end).splitlines():
        if (row := _ROW.match(line) or _ENTRY.match(line)) and row["id"] != "id":
            wanted[row["id"]] = (row["phase"], row["wall"], kind or row["next"])
    got = {name: (rules[name].phase, rules[name].wall, rules[name].kind) for name in wanted if name in rules}

    assert len(wanted) > 20
    assert got == wanted


# --- Rules of tuning as a whole: what the papers list is there, and no change that a rule proposes breaks a launch.

CONFIDENCE = {"H": "high", "M": "medium", "L": "low"}
_CANDIDATE = re.compile(r"^\*\*([a-z0-9-]+)\*\* \| (\w+) \| (\w+) \| (\w)(?:\([^)]*\))? \| ([\d-]+)", re.MULTILINE)
TUNING = [rule for rule in built_in_rules().rules.values() if rule.kind in ("candidate", "sizing", "warning", "gate")]
BASE: Facts = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "tp": 1, "pp": 1, "cp": 1, "ep": 16, "etp": 1}


def test_every_candidate_of_the_papers_is_here_as_they_have_it() -> None:
    shared_folder("corpus")
    paper = (SHARED / "KNOWLEDGE.md").read_text()
    section = paper[paper.index("## C.4 Candidates") : paper.index("# D. Contradictions")]
    listed = {
        name: (phase, wall, CONFIDENCE[level], valid) for name, phase, wall, level, valid in _CANDIDATE.findall(section)
    }

    rules = {rule.id: rule for rule in built_in_rules().rules.values() if rule.kind == "candidate"}
    properties = {name: (rule.phase, rule.wall, rule.confidence, rule.valid) for name, rule in rules.items()}

    assert len(listed) == 80
    assert {name: properties.get(name) for name in listed} == listed


def test_a_proposed_change_brings_no_blocker() -> None:
    with every_case() as case:
        for rule in TUNING:
            with case(rule.id):
                for example in rule.examples.fires:
                    before = evaluate(example, built_in_rules())
                    after = evaluate(changed(example, before, rule.id), built_in_rules())

                    assert blockers(after) - blockers(before) == set()


def test_a_change_of_fields_can_be_pasted() -> None:
    with every_case() as case:
        for rule in TUNING:
            with case(rule.id):
                example = rule.examples.fires[0]
                evaluation = evaluate(example, built_in_rules())
                suggestion = evaluation.find(rule.id)
                assert suggestion is not None

                diff = change_of(suggestion, evaluation.facts)

                for framework in (diff.megatron_lm, diff.bridge):
                    assert "{" not in framework.paste
                if set(suggestion.set) - set(diff.already) - {"data_mode"}:
                    assert diff.megatron_lm.paste or diff.megatron_lm.remove or diff.bridge.paste


def test_with_a_flex_backend_installed_dispatchers_come_before_overlap() -> None:
    facts = {**BASE, "dispatcher": "alltoall", "ep_overlap": False, "exposed_comm_frac": 0.3}

    with_one = order(evaluate({**facts, "installed_flex_backends": ["hybridep"]}, built_in_rules()))
    with_none = order(evaluate({**facts, "installed_flex_backends": []}, built_in_rules()))

    assert with_one.index("disp-ab-hopper") < with_one.index("eo-enable")
    assert "disp-ab-hopper" not in with_none
    assert "eo-enable" in with_none


def test_nothing_is_retuned_without_a_profile_but_the_bring_up_goes_on() -> None:
    evaluation = evaluate({**BASE, "dispatcher": None, "steps_done": 0, "graph_impl": "none"}, built_in_rules())

    retune = [
        suggestion.rule.id
        for suggestion in evaluation.suggestions
        if suggestion.rule.phase == "retune" and suggestion.rule.kind == "candidate"
    ]
    assert retune == ["disp-alltoall-first"]


def test_memory_that_suffices_asks_for_no_recomputation() -> None:
    facts = {**BASE, "oom": False, "mem_alloc_peak_gb": 40.0, "recompute_granularity": "none"}

    suggested = order(evaluate(facts, built_in_rules()))

    assert [name for name in suggested if name.startswith("fit-rc") or name == "fit-selective-first"] == []


def order(evaluation: Evaluation) -> list[str]:
    return [suggestion.rule.id for suggestion in evaluation.suggestions]


def blockers(evaluation: Evaluation) -> set[str]:
    return {blocker.rule.id for blocker in evaluation.blockers}


def changed(facts: Facts, evaluation: Evaluation, rule: str) -> dict[str, object]:
    """The facts after the change of a rule; what follows from them is worked out anew, unless the facts state it."""
    suggestion = evaluation.find(rule)
    assert suggestion is not None
    new = dict(facts) | {name: list(v) if isinstance(v, tuple) else v for name, v in suggestion.set.items()}
    if suggestion.set.keys() & {"dispatcher", "dispatcher_type"}:
        for name in {"dispatcher", "dispatcher_type", "flex_backend"} - suggestion.set.keys():
            new.pop(name, None)
    env = facts.get("env")
    new["env"] = {**(env if isinstance(env, dict) else {}), **suggestion.env}
    return new
