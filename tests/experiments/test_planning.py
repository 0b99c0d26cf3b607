"""What a plan holds: the one knob, the candidate's key, how many runs, in which order, and what to paste."""

import json
import shlex

import pytest
from sqlalchemy import Engine

from app.domain.experiments.plan import tagged, upload_command
from app.errors import InvalidChange, NotFound
from app.storage import audit
from app.storage.database import read_session
from app.storage.tables import RunRow
from tests.experiments.planned import PROJECT, add_runs, make_baseline, make_history, plan, read


def test_a_plan_from_a_suggestion_turns_its_one_knob(engine: Engine) -> None:
    make_history(engine)
    run = make_baseline(engine)
    found = read(engine, plan(engine, run))
    assert (found.state, found.rule_id, found.project, found.created_by) == ("planned", "eo-enable", PROJECT, "mara")
    assert [(one.field, one.before, one.after) for one in found.knobs] == [("ep_overlap", False, True)]
    assert found.tag == f"exp-eo-enable-{run}"
    assert [(one.run_id, one.side, one.joined_by, one.counts) for one in found.runs] == [
        (run, "baseline", "plan", True)
    ]
    sides = list(found.sequence)
    assert sides[:4] == ["baseline", "candidate", "candidate", "baseline"][: len(sides)]
    assert sides.count("baseline") == sides.count("candidate") == found.runs_each
    assert found.plan.verify
    assert ("container", "nvcr.io/nvidia/nemo:26.06") in found.plan.hold
    with read_session(engine) as session:
        assert [one.action for one in audit.events(session, "experiment", found.id)] == ["plan"]


def test_the_candidates_key_is_that_of_the_run_that_follows_the_plan(engine: Engine) -> None:
    found = read(engine, plan(engine, make_baseline(engine)))
    (run,) = add_runs(engine, "no tag of ours", [31_000.0], side="")
    (turned,) = add_runs(engine, "no tag of ours", [25_000.0])
    with read_session(engine) as session:
        assert session.get_one(RunRow, run).config_key == found.baseline_key
        assert session.get_one(RunRow, turned).config_key == found.candidate_key


def test_the_spread_is_that_of_the_series_where_it_is_known(engine: Engine) -> None:
    run = make_baseline(engine)
    sizing = read(engine, plan(engine, run)).plan.sizing
    assert (sizing.spread_from, sizing.spread_runs, sizing.spread_pct) == ("default", 0, pytest.approx(1.5))
    make_history(engine)
    known = read(engine, plan(engine, run)).plan.sizing
    assert (known.spread_from, known.spread_runs) == ("series", 8)
    assert known.spread_pct < 1
    assert known.runs_each < sizing.runs_each
    assert known.smallest_pct <= known.effect_pct == 2


def test_what_to_paste_is_the_runs_own_command_with_and_without_the_change(engine: Engine) -> None:
    found = read(engine, plan(engine, make_baseline(engine)))
    (commands,) = (one for one in found.plan.change.commands if one.trainer == "Megatron-LM")
    assert commands.diff == ("+ --overlap-moe-expert-parallel-comm",)
    assert "--overlap-moe-expert-parallel-comm" in commands.candidate
    assert "--overlap-moe-expert-parallel-comm" not in commands.baseline
    assert "0123456789abcdef" not in commands.baseline + commands.candidate
    meta = tagged(found.plan.meta["candidate"], found.tag, "candidate")
    assert meta["tags"] == [found.tag, "candidate"]
    assert (meta["purpose"], meta["project"], meta["gpu"]) == ("experiment", PROJECT, "H100")
    words = shlex.split(upload_command(meta, "http://here"))
    assert words[-1] == "http://here/api/v1/runs"
    assert json.loads(words[words.index("-F", 4) + 1].removeprefix("meta=")) == meta


def test_an_idea_of_ones_own_needs_no_rule(engine: Engine) -> None:
    found = read(engine, plan(engine, make_baseline(engine), knobs={"ep_overlap": "true", "dispatcher": "deepep"}))
    assert {one.field: (one.before, one.after) for one in found.knobs} == {
        "ep_overlap": (False, True),
        "dispatcher": ("alltoall", "deepep"),
    }
    assert found.title == "ep_overlap: false to true, dispatcher: alltoall to deepep"
    assert any("cannot be attributed" in text for text in found.plan.warnings)
    assert "--moe-flex-dispatcher-backend deepep" in found.plan.change.commands[0].add


@pytest.mark.parametrize(
    ("knobs", "field"),
    [
        ({"no_such_field": 1}, "knobs.no_such_field"),
        ({"ep_overlap": "perhaps"}, "knobs.ep_overlap"),
        ({"seq_len": 8192}, "knobs.seq_len"),
        ({"gpus": 32}, "knobs.gpus"),
        ({"ep_overlap": False}, "knobs"),
    ],
)
def test_what_is_no_knob_is_refused_by_its_name(engine: Engine, knobs: dict[str, object], field: str) -> None:
    run = make_baseline(engine)
    with pytest.raises(InvalidChange) as refused:
        plan(engine, run, knobs=knobs)
    assert field in [one.field for one in refused.value.errors]


def test_a_rule_that_does_not_fire_or_is_none_plans_nothing(engine: Engine) -> None:
    run = make_baseline(engine)
    with pytest.raises(NotFound):
        plan(engine, run, "no-such-rule")
    with pytest.raises(InvalidChange, match="does not fire"):
        plan(engine, make_baseline(engine, 31_311.0, fields={"ep_overlap": True}))
    quarantined = make_baseline(engine, 31_312.0, quarantine="a bad node")
    with pytest.raises(InvalidChange, match="quarantined"):
        plan(engine, quarantined)


def test_tags_are_unique_in_a_project(engine: Engine) -> None:
    run = make_baseline(engine)
    first, second = (read(engine, plan(engine, run)) for _ in range(2))
    assert second.tag == f"{first.tag}-2"


def test_a_person_may_choose_the_number_of_runs_or_the_effect(engine: Engine) -> None:
    run = make_baseline(engine)
    assert read(engine, plan(engine, run, runs_each=3)).runs_each == 3
    large = read(engine, plan(engine, run, effect_pct=10.0))
    assert (large.runs_each, large.plan.sizing.needed) == (2, 2)
    for wrong in ({"runs_each": 21}, {"effect_pct": 0.5}):
        with pytest.raises(InvalidChange):
            plan(engine, run, **wrong)
