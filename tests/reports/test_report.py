"""The report as a CI job receives it: the comment on a change, and the same as JSON."""

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session
from starlette.testclient import TestClient

from app.domain.contract.fields import FIELDS
from app.domain.numbers import THIN
from app.domain.verdict.document import UNCONFIRMED
from app.storage.tables import ProjectRow, RegressionMemberRow, RegressionRow, RunResultRow, RunRow
from app.storage.verdicts import keep_alarms
from tests.builders import make_run
from tests.profiles.attaching import attached, trace
from tests.reports.judged import Lab, nightly
from tests.runs.uploading import assert_problem

EVIL = "x | `rm` <img src=x onerror=alert(1)> [a](javascript:b) @everyone #12 !7 https://evil.example\n# head"


@pytest.fixture
def lab(client: TestClient, engine: Engine) -> Iterator[Lab]:
    with Session(engine, expire_on_commit=False) as session:
        yield Lab(session)


def comment(client: TestClient, lab: Lab, run_id: int) -> list[str]:
    lab.session.commit()
    answer = client.get(f"/api/v1/runs/{run_id}/report.md")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/markdown; charset=utf-8"
    return answer.text.splitlines()


def as_json(client: TestClient, lab: Lab, run_id: int) -> dict[str, Any]:
    lab.session.commit()
    document: dict[str, Any] = client.get(f"/api/v1/runs/{run_id}/report").json()
    return document


