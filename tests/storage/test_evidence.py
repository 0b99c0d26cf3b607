"""Evidence about suspects: A/Bs on the same knob, and other stacks with the same change."""

from datetime import timedelta
from typing import Any

import pytest
from sqlmodel import Session, select

from app.domain.verdict.evidence import (
    MOVES,
    RankedSuspect,
    alternating_runs,
    no_likelier,
    of_job_that_alternates,
    without_likely,
)
from app.overview.queries import needs_attention
from app.regressions.bisect import read_bisect_ends
from app.regressions.pages import RegressionView
from app.regressions.suspects import SuspectingJob, suspect_cards
from app.runs.queries import get_run
from app.storage.regressions import get_regression
from app.storage.setbacks import setbacks_of
from app.storage.suspect_evidence import cause_of, suspects_with_evidence, within_regression
from app.storage.tables import RegressionMemberRow, RegressionRow, RunRow
from app.storage.upgrade_changes import upgrade_changes
from app.storage.verdicts import current_verdict
from tests.builders import FIRST_PLACE, make_stack

KNOWN = {"cluster": "west", "pp_layout": "even", "attention": "flash"}
NOISE = (0.0, 2.0, -2.0, 1.0, -1.0, 3.0, 1.0, -2.0)
LATER = FIRST_PLACE + timedelta(days=8)
DAY = timedelta(days=1)


def nightly(session: Session, ms: float = 400.0, **fields: Any) -> list[int]:
    """Eight nights of one stack that vary by 0.2 %; each night has the same commit in all stacks."""
    commits = [f"{night:040x}" for night in range(1, 9)]
    return make_stack(session, [ms * (1 + item / 1000) for item in NOISE], fields=KNOWN | fields, commits=commits)


LAST = f"{8:040x}"
"""Commit of the last nightly run."""


def one_more(session: Session, ms: float, *, day: int = 0, commit: str = "f" * 40, **more: Any) -> int:
    columns = {name: more.pop(name) for name in ("purpose", "quarantine", "peak_memory_gib", "job") if name in more}
    started = LATER + day * DAY
    return make_stack(session, [ms], fields=KNOWN | more, commits=[commit], started=started, **columns)[0]


def suspects(session: Session, run_id: int) -> dict[str, RankedSuspect]:
    verdict = current_verdict(session, run_id)
    assert verdict is not None
    return {item.suspect.field: item for item in suspects_with_evidence(session, run_id, verdict.document)}


def test_other_stacks_at_the_same_commit_speak_for_or_against_the_code(session: Session) -> None:
    for length in (2048, 4096, 8192):
        nightly(session, seq_len=length)
    slow = [one_more(session, 440.0, seq_len=length) for length in (2048, 4096)]
    one_more(session, 400.0, seq_len=8192)
    commit = suspects(session, slow[0])["commit"]
    assert commit.elsewhere is not None
    assert [move.run for move in commit.elsewhere.moved] == [str(slow[1])]
    assert [(len(commit.elsewhere.of(move)), move) for move in ("slower", "faster", "same", "inconclusive")] == [
        (1, "slower"), (0, "faster"), (1, "same"), (0, "inconclusive"),
    ]  # fmt: skip
    assert commit.evidence[0] == "Other stacks with the same change: 1 slower, 1 the same."


def test_a_stack_that_moved_inside_the_range_of_commits_counts(session: Session) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length)
    earlier = one_more(session, 440.0, day=1, commit="e" * 40, seq_len=4096)
    slow = one_more(session, 440.0, day=2, commit="f" * 40, seq_len=2048)
    commit = suspects(session, slow)["commit"]
    assert commit.elsewhere is not None
    assert [move.run for move in commit.elsewhere.moved] == [str(earlier)]
    assert commit.support == "supported"
    before = one_more(session, 440.0, day=3, commit="d" * 40, seq_len=4096)
    assert str(before) not in [move.run for move in commit.elsewhere.moved]


