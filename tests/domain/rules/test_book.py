"""The rule book: read from its files, sound, documented, within reach of an upload, and open to a team's own files."""

import re
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from app.domain.contract.fields import FIELDS
from app.domain.rules.change import change_of
from app.domain.rules.derive import RULES, derive
from app.domain.rules.engine import Evaluation, evaluate
from app.domain.rules.expression import Expression, FactContext, RuleError
from app.domain.rules.facts import FACTS, SETTINGS
from app.domain.rules.load import FOLDER, KEYS, TeamRules, built_in_rules, load_texts, mistakes, mistakes_of, with_team
from app.domain.rules.load import SOURCES as SOURCES_FILE
from app.domain.rules.rule import Facts, Kind
from app.domain.rules.run_facts import facts_of_pair
from app.domain.rules.stated import STATEABLE, contradictions
from tests.cases import every_case
from tests.domain.rules.builders import GOOD, SOURCES, scale_book
from tests.shared_papers import SHARED, shared_file, shared_folder

# --- Rule files become rules, and every mistake of their form is named by file, rule and key.


def test_a_rule_is_read_with_its_condition_and_change() -> None:
    rule = scale_book(GOOD.replace("vpp: null}}", 'vpp: "= pp * 2"}}')).rules["scale-vpp-small"]

    assert (rule.kind, rule.topic, rule.origin) == ("blocker", "scale", "built-in")
    assert rule.when.names == ("pp", "vpp")
    assert isinstance(rule.change.set["vpp"], Expression)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("phase: scale", "phase: later"), "phase must be one of contract, fit"),
        (("kind: blocker", "kind: idea"), "kind must be one of blocker"),
        (("  verify: The launch passes validation.\n", ""), "lacks verify"),
        (("when: vpp != null", "when: vpp != "), "is not a valid expression"),
        (("verify:", "proof: x\n  verify:"), "a rule has unknown keys: proof"),
        (("text: Raise PP or drop VPP., set", "texts: x, set"), "change has unknown keys: texts"),
    ],
)
def test_a_mistake_of_the_form_names_the_file_and_the_rule(change: tuple[str, str], message: str) -> None:
    with pytest.raises(RuleError, match=r"scale\.yaml:2: scale-vpp-small: .*" + message):
        scale_book(GOOD.replace(*change))


def test_all_errors_are_returned_together() -> None:
    with pytest.raises(RuleError) as error:
        scale_book(GOOD.replace("phase: scale", "phase: later") + GOOD.replace("kind: blocker", "kind: idea"))

    assert len(str(error.value).splitlines()) == 2


def test_each_rule_is_listed_once() -> None:
    with pytest.raises(RuleError, match=r"is already defined in more\.yaml"):
        load_texts({"more": GOOD, "scale": GOOD}, SOURCES)


def test_a_file_that_is_not_yaml_is_named() -> None:
    with pytest.raises(RuleError, match=r"scale\.yaml:2: is not valid YAML"):
        scale_book("- id: [\n")


# --- Every built-in rule is sound: its facts and sources exist, and its examples behave as stated.


def test_a_rule_is_sound_and_its_examples_behave_as_stated() -> None:
    with every_case() as case:
        for name in list(built_in_rules().rules):
            with case(name):
                book = built_in_rules()

                assert mistakes_of(book.rules[name], book) == []


def test_a_rule_file_has_at_most_300_lines() -> None:
    assert [path.name for path in FOLDER.glob("*.yaml") if len(path.read_text().splitlines()) > 300] == []


def test_contradictions_name_rules_and_sources_that_exist() -> None:
    book = built_in_rules()

    assert len(contradictions()) == 34
    for contradiction in contradictions():
        assert set(contradiction.rules) <= book.rules.keys(), contradiction
        assert {*contradiction.older_sources, *contradiction.newer_sources} <= book.sources.keys(), contradiction
        assert contradiction.older
        assert contradiction.newer
        assert contradiction.kept


