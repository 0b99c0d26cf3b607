"""Results of a reading besides figures, as the run's page shows them; the pages of projects; the glossary."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import select
from starlette.testclient import TestClient

from app.domain.contract.fields import FIELDS
from app.domain.performance.failures import failure_lead
from app.domain.run import LogEvidence, Metric, Slice
from app.runs.run_page import TABS, health_rows
from app.storage.database import transaction
from app.storage.tables import AmendmentRow, AvailabilityRow, ProjectRow, RunFileRow, RunRow, SegmentRow
from app.web.docs_pages import terms
from tests.explained import FOLLOWED, OUT_OF_MEMORY, explained

HTML = {"Accept": "text/html"}
HTMX = {"HX-Request": "true"}
TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
TERM_LINK = re.compile(r'ui\.term\("([^"]+)"(?:, "([^"]+)")?\)')

Make = Callable[..., int]


def test_failures_come_before_figures_with_evidence_and_advice(client: TestClient, make: Make) -> None:
    run = make(**explained())
    text = client.get(f"/runs/{run}").text
    assert text.index(OUT_OF_MEMORY.title) < text.index('id="run-tab"')
    assert "iteration 20, rank 3" in text
    assert "<code>mbs</code>" in text
    assert f'href="/runs/{run}?line=61#L61"' in text
    assert "&lt;b&gt;Tried&lt;/b&gt;" in text
    assert text.index(OUT_OF_MEMORY.title) < text.index(FOLLOWED.explanation)
    log = client.get(f"/runs/{run}/log?line=61", headers=HTMX).text
    assert 'id="L61" class="event chosen"' in log


def test_active_values_are_next_to_requested_values(client: TestClient, make: Make) -> None:
    text = client.get(f"/runs/{make(**explained())}?tab=health").text
    badge = "dispatcher: requested deepep, active alltoall"
    assert badge in text[: text.index("</h1>") + 3000]
    table = text[text.index('id="activity"') : text.index("</table>", text.index('id="activity"'))]
    result = re.findall(r'<th scope="row"><code>(\w+)</code>.*?</svg>\s*([a-z ]+)</span>', table, re.DOTALL)
    assert result == [("dispatcher", "differs"), ("precision", "agrees"), ("graph_impl", "not proven")]
    assert "not in log" in table


def test_starts_timers_and_lines_to_report_are_shown(client: TestClient, make: Make) -> None:
    run = make(**explained())
    text = client.get(f"/runs/{run}?tab=iterations").text
    assert "Started 2 times: 1 resume." in text
    names = re.findall(r'<th scope="row">([a-z ]+)</th><td class="number">[\d.]+\u202f%', text)
    assert names == ["forward backward", "forward compute", "optimizer", "batch generator"]
    assert "not fair for timing" in text
    record = client.get(f"/runs/{run}?tab=record").text
    assert "12 lines look like figures" in record
    assert "12 x iteration line: step 7 | expert load &lt;max&gt;: 3.1" in record
    assert "steady state 1, flops 2" in record
    spec = client.get(f"/runs/{run}/timers", headers=HTMX).text
    assert '"timer": "forward backward"' in spec


@pytest.mark.parametrize(
    ("health", "memory"),
    [({}, "3.07"), ({"peak_allocated_gib": 2.5, "peak_reserved_gib": 4.0}, "2.5"), ({"alloc_retries": 2}, "3.07")],
)
def test_peak_memory_of_the_iterations_stands_for_a_report_of_the_log(health: dict[str, Any], memory: str) -> None:
    peak = Metric(3.0749, 3.0749, 3.0749, 1)
    shown = {row.label: row.text for row in health_rows(health, peak)}["Memory"]
    assert shown is not None
    assert re.findall(r"^[\d.]+", shown) == [memory]
    rows = {row.label: row.text for row in health_rows({"outcome": ""}, None)}
    assert (rows["Ended"], rows["Memory"]) == (None, None)


def test_a_crash_loop_is_not_a_resume(client: TestClient, make: Make) -> None:
    loop = [asdict(Slice("a.log", "retry", 1, 3, row, crash_loop=True)) for row in (0, 3, 6)]
    text = client.get(f"/runs/{make(slices=loop)}?tab=iterations").text
    assert "3 starts" in text
    assert text.count("crash loop</span>") == 3


def test_one_start_and_no_findings_leave_no_empty_section(client: TestClient, make: Make) -> None:
    run = make(slices=[asdict(Slice("train.log", "start", 1, 50, 0))])
    text = "".join(client.get(f"/runs/{run}?tab={tab}").text for tab in TABS)
    for section in ("failures", "activity", "slices", "timers", "not-understood", "amendments"):
        assert f'id="{section}"' not in text, section


def test_series_are_chosen_in_groups(client: TestClient, make: Make) -> None:
    text = client.get(f"/runs/{make()}/chart", headers=HTMX).text
    assert re.findall(r'<optgroup label="([^"]+)"', text) == ["Speed", "Loss", "Optimizer", "Batch"]


@pytest.mark.parametrize(
    ("change", "lead"),
    [
        ({}, "Rank 3 ran out of GPU memory after iteration 20."),
        ({"rank": None}, "A GPU ran out of memory after iteration 20."),
        ({"rank": None, "iteration": None}, "A GPU ran out of memory."),
        ({"kind": "not_finite", "title": "NaN", "iteration": 21}, "NaN on rank 3 at iteration 21."),
        ({"kind": "loss_not_finite", "title": "No loss", "rank": None}, "No loss at iteration 20."),
        ({"kind": "hybridep_missing", "title": "No HybridEP", "iteration": None}, "No HybridEP."),
    ],
)
def test_a_failure_comes_after_the_iteration_that_was_printed_before_it(change: dict[str, Any], lead: str) -> None:
    assert failure_lead(replace(OUT_OF_MEMORY, **change), 20) == lead


def test_lines_are_counted_in_their_own_file(client: TestClient, make: Make, engine: Engine) -> None:
    failure = asdict(OUT_OF_MEMORY) | {"evidence": [asdict(LogEvidence(1, 3, "second file"))]}
    run = make(failures=[failure])
    with transaction(engine) as session:
        first = session.exec(select(RunFileRow).where(RunFileRow.run_id == run)).one()
        key = session.exec(select(SegmentRow.object_key).where(SegmentRow.file_id == first.id)).one()
        second = RunFileRow(run_id=run, kind="log", name="rank7.log", position=1, size_bytes=1, sha256="")
        session.add(second)
        session.flush()
        session.add(SegmentRow(file_id=second.id or 0, position=0, size_bytes=first.size_bytes, object_key=key))
    assert "rank7.log, line 3" in client.get(f"/runs/{run}").text
    log = client.get(f"/runs/{run}/log?file=1&line=3", headers=HTMX).text
    assert 'id="L3" class="event chosen"' in log
    assert 'id="L3" class="event' not in client.get(f"/runs/{run}/log?line=3", headers=HTMX).text


def test_unknown_fields_are_requested_stack_members_first(client: TestClient, make: Make) -> None:
    run = make()
    head = client.get(f"/runs/{run}").text
    assert re.findall(r'name="field\.(\w+)"', head) == ["cluster"]
    text = client.get(f"/runs/{run}?tab=config").text
    text = text[text.index('id="run-tab"') :]
    matches = re.findall(r'name="field\.(\w+)"', text)
    assert matches == ["cluster", "pp_layout", "attention"]
    assert re.search(r'<select id="a-field.attention".*?<option value="flash"', text, re.DOTALL)


def test_a_statement_needs_a_name_and_a_value_that_can_be(client: TestClient, make: Make, engine: Engine) -> None:
    run = make()
    sent = {"field.cluster": "eos", "field.attention": "psychic", "note": "from the job file"}
    refused = client.post(f"/runs/{run}/contract", data=sent, headers=HTML)
    assert refused.status_code == 422
    for name in ("author", "field.attention"):
        error = re.search(rf'name="{name}".*?class="error"[^>]*>(.*?)</p>', refused.text, re.DOTALL)
        assert error is not None, name
        assert "must" in error[1]
    assert 'value="eos"' in refused.text
    assert "Not saved." in refused.text
    sent |= {"field.attention": "flash", "author": "Ada"}
    answer = client.post(f"/runs/{run}/contract", data=sent, headers=HTML, follow_redirects=False)
    assert (answer.status_code, answer.headers["Location"]) == (303, f"/runs/{run}?tab=config#contract")
    text = client.get(f"/runs/{run}?tab=config").text
    assert "is being read again" in text
    history = text[text.index('id="amendments"') :]
    assert "from the job file" in history
    assert "Ada" in history


def test_an_existing_correction_can_be_withdrawn(client: TestClient, make: Make, engine: Engine) -> None:
    run = make()
    with transaction(engine) as session:
        session.add(AmendmentRow(run_id=run, field="ep", value=8, old_value=16, old_source="arguments", author="Ada"))
    text = client.get(f"/runs/{run}?amend=ep").text
    assert 'name="take_back" value="ep"' in text
    assert 'name="take_back"' not in client.get(f"/runs/{run}?amend=tp").text
    client.post(f"/runs/{run}/contract", data={"take_back": "ep", "author": "Bea"}, headers=HTML)
    assert "value from the log" in client.get(f"/runs/{run}?tab=config").text


def test_updates_of_a_growing_run_come_part_by_part(client: TestClient, make: Make, engine: Engine) -> None:
    run = make(reception="receiving", heard_at=datetime.now(UTC), processed_at=datetime(2026, 11, 20, tzinfo=UTC))
    page = client.get(f"/runs/{run}").text
    assert "still growing" in page
    match = re.search(r'hx-get="(/runs/\d+/news\?seen=[^"]+)" hx-trigger="every 2s"', page)
    assert match is not None
    assert client.get(match[1], headers=HTMX).status_code == 204
    with transaction(engine) as session:
        row = session.get(RunRow, run)
        assert row is not None
        row.processed_at, row.reception = datetime(2026, 11, 21, tzinfo=UTC), "complete"
    current = HTMX | {"HX-Current-URL": f"http://testserver/runs/{run}?series=lm_loss"}
    news = client.get(match[1], headers=current).text
    assert re.findall(r'id="([\w-]+)"[^>]* hx-swap-oob="true"', news) == [
        "run-top", "run-chart-data", "run-chart-note", "run-tabs", "run-tab",
    ]  # fmt: skip
    assert "lm loss" in news
    assert re.search(r'data-announce="[^"]+"', news)
    assert "every 2s" not in news


@pytest.mark.parametrize("seen", ["", "ready", "....", "x" * 500, "ready.settled.9"])
def test_a_page_with_any_state_token_gets_updates(client: TestClient, make: Make, seen: str) -> None:
    assert client.get(f"/runs/{make()}/news?seen={seen}", headers=HTMX).status_code == 200


def test_lists_are_filtered_by_how_the_job_ended(client: TestClient, make: Make) -> None:
    make(name="a")
    make(name="b", health={"outcome": "out_of_memory"})
    text = client.get("/runs?outcome=out_of_memory").text
    assert re.findall(r'<a href="/runs/\d+" title="(\w)">', text) == ["b"]
    assert "ended: out of memory" in text
    assert client.get("/runs?outcome=tired", headers=HTML).status_code == 422


def test_availability_names_the_run_that_proves_it(client: TestClient, make: Make, engine: Engine) -> None:
    assert "No evidence yet" in client.get("/availability").text
    run = make()
    image, evidence = "nvcr.io/nvidia/nemo:26.06", [asdict(LogEvidence(0, 12, "DeepEP is not installed"))]
    with transaction(engine) as session:
        project = session.exec(select(ProjectRow.id)).one()
        for dispatcher, works in (("deepep", False), ("alltoall", True)):
            session.add(
                AvailabilityRow(
                    run_id=run,
                    project_id=project or 0,
                    dispatcher=dispatcher,
                    container=image,
                    available=works,
                    evidence=evidence,
                )
            )
    text = client.get("/availability").text
    assert "deepep is missing in nemo:26.06." in text
    assert re.findall(r'<th scope="col"><span class="dispatcher (\w+)"', text) == ["alltoall", "deepep"]
    assert f'href="/runs/{run}?line=12#L12"' in text


def test_a_project_states_its_defaults(client: TestClient, make: Make) -> None:
    make(project="moe lab")
    address = "/settings/projects/moe%20lab"
    assert "No default is set" in client.get(address).text
    sent = {"field.cluster": "eos", "container_image": "nvcr.io/nvidia/nemo", "another": "ep", "another_value": "many"}
    refused = client.post(address, data=sent, headers=HTML)
    assert refused.status_code == 422
    for name in ("author", "another_value"):
        assert re.search(rf'name="{name}".*?class="error"[^>]*>', refused.text, re.DOTALL), name
    assert 'value="eos"' in refused.text
    saved = client.post(address, data=sent | {"another_value": "8", "author": "Ada"}, headers=HTML)
    assert saved.status_code == 200
    assert "Saved." in saved.text
    assert "2 fields" in saved.text
    assert re.search(r'name="field.ep" value="8"', saved.text)
    assert client.get("/settings/projects/nobody", headers=HTML).status_code == 404


def test_the_glossary_contains_every_term_and_field(client: TestClient) -> None:
    text = client.get("/glossary").text
    assert len(terms()) > 20
    for name in FIELDS:
        assert f'id="field-{name}"' in text, name
    for anchor in ("contract", "stack-key", "config-key", "provisional", "dispatcher"):
        assert f'<strong id="{anchor}">' in text, anchor


def test_every_term_that_a_template_links_to_is_in_the_glossary() -> None:
    anchors = set(re.findall(r'id="([^"]+)"', " ".join(term.name + term.text for term in terms())))
    links = [link for path in TEMPLATES.rglob("*.html") for link in TERM_LINK.findall(path.read_text())]
    assert len(links) > 10
    assert {(anchor or text.lower().replace(" ", "-")) for text, anchor in links} <= anchors


def test_a_run_without_the_package_of_its_dispatcher_names_the_flag_that_works(client: TestClient, make: Make) -> None:
    failure = {"kind": "hybridep_missing", "title": "t", "explanation": "e", "advice": "a", "rank": 0, "evidence": []}
    run = make(status="failed", failures=[failure], health={"outcome": "failed"})
    text = client.get(f"/runs/{run}").text
    assert "<code>--moe-token-dispatcher-type alltoall</code>" in text
    assert "rank 0" not in text.partition('id="run-tab"')[0], "all ranks share the container"
    # A dispatcher that works in the same container is better than the general advice.
    placed = {"stack_key": "a" * 64, "dispatcher": "deepep", "outcome": "completed", "purpose": "ci"}
    works = make(**placed, ordered_at=datetime(2026, 9, 1, tzinfo=UTC))
    make(stack_key="b" * 64, dispatcher="allgather", outcome="completed", step_time_ms=300.0)
    stated = {"model": "Qwen3-30B-A3B", "gpu": "H100"}
    contract = {name: {"value": value, "source": "metadata", "detail": ""} for name, value in stated.items()}
    failed = {"status": "failed", "failures": [failure], "health": {"outcome": "failed"}, "stack_key": "a" * 64}
    run = make(**failed, contract=contract)
    text = client.get(f"/runs/{run}").text
    assert f"as in run #{works}</a>" in text
    unnamed = client.get(f"/runs/{make(**failed)}").text
    assert "as in run" not in unnamed, "another run without a stated model may be of any model"
    primary = re.search(r'<a class="button primary"\s+href="(/runs/[^"]+)"', text)
    assert primary is not None
    assert primary[1] == f"/runs/{run}/next/disp-package-missing"
    assert client.get(primary[1]).status_code == 200
    # Newer runs of experiments do not count as the usual state, but other newer runs do.
    newest = make(**placed, ordered_at=datetime(2026, 9, 2, tzinfo=UTC))
    make(**placed | {"ordered_at": datetime(2026, 9, 3, tzinfo=UTC), "purpose": "experiment"})
    assert re.findall(r"as in run #(\d+)", client.get(f"/runs/{run}").text) == [str(newest)]
    assert "<code>--moe-token-dispatcher-type flex --moe-flex-dispatcher-backend deepep</code>" in text


def test_an_unknown_figure_names_the_fields_that_it_needs(client: TestClient, make: Make) -> None:
    metrics = {"step_time_ms": {"value": 400.0, "ci_low": 399.0, "ci_high": 401.0, "n": 40, "note": ""}}
    run = make(unknown=["seq_len", "gpus"], metrics=metrics)
    text = client.get(f"/runs/{run}").text
    assert "unknown: state seq_len, gpus" in text
    assert 'name="field.seq_len"' in text


def test_the_upload_page_shows_a_run_whose_verdict_is_certain(client: TestClient, make: Make) -> None:
    slow = make(verdict="regression", purpose="ci")
    assert f"/runs/{slow}/spark" in client.get("/upload").text
    certain = make(verdict="no_change", purpose="ci")
    make(verdict="no_change", purpose="experiment")
    make(verdict="regression", purpose="ci", name="newer")
    assert f"/runs/{certain}/spark" in client.get("/upload").text