def test_past_a_bs_on_the_knob_support_it_in_both_directions(session: Session) -> None:
    nightly(session, seq_len=2048)
    nightly(session, seq_len=4096, ep_overlap=True)
    one_more(session, 440.0, seq_len=2048, ep_overlap=True, purpose="experiment")
    one_more(session, 364.0, seq_len=4096, ep_overlap=False, purpose="experiment")
    nightly(session, seq_len=8192)
    slow = one_more(session, 440.0, seq_len=8192, ep_overlap=True)
    knob = suspects(session, slow)["ep_overlap"]
    assert knob.past is not None
    assert (knob.past.n, len(knob.past.stacks)) == (2, 2)
    assert knob.past.median_pct == pytest.approx(10.0, abs=0.3)
    assert knob.past.low_pct <= knob.past.median_pct <= knob.past.high_pct
    assert knob.support == "supported"
    assert knob.evidence[0].startswith("Median of 2 A/Bs on 2 stacks: 9.9")


def test_reruns_are_one_a_b_and_a_quarantined_run_does_not_count(session: Session) -> None:
    nightly(session, seq_len=2048)
    for day in range(3):
        one_more(session, 440.0, day=day, seq_len=2048, ep_overlap=True, purpose="experiment")
    one_more(
        session,
        500.0,
        day=3,
        commit="c" * 40,
        seq_len=2048,
        ep_overlap=True,
        purpose="experiment",
        quarantine="bad node",
    )
    nightly(session, seq_len=8192)
    slow = one_more(session, 440.0, seq_len=8192, ep_overlap=True)
    past = suspects(session, slow)["ep_overlap"].past
    assert past is not None
    assert past.n == 1


def test_an_a_b_without_effect_speaks_against_the_knob(session: Session) -> None:
    nightly(session, seq_len=2048)
    one_more(session, 400.0, seq_len=2048, ep_overlap=True, purpose="experiment")
    nightly(session, seq_len=8192)
    slow = one_more(session, 440.0, seq_len=8192, ep_overlap=True)
    result = suspects(session, slow)
    assert result["ep_overlap"].support == "unlikely"
    assert list(result)[-1] == "ep_overlap"


@pytest.mark.parametrize("alternates", [False, True])
def test_a_job_that_alternates_between_two_levels_does_not_count_for_others(
    session: Session, *, alternates: bool
) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length)
    slow, other = (one_more(session, 440.0, seq_len=length, job="pretrain") for length in (2048, 4096))
    for day in range(1, 5):
        ms = 400.0 if alternates and day % 2 else 440.0
        one_more(session, ms, seq_len=4096, job="pretrain", day=day, commit=f"{day}" * 40)
    code = suspects(session, slow)["commit"]
    assert code.elsewhere is not None
    runs = [[move.run for move in moves] for moves in (code.elsewhere.moved, code.elsewhere.alternating)]
    assert runs == ([[], [str(other)]] if alternates else [[str(other)], []])
    assert ("1 of them alternates" in code.evidence_text) is alternates


def test_an_upgrade_is_supported_by_other_stacks_that_it_slowed_down(session: Session) -> None:
    for length in (2048, 4096, 8192):
        nightly(session, seq_len=length)
    moved = [one_more(session, 440.0, seq_len=n, container="train:2", commit=LAST) for n in (2048, 4096, 8192)]
    container = suspects(session, moved[0])["container"]
    assert container.elsewhere is not None
    assert len(container.elsewhere.moved) == 2
    assert container.support == "supported"
    assert container.past is None, "an upgrade of another stack is no A/B"


def test_the_evidence_for_an_upgrade_is_the_tally_of_its_report_and_a_mixed_one_clears_it_not(session: Session) -> None:
    after = {2048: 440.0, 4096: 360.0, 8192: 360.0, 16384: 400.0, 1024: 400.0, 512: 400.0}
    for length in after:
        nightly(session, seq_len=length)
    slow, *_ = [one_more(session, ms, seq_len=length, container="train:2") for length, ms in after.items()]
    container = suspects(session, slow)["container"]
    (upgrade,) = upgrade_changes(session)
    assert container.elsewhere is not None
    for move in MOVES:
        of_report = {str(job.run_id) for job in upgrade.of(move)} - {str(slow)}
        assert {item.run for item in container.elsewhere.of(move)} == of_report, move
    assert len(container.elsewhere.of("faster")) == 2
    assert container.support == "open"


def test_the_tally_of_an_upgrade_names_the_gpus_where_they_differ(session: Session) -> None:
    after = {("H100", 2048): 440.0, ("H100", 4096): 440.0, ("B200", 8192): 360.0}
    for gpu, length in after:
        nightly(session, gpu=gpu, seq_len=length)
    slow, *_ = [
        one_more(session, ms, gpu=gpu, seq_len=length, container="train:2") for (gpu, length), ms in after.items()
    ]
    container = suspects(session, slow)["container"]
    assert container.evidence[0] == "Other jobs with the same change: 1 slower (H100), 1 faster (B200)."