def test_line_1_is_the_verdict_line_2_the_baseline_then_what_moved_then_a_link(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow = lab.run(slower=0.09, name="nightly slow")
    lab.judge(slow)
    lines, document = comment(client, lab, slow), as_json(client, lab, slow)
    headline = document["headline"].replace(THIN, " ")
    assert headline == "slower, unconfirmed · 9.4 % slower: 437.4 ms, was 399.9 ms."
    assert lines[0] == f"**↗ {headline}**  "
    assert [part in lines[1] for part in ("12 runs", "run 1,", "8 more")] == [True] * 3
    assert lines[4] == "| --- | ---: | ---: | ---: | ---: | --- |"
    assert lines[3].count("|") == lines[5].count("|") == 7
    cells = lines[5].strip("| ").split(" | ")
    assert cells == ["Step time", "399.9 ms", "437.7 ms", "+9.4 %", "+6.7 % to +12.3 % at 99 %", UNCONFIRMED]
    assert document["rerun"]["runs"] == 1
    assert f"threewalls rerun {slow} --exec CMD" in lines[7]
    assert lines[9] == "<details><summary>1 suspect</summary>"
    assert lines[-5:-1] == ["</details>", "", f"[nightly slow (run {slow})](http://testserver/runs/{slow})", ""]
    assert lines[-1].startswith("Next step: [")


def test_every_report_begins_as_the_page_of_its_run(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    runs = [lab.run(slower=0.09), lab.run(slower=0.0, commit="same"), lab.run({"dispatcher": "deepep"}, slower=0.2)]
    runs += [lab.run({"container": "train:2026.10"}, slower=0.2), lab.run({"seq_len": 8192})]
    for run_id in runs:
        lab.judge(run_id)
        headline = as_json(client, lab, run_id)["headline"].replace("`", "")
        page = client.get(f"/runs/{run_id}").text
        (answer,) = re.findall(r'<p class="answer[^>]*>(.*?)</p>', page, re.DOTALL)
        lead = html.unescape(re.sub(r"<[^>]+>", "", answer)).strip()
        assert headline.endswith(lead.removeprefix("Inconclusive: "))
        badge = headline.removesuffix(lead.removeprefix("Inconclusive: ")).removesuffix(" · ")
        assert f"{badge}\n" in re.sub(r"<[^>]+>|  +", "\n", page)
        assert client.get(f"/api/v1/runs/{run_id}/verdict").json()["reason"].replace("`", "") == lead


@pytest.mark.parametrize(("slower", "asks"), [(0.016, True), (0.0, False)])
def test_a_run_that_a_rerun_would_decide_begins_with_the_rerun(
    client: TestClient, lab: Lab, slower: float, asks: bool
) -> None:
    nightly(lab)
    run_id = lab.run(slower=slower)
    lab.judge(run_id)
    document = as_json(client, lab, run_id)
    assert (document["verdict"]["need_runs"] in (1, 2, 3)) == asks
    page, next_steps = client.get(f"/runs/{run_id}").text, client.get(f"/runs/{run_id}/next").text
    assert (f'<a class="button primary" href="/runs/{run_id}?tab=why#rerun">Rerun</a>' in page) == asks
    assert (f'<a class="button primary" href="/runs/{run_id}?tab=why#rerun">Rerun</a>' in next_steps) == asks
    assert (document["next_step"]["rule"] == "val-rerun") == asks


def test_an_unsteady_run_in_another_container_begins_with_the_rerun(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    run_id = lab.run({"container": "train:2026.10"}, slower=0.2, steady=False)
    lab.judge(run_id)
    document = as_json(client, lab, run_id)
    assert document["headline"].startswith("slower, unconfirmed · 22.2")
    assert document["next_step"]["rule"] == "val-rerun"
    assert 'id="rerun"' in client.get(f"/runs/{run_id}?tab=why").text


def test_a_report_says_that_the_stated_gpu_cannot_be_right(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    run_id = lab.run()
    lab.judge(run_id)
    assert not any("contradicts itself" in line for line in comment(client, lab, run_id))
    result = lab.session.get_one(RunResultRow, run_id)
    peak = result.metrics["peak_memory_gib"] | {"value": 222.2, "ci_low": 222.2, "ci_high": 222.2}
    result.metrics = result.metrics | {"peak_memory_gib": peak}
    lines = [line for line in comment(client, lab, run_id) if "contradicts itself" in line]
    assert len(lines) == 1
    assert "peak 222.2 GiB, H100 has 80 GiB" in lines[0]


def test_a_report_names_each_run_that_does_not_count_once(client: TestClient, lab: Lab) -> None:
    nightly(lab, 6)
    apart = lab.run(slower=0.5)
    slow = lab.run(slower=0.09)
    lab.judge(slow)
    report = as_json(client, lab, slow)
    assert str(apart) in [item["run"] for item in report["verdict"]["baseline"]["left_out"]]
    assert "".join(comment(client, lab, slow)).count(f"run {apart}:") == 1
    assert not any(str(apart) in note.split() for note in report["verdict"]["notes"])
    verdict = client.get(f"/api/v1/runs/{slow}/verdict").json()
    shared = report["verdict"].keys() & verdict.keys()
    assert {name: report["verdict"][name] for name in shared - {"rerun"}} == {
        name: verdict[name] for name in shared - {"rerun"}
    }


def test_what_did_not_move_is_not_in_the_table(client: TestClient, lab: Lab) -> None:
    nightly(lab, 20)
    same = [lab.run(commit="same") for _ in range(8)]
    lab.judge(*same)
    lines = comment(client, lab, same[0])
    assert lines[0].startswith("**= no change · As fast as before")
    assert "No figure changed." in lines
    assert not any(line.startswith("|") for line in lines)


def test_the_same_as_values(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow = lab.run(slower=0.09)
    lab.judge(slow, because="It is new.")
    report = as_json(client, lab, slow)
    assert (report["schema"], report["status"], report["exit_code"]) == ("threewalls.report/1", "judged", 1)
    assert report["headline"].startswith("slower, unconfirmed · 9.4")
    assert report["because"] == "It is new."
    assert report["verdict"]["metrics"]["step_time_ms"]["decision"] == "regression"
    assert report["verdict"]["suspects"][0]["field"] == "commit"
    assert report["moved"][0]["figure"] == "Step time"
    assert report["what_changed"]["commit_range"]["first"] == "0000000baaaa"
    assert report["run"]["address"] == f"http://testserver/runs/{slow}"


def test_commits_are_linked_by_the_templates_of_the_project(client: TestClient, lab: Lab) -> None:
    nightly(lab, 3, commit="feature/a b")
    slow = lab.run(slower=0.2, commit="0f3c2a9d11")
    lab.judge(slow)
    project = lab.session.get_one(ProjectRow, 1)
    project.commit_url = "https://git.example/moe/commit/{commit}"
    project.compare_url = "https://git.example/moe/compare/{from}...{to}"
    text = "\n".join(comment(client, lab, slow))
    assert "([feature/..0f3c2a9d](https://git.example/moe/compare/feature%2Fa%20b...0f3c2a9d11))" in text
    assert "[0f3c2a9d](https://git.example/moe/commit/0f3c2a9d11)" in text


def test_a_knob_that_was_turned_is_named_with_its_axis(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow = lab.run({"dispatcher": "deepep"}, slower=0.2, commit="same")
    lab.judge(slow)
    lines = comment(client, lab, slow)
    assert lines[1].endswith("dispatcher, or about the code)")
    assert lines[lines.index("**Changed: recipe**") + 2] == "- dispatcher: alltoall → deepep"


def test_an_experiment_is_an_a_b(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow = lab.run({"dispatcher": "deepep"}, slower=0.2, purpose="experiment")
    lab.judge(slow)
    document = as_json(client, lab, slow)
    assert (document["verdict"]["comparability"]["kind"], document["exit_code"]) == ("matched_ab", 0)
    assert comment(client, lab, slow)[0].startswith("**↗ A/B slower · 22.2")


def test_no_baseline_names_the_nearest_misses_and_measures_a_contrast(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    moved = lab.run({"container": "train:2026.10"}, slower=0.2)
    lab.judge(moved)
    lines, document = comment(client, lab, moved), as_json(client, lab, moved)
    assert document["verdict"]["verdict"] == "no_baseline"
    assert lines[0].startswith("**◌ 22.2")
    assert [part in lines[0] for part in ("container train:2026.09", "22.2 % slower")] == [True, True]
    assert "12 runs (run 1, run 2" in lines[1]
    assert all(part in lines[1] for part in ("container (train:2026.09 → train:2026.10)", "commit (0000000b"))
    assert [suspect["field"] for suspect in document["verdict"]["suspects"]] == ["container", "commit"]
    text = "\n".join(lines)
    assert "| worse |" in text
    assert "**Closest runs**" in text
    assert "regression" not in text
    assert as_json(client, lab, moved)["exit_code"] == 4


def test_a_contrast_on_one_commit_belongs_to_its_field_and_one_of_two_commits_has_two_suspects(
    client: TestClient, lab: Lab
) -> None:
    nightly(lab, commit="same")
    moved = lab.run({"container": "train:2026.10"}, slower=0.2, commit="same")
    lab.judge(moved)
    suspects = as_json(client, lab, moved)["verdict"]["suspects"]
    assert [suspect["field"] for suspect in suspects] == ["container"]
    lab.records.pop()
    other = lab.run({"container": "train:2026.10"}, slower=0.2, commit="other")
    lab.judge(other)
    assert [suspect["field"] for suspect in as_json(client, lab, other)["verdict"]["suspects"]] == [
        "container",
        "commit",
    ]


def test_a_ci_run_of_another_commit_is_not_a_clean_a_b(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow = lab.run({"dispatcher": "deepep"}, slower=0.2)
    lab.judge(slow)
    assert [suspect["field"] for suspect in as_json(client, lab, slow)["verdict"]["suspects"]] == [
        "dispatcher",
        "commit",
    ]
    assert "matched A/B" not in comment(client, lab, slow)[1]


def test_a_first_run_says_that_nothing_came_before_it(client: TestClient, lab: Lab) -> None:
    first = lab.run(quarantined="bad node")
    lab.judge(first)
    assert comment(client, lab, first)[0].startswith("**◌ no baseline")


def test_no_change_has_no_suspects(client: TestClient, lab: Lab) -> None:
    nightly(lab, 20)
    same = [lab.run(commit="same") for _ in range(8)]
    lab.judge(*same)
    report = as_json(client, lab, same[0])["verdict"]
    assert (report["verdict"], report["suspects"]) == ("no_change", [])


def test_a_provisional_verdict_says_what_to_state(client: TestClient, lab: Lab) -> None:
    nightly(lab, 4, fields={"cluster": ...})
    late = lab.run({"cluster": ...}, slower=0.2)
    lab.judge(late)
    lines = comment(client, lab, late)
    (provisional,) = (line for line in lines if line.startswith("Provisional"))
    assert "`cluster`" in provisional


def test_a_comment_names_the_first_of_many_fields_to_state(client: TestClient, lab: Lab) -> None:
    names = [field.name for field in FIELDS.values() if field.role in ("stack", "config")]
    nightly(lab, 4, fields=dict.fromkeys(names, ...))
    late = lab.run(dict.fromkeys(names, ...), slower=0.2)
    lab.judge(late)
    unknown = as_json(client, lab, late)["verdict"]["fields_to_supply"]
    (provisional,) = (line for line in comment(client, lab, late) if line.startswith("Provisional"))
    named = provisional.split(":")[1].split(" and ")[0].split(", ")
    assert named == [f" `{unknown[0]}`", *(f"`{name}`" for name in unknown[1 : len(named)])]
    assert 0 < len(named) < len(unknown)
    assert f"and {len(unknown) - len(named)} more" in provisional


def test_a_failed_run_says_what_failed(client: TestClient, lab: Lab) -> None:
    failed = make_run(
        lab.session,
        status="failed",
        failures=[
            {
                "kind": "deepep_missing",
                "title": "Missing",
                "explanation": "deep_ep is absent.",
                "advice": "Add it.",
            }
        ],
    )
    lines = comment(client, lab, failed)
    assert lines[0].startswith("**✕ failed: ")
    assert any("deep_ep" in line for line in lines)
    document = as_json(client, lab, failed)
    assert (document["status"], document["exit_code"]) == ("failed", 3)


@pytest.mark.parametrize(
    ("status", "says"),
    [("received", "the run is queued"), ("processing", "is being processed"), ("ready", "its verdict is queued")],
)
def test_a_run_that_was_not_judged_is_pending(client: TestClient, lab: Lab, status: str, says: str) -> None:
    run_id = make_run(lab.session, status=status)
    lines = comment(client, lab, run_id)
    assert lines[0].startswith("**… pending: the run")
    assert says in lines[0]
    report = as_json(client, lab, run_id)
    assert (report["status"], report["exit_code"], report["verdict"]) == ("pending", None, None)


def test_the_name_of_a_job_s_reports_is_known_before_it_is_read_and_stays(client: TestClient, lab: Lab) -> None:
    job = {"job": "nightly/perf", "ci_url": "https://ci.example.org/1", "container": "train:2026.10"}

    def key(run_id: int, status: str = "ready", **stated: str) -> str:
        row = lab.session.get_one(RunRow, run_id)
        row.result.metadata_stated = stated
        row.ci_url, row.status = stated.get("ci_url", ""), status
        report_key: str = as_json(client, lab, run_id)["run"]["report_key"]
        return report_key

    first, second, third, fourth, other = (lab.run(name=f"run {number}") for number in range(5))
    assert key(first, "received", **job) == key(first, **job) == "nightly/perf"
    assert key(second, "received", **job) == "nightly/perf #2", "two pending runs of a job do not share one"
    assert key(third, **job | {"ci_url": "https://ci.example.org/2", "container": "train:2026.11"}) == "nightly/perf"
    leg = key(fourth, **job, gpu="B200")
    assert leg.startswith("nightly/perf ")
    assert leg not in ("nightly/perf", "nightly/perf #3"), "the legs of a matrix state what sets them apart"
    assert key(other) == lab.session.get_one(RunRow, other).stack_key[:12]
    assert key(other, "processing") == "", "nobody knows yet what it is"
    lab.session.get_one(RunRow, other).reception = "receiving"
    assert key(other) == "", "its stack is that of what came so far"
    lab.session.get_one(RunRow, other).stack_key = ""
    assert key(other, "failed") == f"run {other}"


def test_a_regression_that_covers_it_is_named(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow, later = lab.run(slower=0.2, commit="bad"), lab.run(slower=0.2, commit="worse")
    lab.judge(slow)
    lab.judge(later)
    row = lab.session.get_one(RunRow, slow)
    regression = RegressionRow(
        project_id=row.project_id, kind="run", cause_key="code:bad", cause="commit bad", metric="step_time_ms",
        assignee="Ada", gpu_hours_per_day=62.0,
    )  # fmt: skip
    lab.session.add(regression)
    lab.session.flush()
    number = regression.id or 0
    lab.session.add(
        RegressionMemberRow(regression_id=number, run_id=slow, stack_key=row.stack_key, config_key=row.config_key)
    )
    keep_alarms(lab.session, {later: {"step_time_ms": number}})
    address = f"[regression {number}](http://testserver/regressions/{number})"
    (line,) = (line for line in comment(client, lab, slow) if line.startswith(f"- {address}, open, opened by"))
    assert all(part in line for part in ("commit bad", "Slow since", "62 GPU-h/day", "Ada"))
    assert any(line.startswith(f"- {address}, open, explains this level") for line in comment(client, lab, later))


def test_untrusted_names_and_values_are_escaped(client: TestClient, lab: Lab) -> None:
    nightly(lab, 4, name=EVIL)
    slow = lab.run({"attention": "a|b<c>@you"}, slower=0.2, name=EVIL)
    lab.judge(slow)
    text = "\n".join(comment(client, lab, slow))
    assert "<img" not in text
    assert "&lt;img" in text
    assert "@everyone" not in text
    assert "@you" not in text
    assert "[a](" not in text
    assert "https://evil" not in text
    assert "#12" not in text
    assert "\n# head" not in text
    assert "a\\|b&lt;c>" in text


def test_a_run_that_is_not_there_is_404(client: TestClient) -> None:
    assert_problem(client.get("/api/v1/runs/7/report.md"), 404, "Run 7 does not exist")
    assert_problem(client.get("/api/v1/runs/7/report"), 404, "Run 7 does not exist")


def test_a_regression_is_explained_by_its_nearest_profiles(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow = lab.run(slower=0.09, name="nightly slow")
    lab.judge(slow)
    lab.session.commit()
    profiles = []
    for run_id, side in ((int(lab.records[0].run), "before"), (slow, "after")):
        profile = attached(client, run_id, trace(f"synthetic/seed-11/pair-{side}"))
        client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"})
        profiles.append(profile["id"])
    explained = as_json(client, lab, slow)["profiled"]
    assert explained["address"].endswith(f"/compare/profiles?a={profiles[0]}&b={profiles[1]}")
    assert "expert dispatch and combine" in explained["sentence"]
    assert any(line.startswith("By profiles: ") for line in comment(client, lab, slow))
    client.delete(f"/api/v1/runs/{slow}/profiles/{profiles[1]}?author=kim")
    assert as_json(client, lab, slow)["profiled"] is None


def test_the_page_of_a_report_shows_copies_and_downloads_the_comment(client: TestClient, lab: Lab) -> None:
    nightly(lab)
    slow = lab.run(slower=0.09, name="<b>night</b>")
    lab.judge(slow)
    lab.session.commit()
    comment_text = client.get(f"/api/v1/runs/{slow}/report.md").text
    page = client.get(f"/runs/{slow}/report")
    assert page.headers["content-type"].startswith("text/html")
    (copied,) = re.findall(r"<code hidden>(.*?)</code>", page.text, re.DOTALL)
    assert html.unescape(copied).split() == comment_text.split()
    (shown,) = re.findall(r"<article[^>]*>(.*?)</article>", page.text, re.DOTALL)
    assert "<table>" in shown
    assert not any(tag in shown for tag in ("<b>", "&lt;details", "**"))
    for address in (f'href="/runs/{slow}"', f'href="/api/v1/runs/{slow}/report.md"'):
        assert address in page.text
    assert f'href="/runs/{slow}/report"' in client.get(f"/runs/{slow}").text
    raw = client.get(f"/runs/{slow}/report", headers={"Accept": "text/markdown"})
    assert (raw.text, raw.headers["content-type"]) == (comment_text, "text/markdown; charset=utf-8")