def test_a_good_rule_has_no_mistakes() -> None:
    assert mistakes(scale_book(GOOD)) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("sources: [M-arg]", "sources: []"), "has no source"),
        (("sources: [M-arg]", "sources: [M-none]"), "M-none is not in sources.yaml"),
        (('valid: "2026-08"', 'valid: "August"'), "`valid` must be a month or a day"),
        (("fires: {vpp: 2, pp: 1}, ", ""), "has no example in which it fires"),
        (("silent: {vpp: null, pp: 1}, ", ""), "has no example in which it stays silent"),
        (("fires: {vpp: 2, pp: 1}", "fires: {vpp: 2, pp: 2}"), "expected fires, but got silent"),
        (("asks: {vpp: 2}", "asks: {vpp: null}"), "expected asks, but got silent"),
        (("pp == 1", "stages == 1"), "names stages, which is not a known fact"),
        (("pp == 1", "has(env.PATH)"), "uses has()"),
        (("when: vpp != null && vpp > 1", "when: vpp > 1.5"), ""),
        (("when: vpp != null && vpp > 1 && pp == 1", "when: vpp * pp"), "instead of true or false"),
        (("PP {pp}", "PP {ppp}"), "uses ppp, which is not a known fact"),
        (("PP {pp}", "TP {tp}"), "`why` uses tp, which is unknown in this example"),
        (("set: {vpp: null}", "set: {vpps: 1}"), "changes vpps, which is not a contract field"),
        (("set: {vpp: null}", "set: {vpp: many}"), "which it does not take"),
        (("title: A virtual pipeline needs stages", "title: Ends with a stop."), "without a full stop"),
        (("id: scale-vpp-small", "id: Small"), "its id must be words with hyphens"),
        (("examples: {fires: {vpp: 2", "examples: {fires: {vppp: 2"), "vppp is not a known fact"),
    ],
)
def test_each_mistake_is_reported(change: tuple[str, str], message: str) -> None:
    text = GOOD.replace(*change)

    assert text != GOOD
    problems = mistakes(scale_book(text))
    assert message in "\n".join(map(str, problems))
    assert problems


# --- Every rule can fire for an upload: its facts come from a log, metadata, a profile, the database or a user.

OF_A_RUN = {
    *("framework", "semantic_class", "evidence_level", "full_length_lacks", "fair_for_timing"),
    *("unknown_fields", "unknown_names"),
    *(
        "is_baseline",
        "steps_done",
        "window",
        "unsteady_because",
        "slow_iterations",
        "slow_start",
        "slow_loss_frac",
        "window_first",
        "window_last",
        "fits",
        "step_s",
        "tokens_s_gpu",
    ),
    *("tflops_gpu", "comm_timer_frac", "failure", "failure_text", "time_from_profile", "headroom_frac"),
}
"""What `run_facts.py` reads from figures, health and activity."""
OF_THE_SERVICE = {
    *("regression_pct", "regression_text", "regression_cause", "regression_undo", "rerun_why"),
    "regression_in_container",
    *("fitted_run", "fitted_differs", "fitted_undo", "fitted_changes", "fitted_peak"),
    *("worked_run", "worked_changes", "worked_undo"),
    *("faster_run", "faster_pct", "faster_low_pct", "faster_high_pct"),
    *("faster_changes", "faster_take", "faster_doubt", "faster_also", "faster_same_code", "faster_in_container"),
    *("record_pct", "record_model", "record_title", "record_changes", "record_take", "record_doubt"),
    *("earlier_wall", "earlier_profile_run", "earlier_changes"),
}
"""What `storage/setbacks.py`, `storage/faster_runs.py` and `pipeline/suggest.py` find in other runs and in records."""
OF_A_PAIR = set(facts_of_pair(["tp"], step_time_pct=1.0, windows=((1, 9), (1, 9)), memory=(frozenset({"a"}),) * 2))
FOLLOWS = {name for name, _ in RULES}
STATED = {*FIELDS, *STATEABLE, *OF_A_RUN, *OF_THE_SERVICE, *OF_A_PAIR, "env"}


def can_be_supplied(name: str) -> bool:
    return name in STATED or name.startswith("env.") or FACTS[name].default is not None