def test_a_regression_of_several_jobs_counts_all_of_them_once(session: Session) -> None:
    for length in (2048, 4096, 8192):
        nightly(session, seq_len=length)
    moved = [one_more(session, 440.0, seq_len=n, container="train:2", commit=LAST) for n in (2048, 4096, 8192)]
    jobs = [SuspectingJob([suspects(session, run)["container"]], run, "f" * 40, None) for run in moved]
    (card,) = suspect_cards(jobs, "", may_plan=False)
    assert (card.evidence, card.level) == (("Jobs with the same change: 3 slower.",), 2)


def test_code_that_was_slow_in_another_container_before_ends_its_range_there(session: Session) -> None:
    for number in nightly(session):
        session.get_one(RunRow, number).job = "pretrain"
    session.flush()
    one_more(session, 440.0, commit="e" * 40, container="train:2", job="pretrain")
    slow = one_more(session, 440.0, day=1, job="pretrain")
    one_more(session, 441.0, day=1, job="pretrain")
    commit = suspects(session, slow)["commit"]
    difference = commit.suspect.difference
    assert difference is not None
    assert [side.value for side in (difference.a, difference.b) if side] == [f"{8:040x}", "e" * 40]
    assert (commit.bad, commit.ends_earlier) == ("f" * 40, True)
    assert read_bisect_ends(session, slow).bad == "e" * 40
    numbers = session.execute(select(RegressionMemberRow.regression_id).where(RegressionMemberRow.run_id == slow))
    view = RegressionView(session, numbers.scalar_one())
    assert [(row.before, row.slow_commit) for row in view.jobs] == [(f"{8:040x}", "e" * 40)]
    assert view.regression.cause == "Code: 00000000 → eeeeeeee."


def test_an_earlier_run_after_the_upgrade_that_was_not_slow_makes_it_unlikely(session: Session) -> None:
    nightly(session)
    fast = one_more(session, 402.0, container="train:2", commit="e" * 40)
    session.get_one(RunRow, fast).is_steady = False  # no baseline, but not slow
    session.flush()
    slow = one_more(session, 480.0, day=1, container="train:2")
    ranked = suspects(session, slow)
    container, code = ranked["container"], ranked["commit"].suspect.difference
    assert (container.support, container.unaffected) == ("unlikely", (fast,))
    assert container.evidence[0] == f"1 earlier run with it was not affected: #{fast}."
    assert code is not None
    assert [side.value for side in (code.a, code.b) if side] == ["e" * 40, "f" * 40], "the code since that run"


def test_an_undecided_change_names_the_commits_of_the_compared_runs(session: Session) -> None:
    nightly(session)
    unsteady = one_more(session, 390.0, container="train:2", commit="e" * 40)
    session.get_one(RunRow, unsteady).is_steady = False
    session.flush()
    undecided = one_more(session, 404.0, day=1, container="train:2")
    code = suspects(session, undecided)["commit"].suspect.difference
    assert code is not None
    assert [side.value for side in (code.a, code.b) if side] == [f"{8:040x}", "f" * 40]


def test_an_unsteady_run_clears_an_upgrade_of_more_memory(session: Session) -> None:
    nightly(session)
    usual = one_more(session, 402.0, container="train:2", commit="e" * 40)
    session.get_one(RunRow, usual).is_steady = False
    session.flush()
    heavy = one_more(session, 401.0, day=1, container="train:2", peak_memory_gib=70.0)
    verdict = current_verdict(session, heavy)
    assert verdict is not None
    ranked = suspects_with_evidence(session, heavy, verdict.document, "peak_memory_gib")
    assert [(item.suspect.field, item.support, item.unaffected) for item in ranked] == [
        ("commit", "open", ()), ("container", "unlikely", (usual,)),
    ]  # fmt: skip
    assert (ranked[0].is_likely, ranked[0].cleared) == (True, ("container",))


