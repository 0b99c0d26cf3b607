"""Small rules and rule books for tests."""

from app.domain.rules.load import load_texts
from app.domain.rules.rule import RuleBook
from app.domain.rules.run_facts import RunReading
from app.domain.run import RunSummary

SOURCES = 'M-arg: {title: "Arguments", where: "https://example.org/arguments.py", date: "2026-08-22"}'
GOOD = """
- id: scale-vpp-small
  phase: scale
  wall: none
  kind: blocker
  title: A virtual pipeline needs stages
  when: vpp != null && vpp > 1 && pp == 1
  why: "VPP {vpp} has no effect with PP {pp}."
  change: {text: Raise PP or drop VPP., set: {vpp: null}}
  verify: The launch passes validation.
  sources: [M-arg]
  valid: "2026-08"
  confidence: high
  examples: {fires: {vpp: 2, pp: 1}, silent: {vpp: null, pp: 1}, asks: {vpp: 2}}
"""


def scale_book(text: str) -> RuleBook:
    return load_texts({"scale": text}, SOURCES)


def rule(
    name: str, when: str, more: str = "", *, kind: str = "candidate", phase: str = "retune", wall: str = "none"
) -> str:
    return f"""
- id: {name}
  phase: {phase}
  wall: {wall}
  kind: {kind}
  title: {name}
  when: '{when}'
  why: because
  verify: look
  sources: [M-arg]
  valid: "2026-08"
  confidence: high
  examples: {{}}
  {more or "change: {text: do it}"}
"""


def book(*rules: str) -> RuleBook:
    return load_texts({"all": "".join(rules)}, SOURCES)


def reading_of(summary: RunSummary, **more: object) -> RunReading:
    """The reading of a processed run; `more` are fields of RunReading that a summary lacks."""
    return RunReading(
        contract=summary.contract,
        metrics=summary.metrics,
        health=summary.health,
        steady=summary.steady_state,
        timers=summary.timers,
        failures=summary.failures,
        activity=summary.activity,
        availability=summary.availability,
        unknown=summary.unknown,
        trainer=summary.trainer,
        semantic_class=summary.semantic_class,
        evidence_level=summary.evidence_level,
        fair_for_timing=summary.fair_for_timing,
        **more,
    )