def test_every_rule_fires_on_facts_that_an_upload_can_have() -> None:
    """Derived facts are removed from the examples first, because they must be derived here as well."""
    with every_case() as case:
        for rule in built_in_rules().rules.values():
            with case(rule.id):
                assert any(
                    FactContext(derive(supplied)).ask(rule.when) is True
                    for example in rule.examples.fires
                    if (supplied := {name: value for name, value in example.items() if can_be_supplied(name)})
                )


def test_the_lists_name_facts() -> None:
    assert FACTS.keys() >= OF_A_RUN | OF_THE_SERVICE | OF_A_PAIR
    assert FACTS.keys() >= FOLLOWS


# --- The documentation of the rules names every threshold with its default, and every key of a rule.

DOCS = Path(__file__).resolve().parents[3] / "docs" / "rules.md"


def test_every_threshold_is_documented_with_its_default() -> None:
    text = DOCS.read_text()

    for name, value in SETTINGS.items():
        assert f"| `{name}` | {value:.2f} | {FACTS[name].meaning} |" in text


def test_every_key_of_a_rule_is_documented() -> None:
    text = DOCS.read_text()

    assert [key for key in sorted(KEYS) if f"{key}:" not in text] == []


def test_the_conditions_that_are_shown_are_those_of_the_rules() -> None:
    shown = re.findall(r"^([a-z][\w-]+)\n  CEL     (.*)$", DOCS.read_text(), re.MULTILINE)

    assert len(shown) == 10
    assert {name: built_in_rules().rules[name].when.source for name, _ in shown} == dict(shown)


# --- A team's own rule files: validated, ignored per file, and never replacing a rule by accident.

OURS = GOOD.replace("scale-vpp-small", "ours-vpp-small").replace("M-arg", "wiki-12")
WIKI = 'wiki-12: {title: "Pipeline notes", where: "https://wiki.example/12", date: "2026-09"}\n'


def team(texts: dict[str, str], sources: str = WIKI) -> TeamRules:
    return with_team(built_in_rules(), {**texts, SOURCES_FILE: sources})