def test_jobs_whose_code_changed_with_an_upgrade_are_evidence_for_both_equally(session: Session) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length)
    moved = [one_more(session, 440.0, seq_len=length, container="train:2") for length in (2048, 4096)]
    result = suspects(session, moved[0])
    assert {name: (item.support, item.is_likely, item.beside) for name, item in result.items()} == {
        "container": ("open", False, "code"), "commit": ("open", False, "container"),
    }  # fmt: skip
    jobs = [SuspectingJob([*suspects(session, run).values()], run, "f" * 40, None) for run in moved]
    assert [(card.field, card.level, card.beside) for card in suspect_cards(jobs, "", may_plan=False)] == [
        ("container", 1, "code"), ("commit", 1, "container"),
    ]  # fmt: skip


def test_jobs_that_an_upgrade_slowed_at_different_commits_support_it_alone(session: Session) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length)
    slow = one_more(session, 440.0, seq_len=2048, container="train:2", commit="e" * 40)
    one_more(session, 400.0, day=1, seq_len=4096, commit="e" * 40)
    one_more(session, 440.0, day=2, seq_len=4096, container="train:2")
    result = suspects(session, slow)
    assert {name: (item.is_likely, item.beside) for name, item in result.items()} == {
        "container": (True, ""), "commit": (False, ""),
    }  # fmt: skip


def test_without_evidence_a_suspect_is_likely_only_if_nothing_else_changed(session: Session) -> None:
    nightly(session)
    slow = one_more(session, 440.0)
    assert [item.is_likely for item in suspects(session, slow).values()] == [False], "one launch is unconfirmed"
    one_more(session, 441.0)
    assert [item.is_likely for item in suspects(session, slow).values()] == [True]
    upgraded = suspects(session, one_more(session, 440.0, day=1, commit="e" * 40, container="train:2"))
    assert {name: item.is_likely for name, item in upgraded.items()} == {"container": False, "commit": False}


def test_the_overview_names_the_likely_suspect_that_the_page_shows_first(session: Session) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length)
    one_more(session, 440.0, day=1, commit="e" * 40, seq_len=4096)
    slow = one_more(session, 440.0, day=2, commit="f" * 40, seq_len=2048)
    run = session.get_one(RunRow, slow)
    regression = RegressionRow(
        project_id=run.project_id, kind="run", cause_key="upgrade:container:x", metric="step_time_ms",
        cause="Upgrade of the container: a → b.", opened_at=LATER, changed_at=LATER,
    )  # fmt: skip
    session.add(regression)
    session.flush()
    session.add(
        RegressionMemberRow(
            regression_id=regression.id, run_id=slow, stack_key=run.stack_key, config_key=run.config_key,
            joined_at=LATER,
        )
    )  # fmt: skip
    session.flush()
    assert suspects(session, slow)["commit"].support == "supported"
    causes = [item.cause for item in needs_attention(session, "").items]
    assert causes
    assert all(cause.startswith("Code: ") for cause in causes), causes
    bisected = RegressionView(session, regression.id or 0).bisected
    assert bisected is not None
    assert bisected.job.first.run_id == slow


@pytest.mark.parametrize(("other_ms", "label", "level"), [(400.0, "unlikely", 0), (404.0, "possible", 1)])
def test_one_stack_that_did_not_move_makes_a_suspect_unlikely_and_an_undecided_one_possible(
    session: Session, other_ms: float, label: str, level: int
) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length)
    slow = one_more(session, 440.0, seq_len=2048)
    one_more(session, 441.0, seq_len=2048)  # the rerun that confirms it
    one_more(session, other_ms, seq_len=4096)
    commit = suspects(session, slow)["commit"]
    assert commit.label == label
    (card,) = suspect_cards([SuspectingJob([commit], slow, "f" * 40, None)], "", may_plan=False)
    assert (card.label, card.level, card.evidence) == (label, level, commit.evidence)


def test_one_of_three_stacks_that_did_not_move_clears_nothing(session: Session) -> None:
    lengths = (2048, 4096, 8192, 16384)
    for length in lengths:
        nightly(session, seq_len=length)
    slow = one_more(session, 440.0, seq_len=2048)
    for length, step_time in zip(lengths[1:], (400.0, 404.0, 404.0), strict=True):
        one_more(session, step_time, seq_len=length)
    commit = suspects(session, slow)["commit"]
    assert commit.elsewhere is not None
    assert [len(commit.elsewhere.of(move)) for move in ("same", "inconclusive")] == [1, 2]
    assert commit.support == "open"


def test_a_suspect_in_fewer_than_half_of_the_slow_jobs_is_not_their_likely_cause(session: Session) -> None:
    nightly(session)
    slow = one_more(session, 440.0)
    one_more(session, 441.0)
    commit = suspects(session, slow)["commit"]
    jobs = [SuspectingJob(ranked, slow, "f" * 40, None) for ranked in ([commit], [commit], [])]
    cards = {n: suspect_cards(jobs[-n:], "", may_plan=False)[0] for n in (2, 3)}
    assert {n: (card.label, card.level) for n, card in cards.items()} == {2: ("possible", 1), 3: ("likely", 2)}


def test_the_shortest_range_of_commits_is_that_of_the_regression_on_its_page_and_in_its_cause(session: Session) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length)
    one_more(session, 400.0, commit="e" * 40, seq_len=4096)
    slow = [one_more(session, 440.0, day=1, seq_len=length) for length in (2048, 4096)]
    commits = [suspects(session, run)["commit"] for run in slow]
    assert commits[0].good_at < commits[1].good_at
    for order in (commits, commits[::-1]):
        jobs = [SuspectingJob([commit], run, "f" * 40, None) for commit, run in zip(order, slow, strict=True)]
        (card,) = suspect_cards(jobs, "", may_plan=False)
        assert (card.before, card.jobs) == ("e" * 8, 2)


def test_the_node_of_a_job_that_alternates_is_suspected_before_the_code(session: Session) -> None:
    nightly(session)
    slow = one_more(session, 440.0)
    one_more(session, 441.0)
    plain = suspects(session, slow)["commit"]
    (commit,) = of_job_that_alternates([plain], (400.0, 440.0))
    assert (commit.label, "400" in commit.evidence[0]) == ("unlikely", True)
    (node,) = suspect_cards([SuspectingJob([commit], slow, "f" * 40, None)], "", may_plan=False)
    assert alternating_runs([(slow, [commit])]) == {slow: (400.0, 440.0)}
    assert (node.axis, node.label) == ("place", "possible")
    assert node.action is not None
    assert node.action[1] == f"/runs/{slow}?tab=why#rerun"
    assert node.evidence[-1] == f"#{slow} does not state its node."
    jobs = [SuspectingJob([item], slow, "f" * 40, None, "dgx[07-08]") for item in (commit, plain)]
    stated, code = suspect_cards(jobs, "", may_plan=False)
    assert stated.evidence[-1] == f"#{slow} ran on dgx[07-08]."
    assert code.axis == "code", "another job that does not alternate names it"


def test_a_job_that_alternates_is_to_be_rerun_on_other_nodes_not_bisected(session: Session) -> None:
    nightly(session)
    slow = one_more(session, 440.0, job="pretrain")
    (first,) = setbacks_of(session, get_run(session, slow)).taken.values()
    assert "isect" in first.title
    for day in range(1, 5):
        one_more(session, 400.0 if day % 2 else 440.0, job="pretrain", day=day, commit=f"{day}" * 40)
    setbacks = setbacks_of(session, get_run(session, slow))
    (first,) = setbacks.taken.values()
    assert first.title == "Rerun the job on other nodes"
    assert not setbacks.facts["regression_bisect"]
    assert setbacks.facts["regression_undo"] == "Rerun the job on other nodes."


def test_all_texts_about_a_regression_name_the_shortest_range_of_commits(session: Session) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length)
    one_more(session, 400.0, commit="e" * 40, seq_len=4096)
    early, late = [one_more(session, 440.0, day=1, seq_len=length) for length in (2048, 4096)]
    ranked = {run: tuple(suspects(session, run).values()) for run in (early, late)}

    def commits(run: int, metric: str = "step_time_ms") -> tuple[list[str], int]:
        (code, *_), bisected = within_regression(session, run, metric, ranked[run])
        difference = code.suspect.difference
        assert difference is not None
        return [str(side.value) for side in (difference.a, difference.b) if side], bisected

    last_nightly, good, bad = f"{8:040x}", "e" * 40, "f" * 40
    assert commits(early) == commits(late) == ([good, bad], late)
    assert commits(early, "peak_memory_gib") == ([last_nightly, bad], early), "no regression of this metric"
    doubtful = without_likely(ranked[early])
    assert within_regression(session, early, "step_time_ms", doubtful) == (doubtful, early)
    assert ranked[early][0].is_likely
    assert [item.is_likely for item in no_likelier(ranked[early], without_likely(ranked[late]))] == [False]
    assert no_likelier(ranked[early], ()) == ranked[early], "its regression has no such suspect"