def test_a_teams_rules_are_added_to_the_built_in_ones() -> None:
    team_rules = team({"ours.yaml": OURS})

    assert team_rules.mistakes == ()
    assert len(team_rules.book.rules) == len(built_in_rules().rules) + 1
    assert (team_rules.book.rules["ours-vpp-small"].origin, team_rules.book.rules["ours-vpp-small"].line) == ("team", 2)
    assert team_rules.book.sources["wiki-12"].title == "Pipeline notes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OURS.replace("pp == 1", "stages == 1"), "ours.yaml:2: ours-vpp-small: `vpp != null && vpp > 1 && stages"),
        (OURS.replace("[wiki-12]", "[wiki-13]"), "wiki-13 is not in sources.yaml: add it there with title, where and"),
        (OURS.replace("[wiki-12]", "[]"), "has no source: list at least one key"),
        (OURS.replace("fires: {vpp: 2, pp: 1}, ", ""), "has no example in which it fires: add facts under"),
        (OURS.replace("phase: scale", "phase: later"), "phase must be one of contract, fit"),
        (OURS.replace("ours-vpp-small", "scale-sp-needs-tp"), "or replace the rule with `overrides: reason`"),
        (OURS + "  overrides: We know better.\n", "overrides a built-in rule that does not exist"),
        (OURS + OURS, "ours.yaml:16: ours-vpp-small: is already defined in ours.yaml"),
        (OURS.replace('"2026-08"', "2026-02-30"), "ours.yaml:1: is not valid YAML: day is out of range"),
        ("rules:\n  - id: x\n", "ours.yaml:1: must be a list of rules"),
        ("- id: [\n", "ours.yaml:2: is not valid YAML"),
        ("# " + "x" * 1_000_000, "is longer than 1,000,000 characters"),
    ],
)  # fmt: skip
def test_a_file_with_a_mistake_is_left_out_and_says_where_and_why(text: str, message: str) -> None:
    other = OURS.replace("ours-vpp-small", "ours-other")

    team_rules = team({"ours.yaml": text, "other.yaml": other})

    assert message in "\n".join(map(str, team_rules.mistakes))
    assert team_rules.files_left_out == ("ours.yaml",)
    assert {rule.id for rule in team_rules.book.rules.values() if rule.origin == "team"} == {"ours-other"}
    assert team_rules.book.rules["scale-sp-needs-tp"].origin == "built-in"


def test_what_rests_on_a_file_that_is_left_out_is_left_out_too() -> None:
    leading = OURS.replace("ours-vpp-small", "ours-first") + "  unlocks: [ours-vpp-small]\n"

    team_rules = team({"a.yaml": leading, "b.yaml": OURS.replace("phase: scale", "phase: later")})

    assert sorted(team_rules.files_left_out) == ["a.yaml", "b.yaml"]


def test_a_rule_of_the_service_is_replaced_only_with_a_reason() -> None:
    text = OURS.replace("ours-vpp-small", "scale-sp-needs-tp") + "  overrides: Our trainer allows it.\n"

    team_rules = team({"ours.yaml": text})

    assert team_rules.mistakes == ()
    assert (
        team_rules.book.rules["scale-sp-needs-tp"].origin,
        team_rules.book.rules["scale-sp-needs-tp"].overrides,
    ) == (
        "team",
        "Our trainer allows it.",
    )
    assert team_rules.replaced["scale-sp-needs-tp"].origin == "built-in"
    assert len(team_rules.book.rules) == len(built_in_rules().rules)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (WIKI.replace(', date: "2026-09"', ""), "sources.yaml:1: wiki-12: lacks date"),
        (WIKI + 'M-arg: {title: "x", where: "y", date: "z"}', "M-arg: is already a built-in source"),
        ("- wiki", "sources.yaml:1: must map the key of a source"),
        ("{", "sources.yaml:2: is not valid YAML"),
    ],
)
def test_a_wrong_source_is_named_and_the_services_own_are_never_replaced(sources: str, message: str) -> None:
    team_rules = team({"ours.yaml": OURS}, sources)

    assert message in "\n".join(map(str, team_rules.mistakes))
    assert team_rules.book.sources["M-arg"] == built_in_rules().sources["M-arg"]


# --- The rules of the founding papers.

# --- The rules cover every statement of the founding documents and every rule of the fact base.

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
WITHDRAWN = frozenset({"scale-full-product"})
"""Rules of the fact base that a launch cannot decide: a job with DP may have TP x CP x EP x ETP x PP GPUs by chance."""


def _named(words: list[str]) -> set[str]:
    """Return the rules that match a list of names and patterns; a name without a rule matches itself."""
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
        if (row := _ROW.match(line) or _ENTRY.match(line)) and row["id"] not in ("id", *WITHDRAWN):
            wanted[row["id"]] = (row["phase"], row["wall"], kind or row["next"])
    got = {name: (rules[name].phase, rules[name].wall, rules[name].kind) for name in wanted if name in rules}

    assert len(wanted) > 20
    assert got == wanted


# --- The tuning rules as a whole: they cover the lists of the papers, and no proposed change breaks a launch.

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


def test_a_proposed_change_triggers_no_blocker() -> None:
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


def test_sufficient_memory_needs_no_recomputation() -> None:
    facts = {**BASE, "oom": False, "mem_alloc_peak_gb": 40.0, "recompute_granularity": "none"}

    suggested = order(evaluate(facts, built_in_rules()))

    assert [name for name in suggested if name.startswith("fit-rc") or name == "fit-selective-first"] == []


def order(evaluation: Evaluation) -> list[str]:
    return [suggestion.rule.id for suggestion in evaluation.suggestions]


def blockers(evaluation: Evaluation) -> set[str]:
    return {blocker.rule.id for blocker in evaluation.blockers}


def changed(facts: Facts, evaluation: Evaluation, rule: str) -> dict[str, object]:
    """Return the facts after the change of a rule; derived facts are computed again unless stated."""
    suggestion = evaluation.find(rule)
    assert suggestion is not None
    new = dict(facts) | {name: list(v) if isinstance(v, tuple) else v for name, v in suggestion.set.items()}
    if suggestion.set.keys() & {"dispatcher", "dispatcher_type"}:
        for name in {"dispatcher", "dispatcher_type", "flex_backend"} - suggestion.set.keys():
            new.pop(name, None)
    env = facts.get("env")
    new["env"] = {**(env if isinstance(env, dict) else {}), **suggestion.env}
    return new