def test_fewer_than_half_of_the_other_stacks_do_not_support_a_cause(session: Session) -> None:
    for length in (2048, 4096, 8192):
        nightly(session, seq_len=length)
    slow = [one_more(session, 440.0, seq_len=length) for length in (2048, 4096)]
    # Its night differs by too little to say whether it moved.
    one_more(session, 404.0, seq_len=8192)
    commit = suspects(session, slow[0])["commit"]
    assert commit.elsewhere is not None
    assert [len(commit.elsewhere.of(move)) for move in ("slower", "inconclusive")] == [1, 1]
    assert commit.support == "open"


def test_a_bs_that_disagree_support_nothing(session: Session) -> None:
    for length, ms in ((2048, 440.0), (4096, 440.0), (1024, 360.0)):
        nightly(session, seq_len=length)
        one_more(session, ms, seq_len=length, ep_overlap=True, purpose="experiment")
    nightly(session, seq_len=8192)
    slow = one_more(session, 440.0, seq_len=8192, ep_overlap=True)
    knob = suspects(session, slow)["ep_overlap"]
    assert knob.past is not None
    assert (knob.past.n, knob.past.slower, knob.support) == (3, 2, "open")


def test_a_version_counts_where_other_verdicts_have_the_same_difference(session: Session) -> None:
    for length in (2048, 4096, 8192):
        nightly(session, seq_len=length, driver="570.1")
    slow = [one_more(session, 440.0, seq_len=length, driver="580.2") for length in (2048, 4096)]
    one_more(session, 440.0, seq_len=8192, driver="590.3")
    driver = suspects(session, slow[0])["driver"]
    assert driver.elsewhere is not None
    assert [move.run for move in driver.elsewhere.moved] == [str(slow[1])]


def test_nothing_known_is_not_evidence(session: Session) -> None:
    nightly(session)
    slow = one_more(session, 440.0)
    commit = suspects(session, slow)["commit"]
    assert (commit.past, commit.elsewhere, commit.evidence, commit.support) == (None, None, (), "open")
    assert session.get_one(RunRow, slow).verdict == "regression"


def test_undecided_stacks_are_not_counted_as_stacks_that_did_not_move(session: Session) -> None:
    for length in (2048, 4096, 8192):
        nightly(session, seq_len=length)
    slow = one_more(session, 440.0, seq_len=2048)
    for length in (4096, 8192):
        one_more(session, 404.0, seq_len=length)
    commit = suspects(session, slow)["commit"]
    assert commit.elsewhere is not None
    assert [move.move for move in commit.elsewhere.moves] == ["inconclusive"] * 2


def test_the_only_field_that_differs_is_not_called_the_only_difference_when_the_code_differs_too(
    session: Session,
) -> None:
    nightly(session, dispatch_sms=20)
    slow = one_more(session, 440.0, dispatch_sms=24)
    assert suspects(session, slow)["dispatch_sms"].suspect.reason == (
        "The only contract field known to differ; the code differs as well."
    )


def test_an_unlikely_cause_is_not_stated_by_the_api_or_any_page(session: Session) -> None:
    for length in (2048, 4096):
        nightly(session, seq_len=length, permute_fusion=True)
    slow = one_more(session, 440.0, seq_len=2048, permute_fusion=False)
    one_more(session, 400.0, seq_len=4096, permute_fusion=True)
    named = {name: item.support for name, item in suspects(session, slow).items()}
    assert named == {"permute_fusion": "open", "commit": "unlikely"}
    run = session.get_one(RunRow, slow)
    code = RegressionRow(
        project_id=run.project_id, kind="run", metric="step_time_ms", cause="Code: a → b.", cause_key="code:f",
        opened_at=LATER, changed_at=LATER,
    )  # fmt: skip
    session.add(code)
    session.flush()
    session.add(
        RegressionMemberRow(
            regression_id=code.id, run_id=slow, stack_key=run.stack_key, config_key=run.config_key, joined_at=LATER
        )
    )
    session.flush()
    expected = "Recipe: permute_fusion on → off (commit unlikely)."
    assert get_regression(session, code.id or 0).cause == expected
    assert cause_of(session, code) == expected
    assert [item.cause for item in needs_attention(session, "").items if item.id == code.id] == [expected]
    assert RegressionView(session, code.id or 0).bisected is None, "the code is not the first suspect"
