"""Leaderboards: pages, `GET /api/v1/leaderboards` and the history of leaders."""

import csv
import io
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from types import EllipsisType
from typing import Any

import pytest
from pyarrow import parquet
from sqlalchemy import Engine, select, update
from sqlmodel import col
from starlette.testclient import TestClient

from app.domain.experiments.values import ExperimentResult, PlannedGain
from app.domain.numbers import gain_change, time_saved
from app.domain.ranking.across import board_results, results_of, summaries
from app.domain.ranking.experiments import DispatcherExperiment, contradictions
from app.domain.ranking.pairwise import Outcome, PairwiseComparison
from app.domain.ranking.rank import rank_stack
from app.domain.ranking.standings import Board
from app.domain.run import Stated, Value
from app.domain.verdict.step_time import Prior, Verdict
from app.leaderboards.charts import leader_chart, leadership_periods
from app.leaderboards.picture import deciding_plan, lead_sentence
from app.leaderboards.queries import BoardQuery
from app.pipeline.notify import leader_updates
from app.storage.database import read_session, transaction
from app.storage.json_text import to_json
from app.storage.standings import leader_changes, stack_standings
from app.storage.tables import ExperimentRow, ProjectRow, RunRow
from tests.builders import FIRST_PLACE, make_leaderboard, make_stack, stated_activity
from tests.domain.ranking.runs import make_run, make_runs
from tests.prepared import prepared
from tests.runs.uploading import assert_problem

PAGE = "/leaderboards/h100/qwen3-30b-a3b"


@pytest.fixture
def stacks(engine: Engine) -> dict[str, str]:
    def make() -> dict[str, str]:
        with transaction(engine) as session:
            return make_leaderboard(session)

    return prepared(engine, make)


def of_stack(client: TestClient, key: str, **params: str) -> str:
    answer = client.get(PAGE, params={"stack": key, **params})
    assert answer.status_code == 200
    return answer.text


def test_without_a_run_the_list_says_how_to_begin(client: TestClient) -> None:
    page = client.get("/leaderboards").text
    assert 'class="cell won' not in page
    assert "/api/v1/runs" in page


def test_the_list_counts_stacks_and_rankings(client: TestClient, stacks: dict[str, str]) -> None:
    page = client.get("/leaderboards").text
    assert "hybridep leads 2 of 2 leaderboards." in page
    assert f'href="{PAGE}"' in page
    changed = page.partition('id="changed"')[2].partition("</details>")[0]
    for name in ("tie", "leader"):
        assert f'href="{PAGE}?stack={stacks[name][:12]}"' in changed
    assert client.get("/leaderboards?project=nobody").status_code == 404


def test_the_list_is_filtered_by_name_or_slug_and_refuses_what_it_does_not_know(
    client: TestClient, stacks: dict[str, str]
) -> None:
    def shown(**query: str) -> tuple[list[str], list[str]]:
        page = client.get("/leaderboards", params=query).text
        rows = re.findall(r'<th scope="row">([^<]+)</th>', page)
        return rows, re.findall(r"<option(?: value=\"true\")? selected>([^<]+)</option>", page)

    for family, gpu in (("Qwen3-30B-A3B", "H100"), ("qwen3-30b-a3b", "h100")):
        assert shown(family=family, gpu=gpu) == (["Qwen3-30B-A3B"], ["Qwen3-30B-A3B", "H100"])
    assert shown(family="bogus") == ([], ["bogus"]), "the filter that leaves nothing is shown"
    for name in ("hardware", "nonsense"):
        assert_problem(client.get(f"/leaderboards?{name}=h100"), 422, field=name)


def cells(client: TestClient, **filters: str) -> dict[str, tuple[str, str]]:
    """The matrix: the text for a family on a GPU, and whether it is based on own runs."""
    matches = re.findall(
        r'class="cell (\w+)(?: leads)?"\s+aria-label="([^":]+): ([^"]+)"',
        client.get("/leaderboards", params=filters).text,
    )
    return {pair: (outcome, text) for outcome, pair, text in matches}


@pytest.mark.usefixtures("stacks")
def test_the_index_is_a_matrix_of_families_and_gpus(client: TestClient) -> None:
    matrix = cells(client)
    outcome, text = matrix["Qwen3-30B-A3B on H100"]
    assert outcome == "won"
    assert [part in text for part in ("hybridep", "15.1 to 16.7\u202f% faster", "alltoall")] == [True] * 3
    kind, text = matrix["DeepSeek-V3 on H100"]
    assert (kind, "276\u2013370 TFLOP/s/GPU" in text) == ("published", True)
    assert {outcome for outcome, _ in cells(client, own="true").values()}.isdisjoint({"published"})
    assert {pair.partition(" on ")[2] for pair in cells(client, gpu="H100")} == {"H100"}
    assert {pair.partition(" on ")[0] for pair in cells(client, family="DeepSeek-V3")} == {"DeepSeek-V3"}


def test_the_matrix_keeps_equal_and_undecided_leaders_apart(client: TestClient, engine: Engine) -> None:
    times = {
        "H100": {"hybridep": [400.0, 401, 400, 401], "deepep": [401.0, 400, 401, 400]},
        "B200": {"hybridep": [400.0, 404], "deepep": [412.0, 418]},
    }
    with transaction(engine) as session:
        for gpu, own in times.items():
            for name, measured in own.items():
                fields = {"gpu": gpu, "dispatcher": name}
                make_stack(session, measured, fields=fields, activity=stated_activity(name), evidence_level="validated")
    matrix = cells(client)
    assert matrix["Qwen3-30B-A3B on H100"][0] == "equal"
    outcome, text = matrix["Qwen3-30B-A3B on B200"]
    assert (outcome, bool(re.search(r"faster than deepep; [0-9] more run", text))) == ("undecided", True)
    page = client.get("/leaderboards").text
    assert re.search(r"hybridep</span>\s+[0-9.]+.% faster than deepep", page)
    assert "No dispatcher leads in 2 leaderboards: 1 is undecided, 1 has equal leaders." in page
    assert re.search(r'class="button primary"\s+href="/leaderboards/b200/qwen3-30b-a3b"', page)


def test_generated_figures_are_marked_once_or_at_each_row_of_a_mixed_list(client: TestClient, engine: Engine) -> None:
    def marks(address: str) -> tuple[int, int]:
        page = client.get(address).text
        return page.count('class="badge generated"'), page.count('class="generated"')

    with transaction(engine) as session:
        nearest = f"/references/nearest?stack={make_leaderboard(session, 'demo')['leader']}"
        session.execute(update(ProjectRow).values(generated=True))
    for address in ("/leaderboards", PAGE, f"{PAGE}/graphs", "/availability", nearest):
        assert marks(address) == (1, 0), address
    with transaction(engine) as session:
        make_stack(session, [400.0, 401.0], project="real", fields={"gpu": "B200"})
        make_stack(session, [400.0, 401.0], project="real", fields={"container": "nvcr.io/nvidia/nemo:25.11"})
    assert client.get("/leaderboards").text.count("is-generated") == 2, "two of three leaderboards"
    head, rows = marks(PAGE)
    assert (head, rows > 1) == (0, True)


@pytest.mark.usefixtures("stacks")
def test_a_search_counts_the_runs_of_the_leaderboard_and_not_of_the_dispatcher(client: TestClient) -> None:
    text = client.get("/search", params={"q": "hybridep"}, headers={"HX-Request": "true"}).text
    assert re.search(r"leaderboard, \d+ runs in \d+ stacks?, with <mark>hybridep", text), text
    assert ", with" not in client.get("/search", params={"q": "qwen3-30b"}, headers={"HX-Request": "true"}).text


@pytest.mark.usefixtures("stacks")
def test_a_pair_without_runs_shows_published_figures_and_links_to_the_planner(client: TestClient) -> None:
    page = client.get("/leaderboards/h100/deepseek-v3")
    assert page.status_code == 200
    published = [float(text) for text in re.findall(r'<span class="number">([\d.]+)</span>', page.text)]
    assert [round(max(published)), round(min(published))] == [370, 276]
    nothing_published = client.get("/leaderboards/mi355x/qwen3-30b-a3b")
    for answer, work in ((page, "model=DeepSeek-V3&gpu=H100&gpus="), (nothing_published, "&gpus=256&seq_len=4096")):
        (plan,) = re.findall(r'class="button primary" href="(/plan\?[^"]+)"', answer.text)
        assert work in unescape(plan)
        assert client.get(unescape(plan)).status_code == 200
    unknown_shape = client.get("/leaderboards/h100/qwen3-6-35b-a3b").text
    assert 'class="button primary" href="/upload"' in unknown_shape
    assert "/plan?" not in unknown_shape
    b200 = client.get("/leaderboards/b200/qwen3-30b-a3b").text
    names = re.findall(r'<a href="/references/[^"]+">([^<]+)</a>', b200)
    assert len(set(names)) == len(names) > 1, "each bar says in what it differs"
    assert "8 GPUs" in b200, "what all share is said once"
    assert not any("8 GPUs" in name for name in names)
    moved = client.get("/leaderboards/H100/DeepSeek-V3", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (308, "/leaderboards/h100/deepseek-v3")
    assert client.get("/leaderboards/h100/deepseek-v3/standings.csv").status_code == 404


def test_a_single_ranking_is_drawn_to_scale_with_what_could_not_run(client: TestClient, stacks: dict[str, str]) -> None:
    page = client.get(PAGE, params={"stack": stacks["leader"]}).text
    picture = page[page.index('id="picture"') : page.index("</section>", page.index('id="picture"'))]
    standings = client.get("/api/v1/leaderboards", params={"stack": stacks["leader"]}).json()["items"][0]
    entries = standings["boards"][0]["entries"]
    times = [entry["step_time_ms"]["value"] for entry in entries]
    places = [float(text) for text in re.findall(r'<circle cx="([\d.]+)%"', picture)]
    ticks = re.findall(r'<text x="([\d.]+)%" y="14">([\d,.]+)', picture)
    (first, start), (last, end) = [(float(x), float(text.replace(",", ""))) for x, text in (ticks[0], ticks[-1])]
    unit = 1000 if max(times) >= 10_000 else 1
    per_ms = (last - first) / ((end - start) * unit)
    assert places == pytest.approx([first + (time - start * unit) * per_ms for time in times], abs=0.02)
    assert [entry["dispatcher"] for entry in entries] == re.findall(r'dispatcher (\w+)">', picture)[: len(entries)]
    assert 'id="picture"' not in client.get(PAGE).text  # several rankings: the gains are the picture


@pytest.mark.usefixtures("stacks")
def test_the_page_begins_with_who_is_ahead_where(client: TestClient) -> None:
    page = client.get(PAGE).text
    answer = "2 rankings in 3 stacks: hybridep clearly leads in 1; no clear leader in the other 1."
    assert f"Dropless, training equivalent: {answer}" in page
    assert "Across stacks" not in page  # two rankings are read faster than a table of wins


def test_a_tie_has_a_reason_and_a_range_of_places(client: TestClient, stacks: dict[str, str]) -> None:
    page = of_stack(client, stacks["tie"])
    assert page.count(">1–2<") == 2
    assert re.findall(r'class="board" data-reading="(\w+)"', page) == ["tie"]
    assert page.count('<p class="tie">') == 2
    assert re.findall(r'data-not-ranked="(\w+)"', page) == ["unranked"]
    item = client.get("/api/v1/leaderboards", params={"stack": stacks["tie"]}).json()["items"][0]
    assert [refusal["why"] for refusal in item["refused"]] == ["too_short", "quarantined"]
    assert all(f'href="/runs/{refusal["run"]}"' in page for refusal in item["refused"])
    assert "a bad node" in page


def test_more_memory_is_stated_with_the_gain(client: TestClient, stacks: dict[str, str]) -> None:
    page = of_stack(client, stacks["leader"])
    assert re.findall(r'class="board" data-reading="(\w+)"', page) == ["leader"]
    assert "but needs 12.1\u202f% more memory" in page
    assert "requested, not active" in page


def test_ranking_by_memory_reverses_the_order(client: TestClient, stacks: dict[str, str]) -> None:
    by_speed, by_memory = (of_stack(client, stacks["leader"], **more) for more in ({}, {"rank": "memory_headroom"}))
    assert places(by_speed) == ["hybridep", "alltoall", "deepep"]
    assert places(by_memory) == ["alltoall", "hybridep", "deepep"]
    for page in (by_speed, by_memory):
        assert re.findall(r'data-not-ranked="(\w+)"', page) == ["not_active"]
    assert '<option value="memory_headroom" selected>' in re.sub(r"\s+", " ", by_memory)


def places(page: str) -> list[str]:
    """Dispatchers of the first board, in their order."""
    rows = page.split('class="table-scroll cards standings"')[1].partition("</table>")[0].split('<th scope="row"')[1:]
    return [row.split('class="dispatcher ')[1].split('"')[0] for row in rows]


def test_a_failed_import_is_a_fact_about_the_container(client: TestClient, stacks: dict[str, str]) -> None:
    page = of_stack(client, stacks["only"])
    assert re.findall(r'class="board" data-reading="(\w+)"', page) == ["only_measurement"]
    assert re.findall(r'data-not-ranked="(\w+)"', page) == ["import_failed"] * 2
    assert 'aria-label="Dispatchers by container"' in page


def test_results_below_the_requested_evidence_are_shown_and_not_ranked(
    client: TestClient, stacks: dict[str, str]
) -> None:
    readings = [
        re.findall(r'data-reading="(\w+)"', of_stack(client, stacks["directional"], **more))
        for more in ({}, {"evidence": "smoke"})
    ]
    assert readings == [["nothing_ranked"], ["directional"]]


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ({"routing": "forced-balance"}, ["directional"]),
        ({"routing": "natural"}, ["tie", "leader", "only"]),
        ({"semantic_class": "benchmark_only"}, ["directional"]),
        ({"precision": "fp8"}, ["leader"]),
        ({"ep_size": "large"}, ["leader"]),
        ({"routing": "natural", "semantic_class": "benchmark_only"}, []),
    ],
)
def test_filters_narrow_the_stacks(
    client: TestClient, stacks: dict[str, str], query: dict[str, str], shown: list[str]
) -> None:
    page = client.get(PAGE, params=query).text
    result = [name for name, key in stacks.items() if f'id="stack-{key[:12]}"' in page]
    assert result == shown
    assert ("No matching stacks" in page) == (not shown)


@pytest.mark.usefixtures("stacks")
@pytest.mark.parametrize(
    ("query", "allowed"),
    [
        ("rank=luck", "must be one of step_time, tokens_per_s_per_gpu, tflops_per_gpu, memory_headroom"),
        ("evidence=hearsay", "must be one of smoke, screen, matched_ab, validated"),
        ("routing=bogus", "must be one of forced, natural, unknown, "),
        ("semantic_class=x", "must be one of training_equivalent, benchmark_only, unknown"),
        ("ep_size=huge", "must be one of small, medium, large, unknown"),
        ("precision=int1", "must be one of bf16, "),
        ("stack=zzzz", "must be the first digits of a stack key"),
        ("page=0", "must be a whole number from 1"),
        ("precision=%00", "contains a control character"),
        (f"project={'x' * 201}", "is longer than 200 characters"),
    ],
)
def test_a_filter_that_nothing_can_match_is_refused_with_what_is_allowed(
    client: TestClient, query: str, allowed: str
) -> None:
    for address in (PAGE, f"{PAGE}/standings.csv"):
        answer = client.get(f"{address}?{query}")
        assert answer.status_code == 422
        assert allowed in answer.json()["errors"][0]["message"]


@pytest.mark.usefixtures("stacks")
def test_a_stack_or_project_that_was_never_ranked_is_not_found(client: TestClient) -> None:
    assert client.get(f"{PAGE}?stack=0123456789ab").status_code == 404
    unknown = client.get(f"{PAGE}?project=none")
    assert (unknown.status_code, "Available: moe-lab." in unknown.json()["detail"]) == (404, True)


@pytest.mark.usefixtures("stacks")
@pytest.mark.parametrize("rest", ["", "/standings.csv", "?rank=step_time&evidence=smoke"])
def test_names_as_they_are_shown_lead_to_the_page(client: TestClient, rest: str) -> None:
    moved = client.get(f"/leaderboards/H100/Qwen3-30B-A3B{rest}", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (308, f"{PAGE}{rest}")


def test_rankings_come_first_and_other_stacks_have_a_line(client: TestClient, stacks: dict[str, str]) -> None:
    page = client.get(PAGE).text
    rankings, _, alone = page.partition('id="alone"')
    assert all(f'<article class="stack-card" id="stack-{stacks[name][:12]}"' in rankings for name in ("tie", "leader"))
    line = alone.split(f'<tr id="stack-{stacks["only"][:12]}"')[1].split("</tr>")[0]
    assert ('data-reading="only_measurement"' in line, "2 runs" in line) == (True, True)
    nothing = alone.split(f'<li id="stack-{stacks["directional"][:12]}"')[1]
    assert nothing.lstrip().startswith('data-reading="nothing_ranked"')


def test_runs_of_an_unknown_dispatcher_are_named_by_their_container(client: TestClient, engine: Engine) -> None:
    fields: dict[str, Any] = {"model": "Mixtral-8x7B", "gpu": "B200", "dispatcher": ..., "dispatcher_type": ...}
    with transaction(engine) as session:
        make_stack(session, [500.0, 510.0], fields=fields)
        later = FIRST_PLACE + timedelta(days=9)
        make_stack(session, [400.0], fields=fields | {"container": "nvcr.io/nvidia/nemo:26.09"}, started=later)
    page = client.get("/leaderboards/b200/mixtral-8x7b").text
    picture = page.partition("data-runs-picture")[2].partition("</section>")[0]
    assert re.findall(r'<li data-runs="">\s*<span>\s*<span class="dispatcher">([^<]*)<', picture) == [
        "nemo:26.09",
        "nemo:26.06",
    ]


def test_a_board_without_a_ranking_draws_its_runs_and_what_is_missing(client: TestClient, engine: Engine) -> None:
    fields = {"model": "Mixtral-8x7B", "gpu": "B200", "dispatcher": "alltoall"}
    with transaction(engine) as session:
        older = make_stack(session, [500.0, 510.0], fields=fields)
        later = FIRST_PLACE + timedelta(days=9)
        newer = make_stack(session, [400.0], fields=fields | {"container": "nvcr.io/nvidia/nemo:26.09"}, started=later)
        other = make_stack(session, [900.0], fields=fields | {"seq_len": 8192}, started=later - timedelta(days=1))
    address = "/leaderboards/b200/mixtral-8x7b"
    page = client.get(address).text
    picture = page.partition("data-runs-picture")[2].partition("</section>")[0]
    drawn = [int(run) for run in re.findall(r"<title>#(\d+): ", picture)]
    assert drawn == [*newer, *reversed(older)], "the newest stack first"
    assert not set(other) & set(drawn), "other work"
    assert re.findall(r'data-missing="(\w+)"', picture) == ["hybridep"]
    with transaction(engine) as session:
        make_leaderboard(session)
    assert "data-runs-picture" not in client.get(PAGE).text


def test_stacks_of_one_title_are_distinguished_everywhere(client: TestClient, engine: Engine) -> None:
    natural: dict[str, Any] = {"force_balance": False, "routing_mode": "dropless", "data_mode": "real"}
    columns: dict[str, Any] = {"evidence_level": "validated", "semantic_class": "training_equivalent"}
    with transaction(engine) as session:
        for length in (4096, 8192):
            for name, time in (("alltoall", 400.0), ("hybridep", 300.0)):
                fields = natural | {"seq_len": length, "dispatcher": name}
                make_stack(session, [time, time + 1], fields=fields, activity=stated_activity(name), **columns)
    page = client.get(PAGE).text
    for part in (page, client.get(f"{PAGE}/gains", headers={"HX-Request": "true"}).text, client.get("/").text):
        assert "seq 4096" in part
        assert "seq 8192" in part
    result = rows(client, f"{PAGE}/standings.csv")
    assert {(row["seq_len"], row["gbs"], row["mbs"]) for row in result} == {
        ("4096", "1024", "2"),
        ("8192", "1024", "2"),
    }
    assert len({row["stack"] for row in result}) == 2


def test_configurations_of_a_dispatcher_are_named_by_their_knobs(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for overlap, time in ((True, 300.0), (False, 340.0)):
            make_stack(session, [time, time + 1], fields={"ep_overlap": overlap})
    page = client.get(PAGE).text
    (fastest,) = re.findall(r'<p class="apart">(.*?)</p>', page, re.DOTALL)
    assert all(part in fastest for part in ("ep_overlap on", "300.3", "ep_overlap off", "13.3\u202f% slower"))
    key = client.get("/api/v1/leaderboards").json()["items"][0]["stack_key"]
    alone = of_stack(client, key)
    assert "ep_overlap on" in alone
    assert alone.index('<p class="apart">') < alone.index('<details class="why"')


def test_an_unknown_knob_explains_no_difference(client: TestClient, engine: Engine) -> None:
    overlaps: tuple[tuple[bool | EllipsisType, float], ...] = ((True, 300.0), (..., 340.0))
    with transaction(engine) as session:
        for overlap, time in overlaps:
            make_stack(session, [time, time + 1], fields={"ep_overlap": overlap})
    (fastest,) = re.findall(r'<p class="apart">(.*?)</p>', client.get(PAGE).text, re.DOTALL)
    assert [text in fastest for text in ("ep_overlap on", "ep_overlap unknown", "slower")] == [True, True, False]


@pytest.mark.parametrize("generated", [True, False])
def test_generated_runs_are_not_compared_with_a_published_step_time(
    client: TestClient, engine: Engine, generated: bool
) -> None:
    fields: dict[str, Value] = {"gpus": 16, "seq_len": 4096, "gbs": 1024, "precision": "bf16"}
    with transaction(engine) as session:
        for name, time in (("alltoall", 23_000.0), ("hybridep", 21_000.0)):
            make_stack(
                session, [time, time * 1.002], fields=fields | {"dispatcher": name}, activity=stated_activity(name)
            )
        session.execute(update(ProjectRow).values(generated=generated))
    page = client.get(PAGE).text
    (published,) = re.findall(r'<li class="is-published">.*?</li>', page, re.DOTALL)
    assert ("slower" in published) != generated


def test_a_tie_leads_as_a_tie_and_no_plan_names_a_dispatcher_that_cannot_run(
    client: TestClient, stacks: dict[str, str]
) -> None:
    tie = of_stack(client, stacks["tie"])
    lead = re.findall(r'class="answer board-answer">\s*([^<]+)', tie)[0]
    assert re.match(r"hybridep \([\d.]+\sms\) and deepep are equal", lead)
    assert "%" in lead, "both are faster than alltoall"
    assert "experiments/new" not in of_stack(client, stacks["only"]), "no other dispatcher is in its container"


@pytest.mark.usefixtures("stacks")
def test_a_page_past_the_end_leads_back_and_an_unknown_family_to_the_list(client: TestClient) -> None:
    assert "No such page" in client.get(f"{PAGE}?page=9").text
    unknown = client.get("/leaderboards/h100/nobody", headers={"Accept": "text/html"})
    assert (unknown.status_code, "/leaderboards" in unknown.text) == (404, True)


@pytest.mark.usefixtures("stacks")
def test_htmx_gets_the_board_alone_and_the_charts_of_their_own(client: TestClient) -> None:
    board = client.get(f"{PAGE}?precision=fp8", headers={"HX-Request": "true"})
    assert board.text.lstrip().startswith('<div id="board"')
    assert board.headers["HX-Push-Url"] == f"{PAGE}?precision=fp8"
    for name in ("gains", "leaders"):
        chart = client.get(f"{PAGE}/{name}", headers={"HX-Request": "true"})
        assert "data-chart" in chart.text
        assert "HX-Push-Url" not in chart.headers


def rows(client: TestClient, address: str) -> list[dict[str, str]]:
    answer = client.get(address)
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_the_exports_hold_what_the_page_shows(client: TestClient, stacks: dict[str, str]) -> None:
    standings = rows(client, f"{PAGE}/standings.csv?stack={stacks['tie']}")
    assert [(row["dispatcher"], row["first_place"], row["last_place"]) for row in standings] == [
        ("hybridep", "1", "2"),
        ("deepep", "1", "2"),
        ("alltoall", "3", "3"),
        ("allgather", "", ""),
    ]
    assert "4 steady iterations" in standings[-1]["not_ranked_because"]
    gains = rows(client, f"{PAGE}/gains.csv?stack={stacks['leader']}")
    assert [(row["dispatcher"], row["outcome"]) for row in gains] == [("hybridep", "first")]
    assert round(float(gains[0]["memory_more_pct"]), 1) == 12.1
    leaders = rows(client, f"{PAGE}/leaders.csv")
    assert {(row["stack_key"], row["after"]) for row in leaders} == {
        (stacks["tie"], "deepep and hybridep (tie)"),
        (stacks["leader"], "hybridep"),
    }


def test_step_times_of_one_table_have_one_unit(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for name, ms in (("alltoall", 10_300.0), ("hybridep", 9_200.0)):
            fields = {"dispatcher": name}
            make_stack(session, [ms, ms + 5, ms - 5], fields=fields, activity=stated_activity(name))
    table = client.get(PAGE).text.split('class="table-scroll cards standings"')[1].partition("</table>")[0]
    assert "9.193\u202fs" in table
    assert "10.29\u202fs" in table
    assert "\u202fms" not in table


def test_a_lead_that_begins_with_the_last_measurement_is_drawn(engine: Engine, stacks: dict[str, str]) -> None:
    with read_session(engine) as session:
        period = leadership_periods(leader_changes(session, stack_keys=[stacks["leader"]]))[-1]
    chart = leader_chart([replace(period, begins=period.ends)], 1)["datasets"]
    assert [(end["leader"], end["to"]) for end in chart["ends"]] == [(period.leader, period.ends.isoformat())]
    assert chart["periods"][0]["name"].startswith(f"{period.text}: ") or not period.is_first


def test_a_quarantine_shows_user_and_time(client: TestClient, stacks: dict[str, str]) -> None:
    left_out = of_stack(client, stacks["tie"]).partition('class="left-out"')[2]
    assert "mara: a bad node" in left_out


def test_text_of_others_is_escaped(client: TestClient, engine: Engine) -> None:
    bad = "<script>alert(1)</script>"
    with transaction(engine) as session:
        fields = {"container": bad, "cluster": bad}
        make_stack(session, [400.0, 401.0], fields=fields, quarantine=bad, quarantined_by=bad, name=bad)
        make_stack(session, [400.0, 401.0], fields=fields)
    page = client.get(PAGE).text
    assert "&lt;script&gt;alert" in page
    assert bad not in page


def test_the_overview_lists_changed_standings(client: TestClient, stacks: dict[str, str]) -> None:
    page = client.get("/").text
    assert f"{PAGE}?stack={stacks['leader'][:12]}" in page


def test_what_changed_is_one_line_a_board_dated_by_its_runs(engine: Engine, stacks: dict[str, str]) -> None:
    natural: dict[str, Any] = {"force_balance": False, "routing_mode": "dropless", "data_mode": "real"}
    fields = natural | {
        "precision": "fp8",
        "fp8_recipe": "mxfp8",
        "ep": 64,
        "gpus": 64,
        "dp": 64,
        "dispatcher": "deepep",
    }
    columns: dict[str, Any] = {"evidence_level": "validated", "semantic_class": "training_equivalent"}
    later = FIRST_PLACE + timedelta(hours=1)
    with transaction(engine) as session:
        activity = stated_activity("deepep")
        make_stack(session, [200.0, 201.0, 199.5], fields=fields, started=later, activity=activity, **columns)
    with read_session(engine) as session:
        news = [update for update in leader_updates(session) if update.newest.stack_key == stacks["leader"]]
    assert len(news) == 1
    assert (news[0].leader, news[0].changes > 1) == ("deepep", True)
    assert later <= news[0].at < later + timedelta(days=3)


def test_the_history_of_a_leader_ends_at_the_last_measurement(engine: Engine, stacks: dict[str, str]) -> None:
    with read_session(engine) as session:
        changes = leader_changes(session, stack_keys=[stacks["leader"]])
        standings = stack_standings(session, stacks["leader"])
    assert standings is not None
    assert [(period.lasts, period.ends) for period in leadership_periods(changes)][-1] == (True, standings.newest_at)


CSV = {"Accept": "text/csv"}
HERE = "/api/v1/leaderboards?hardware=h100&family=qwen3-30b-a3b"


def made_in(engine: Engine) -> dict[str, str]:
    with transaction(engine) as session:
        return make_leaderboard(session)


def test_stacks_with_their_boards_and_counts_across_them(client: TestClient, engine: Engine) -> None:
    keys = made_in(engine)
    body = client.get(HERE).json()
    assert (body["total"], body["pages"], body["evidence"]) == (4, 1, "screen")
    assert [(leaderboard["hardware_slug"], leaderboard["stacks"]) for leaderboard in body["leaderboards"]] == [
        ("h100", 4)
    ]
    assert body["leaderboards"][0]["url"].endswith("/leaderboards/h100/qwen3-30b-a3b")
    stacks = {item["stack_key"]: item for item in body["items"]}
    (board,) = stacks[keys["leader"]]["boards"]
    assert (board["leaders"], board["reading"], board["entries"][0]["dispatcher"]) == (
        ["hybridep"],
        "leader",
        "hybridep",
    )
    assert "needs 12.1\u202f% more memory" in board["entries"][0]["gain"]["sentence"]
    assert [item["why"] for item in stacks[keys["leader"]]["refused"]] == ["not_active"]
    assert [item["dispatcher"] for item in stacks[keys["only"]]["missing"]] == ["deepep", "hybridep"]
    assert {summary["semantic_class"] for summary in body["summaries"]} == {"training_equivalent", "benchmark_only"}

    for query, count in (
        ("&routing=forced", 1),
        ("&ep_size=large", 1),
        (f"&stack={keys['tie'][:10]}", 1),
        ("&page=9", 0),
    ):
        assert len(client.get(HERE + query).json()["items"]) == count
    everywhere = client.get("/api/v1/leaderboards?page_size=2").json()
    assert (everywhere["total"], everywhere["pages"], len(everywhere["items"])) == (5, 3, 2)
    assert [leaderboard["hardware_slug"] for leaderboard in everywhere["leaderboards"]] == ["gb200", "h100"]


def test_as_csv_with_one_row_a_result(client: TestClient, engine: Engine) -> None:
    keys = made_in(engine)
    answer = client.get(HERE, headers={"Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = [row for row in csv.DictReader(answer.text.splitlines()) if row["stack_key"] == keys["tie"]]
    assert {row["dispatcher"] for row in rows if row["first_place"]} == {"alltoall", "deepep", "hybridep"}
    assert "4 steady iterations" in next(row["not_ranked_because"] for row in rows if row["dispatcher"] == "allgather")
    assert client.get(HERE, headers={"Accept": "image/png"}).status_code == 406


@pytest.mark.parametrize("path", ["", "/gains", "/changes"])
def test_parquet_has_the_same_cells_as_csv_with_types(client: TestClient, engine: Engine, path: str) -> None:
    made_in(engine)
    address = f"/api/v1/leaderboards{path}?hardware=h100&family=qwen3-30b-a3b&format="
    table = parquet.read_table(io.BytesIO(client.get(f"{address}parquet").content)).to_pylist()
    lines = list(csv.DictReader(io.StringIO(client.get(f"{address}csv").text)))
    shown = [
        {
            name: "" if cell is None else cell.isoformat() if isinstance(cell, datetime) else str(cell)
            for name, cell in row.items()
        }
        for row in table
    ]
    assert shown == lines
    assert len(table) > 1
    assert {type(row.get("at") or row.get("last_measured_at") or datetime.now(UTC)) for row in table} == {datetime}


def test_hardware_and_family_are_known_by_any_of_their_names(client: TestClient, engine: Engine) -> None:
    made_in(engine)
    by_slug = client.get(HERE).json()
    assert client.get("/api/v1/leaderboards?hardware=H100&family=Qwen3-30B-A3B").json() == by_slug
    changes = "/api/v1/leaderboards/changes?family="
    assert client.get(changes + "Qwen3-30B-A3B").json() == client.get(changes + "qwen3-30b-a3b").json() != {"items": []}


@pytest.mark.parametrize("path", ["", "/gains", "/changes"])
def test_unknown_leaderboards_are_not_an_empty_ranking(client: TestClient, engine: Engine, path: str) -> None:
    made_in(engine)
    here = f"/api/v1/leaderboards{path}"
    for query, message in (
        ("hardware=B200", "Available: gb200, h100."),
        ("hardware=h100&family=deepseek-v3", "on H100 has been ranked. Available: qwen3-30b-a3b."),
        ("project=nobody", "Project 'nobody' does not exist"),
        ("stack=ffffffffffffffff", "No stack with the key"),
    ):
        assert_problem(client.get(f"{here}?{query}"), 404, message)
    misspelt = client.get(f"{here}?hardwear=h100")
    assert_problem(misspelt, 422, field="hardwear")
    assert "hardware, family" in misspelt.json()["errors"][0]["message"]


def test_a_board_is_in_the_order_that_is_asked_for(client: TestClient, engine: Engine) -> None:
    keys = made_in(engine)
    here = f"/api/v1/leaderboards?stack={keys['leader']}"

    def order(rank: str) -> list[tuple[str, int]]:
        answer = client.get(f"{here}&rank={rank}").json()
        assert answer["rank"] == rank
        (board,) = answer["items"][0]["boards"]
        return [(entry["dispatcher"], entry["place"]["first"]) for entry in board["entries"]]

    assert order("step_time") == order("tokens_per_s_per_gpu") == [("hybridep", 1), ("alltoall", 2)]
    assert order("memory_headroom") == [("alltoall", 1), ("hybridep", 2)]
    rows = list(csv.DictReader(client.get(f"{here}&rank=memory_headroom", headers=CSV).text.splitlines()))
    assert [row["dispatcher"] for row in rows if row["first_place"]] == ["alltoall", "hybridep"]


def test_the_api_supports_the_filters_of_the_page(client: TestClient) -> None:
    (call,) = client.get("/openapi.json").json()["paths"]["/api/v1/leaderboards"].values()
    assert set(BoardQuery.names()) <= {parameter["name"] for parameter in call["parameters"]}


def test_pages_of_a_table_are_complete_and_lead_to_each_other(client: TestClient, engine: Engine) -> None:
    keys = made_in(engine)
    stacks: list[str] = []
    address, pages = "/api/v1/leaderboards?page_size=2", 0
    while address:
        answer = client.get(address, headers=CSV)
        assert answer.headers["x-total-count"] == "5"
        stacks += dict.fromkeys(row["stack_key"] for row in csv.DictReader(answer.text.splitlines()))
        address, pages = answer.links.get("next", {}).get("url", ""), pages + 1
    assert (pages, len(stacks), set(stacks)) == (3, 5, set(keys.values()))
    assert answer.links["prev"]["url"].endswith("?page_size=2&page=2")


def test_gains_as_the_chart_draws_them(client: TestClient, engine: Engine) -> None:
    keys = made_in(engine)
    body = client.get(f"/api/v1/leaderboards/gains?stack={keys['leader']}").json()
    (gain,) = body["items"]
    assert (gain["dispatcher"], gain["over"], gain["outcome"], body["total"]) == ("hybridep", "alltoall", "first", 1)
    assert gain["gain_pct_low"] < gain["gain_pct"] < gain["gain_pct_high"]
    assert gain["gain_pct"] == pytest.approx(20, abs=0.2)
    (row,) = csv.DictReader(
        client.get(f"/api/v1/leaderboards/gains?stack={keys['leader']}", headers=CSV).text.splitlines()
    )
    assert float(row["gain_pct"]) == gain["gain_pct"]


def test_who_led_when(client: TestClient, engine: Engine) -> None:
    keys = made_in(engine)
    items = client.get(f"/api/v1/leaderboards/changes?stack={keys['tie']}").json()["items"]
    assert [(item["before"], item["sentence"]) for item in items] == [(None, "deepep and hybridep (tie)")]
    assert items[0]["after"]["dispatchers"] == ["deepep", "hybridep"]
    assert len(client.get("/api/v1/leaderboards/changes?newest=2").json()["items"]) == 2


def test_invalid_requests(client: TestClient) -> None:
    for field, value in (
        ("rank", "zz"), ("evidence", "best"), ("routing", "bogus"), ("semantic_class", "x"), ("ep_size", "huge"),
        ("precision", "bf17"),
    ):  # fmt: skip
        refused = client.get(f"/api/v1/leaderboards?{field}={value}")
        assert_problem(refused, 422, field=field)
        assert repr(value) in refused.json()["errors"][0]["message"]
    assert "step_time, tokens_per_s_per_gpu," in client.get("/api/v1/leaderboards?rank=zz").text
    assert_problem(client.get("/api/v1/leaderboards?stack=zzzz"), 422, field="stack")
    assert_problem(client.get("/api/v1/leaderboards?page=0"), 422, field="page")
    assert_problem(client.get("/api/v1/leaderboards/changes?newest=0"), 422, field="newest")
    assert client.get("/api/v1/leaderboards").json()["items"] == []
    assert "LeaderboardOut" in client.get("/openapi.json").text


def test_the_board_of_one_ranking_begins_with_its_figure(client: TestClient, stacks: dict[str, str]) -> None:
    page = client.get(PAGE, params={"stack": stacks["leader"][:12]}).text
    assert "data-picture" in page
    lead = re.sub(r"<[^>]+>", "", page.partition('class="answer board-answer">')[2].partition("</p>")[0]).split(":")[0]
    (item,) = client.get(f"/api/v1/leaderboards?stack={stacks['leader']}").json()["items"]
    best = item["boards"][0]["entries"][0]
    assert best["dispatcher"] in lead
    assert f"{time_saved(best['gain']['comparison']['gain_pct']):.1f}" in lead


# --- The sentence above the picture of a ranking.

QUIET = Prior(variance=0.003**2, degrees_of_freedom=4, configurations=9)


def board_of(**times: float) -> Board:
    runs = [run for dispatcher, time in times.items() for run in make_runs(dispatcher, [time] * 3)]
    (board,) = rank_stack(runs, QUIET).boards_at("screen")
    return board


@pytest.mark.parametrize(
    ("hybridep", "alltoall", "sentence"),
    [
        (404, 408, "deepep (400.0 ms) and hybridep are equal, deepep 2.0 % faster than alltoall"),
        (
            401,
            500,
            "deepep (400.0 ms) and hybridep are equal, deepep 20.0 % and hybridep 19.8 % faster than alltoall",
        ),
        (401, 402, "deepep (400.0 ms), hybridep and alltoall are equal"),
    ],
)
def test_of_tied_leaders_only_those_that_beat_alltoall_claim_a_gain(
    hybridep: float, alltoall: float, sentence: str
) -> None:
    board = board_of(deepep=400, hybridep=hybridep, alltoall=alltoall)
    assert board.reading == "tie"
    assert lead_sentence(board).replace("\u202f", " ").replace("\xa0", " ") == sentence


def test_two_undecided_leaders_have_the_interval_of_their_difference() -> None:
    runs = [*make_runs("hybridep", [400, 404]), *make_runs("deepep", [406, 416]), *make_runs("alltoall", [600, 604])]
    (board,) = rank_stack(runs, QUIET).boards_at("screen")
    (pair,) = board.pairs_of_leaders
    assert (pair.outcome, board.runs_to_decide) == ("undecided", pair.more_runs)
    lead = lead_sentence(board).replace("\u202f", " ")
    change = gain_change(pair.gain_pct, pair.low_pct, pair.high_pct)
    size = change.size.replace("\u202f", " ")
    assert lead.startswith(f"hybridep (402.0 ms) is {size} faster than deepep, undecided (")
    assert f"{change.interval} at 99.6 %)".replace("\u202f", " ") in lead


def test_two_leaders_that_differ_by_less_than_what_counts_as_equal_are_not_to_be_decided() -> None:
    runs = [*make_runs("hybridep", [400, 406]), *make_runs("deepep", [404, 410]), *make_runs("alltoall", [600, 604])]
    (board,) = rank_stack(runs, QUIET).boards_at("screen")
    (pair,) = board.pairs_of_leaders
    assert (pair.outcome, pair.is_small, board.runs_to_decide) == ("undecided", True, None)
    plan = deciding_plan(board, 1024)
    assert plan is not None
    assert (plan.runs, plan.is_worth_it) == (pair.more_runs, False)
    assert "counts as equal" in plan.sentence


def ab_of(
    number: int, candidate: str, baseline: str, outcome: Outcome, excluded: float | None = None
) -> DispatcherExperiment:
    pair = PairwiseComparison(candidate, baseline, outcome, 5.0, 4.0, 6.0)
    return DispatcherExperiment(number, (candidate, baseline), pair, excluded_gain_pct=excluded)


LEADS = "Undecided: deepep (400.0 ms) is 4.8 % faster than hybridep"


@pytest.mark.parametrize(
    ("experiments", "contested"),
    [
        ([], ""),
        ([ab_of(4, "deepep", "hybridep", "first")], ""),
        ([ab_of(5, "deepep", "alltoall", "undecided")], ""),
        ([ab_of(6, "hybridep", "deepep", "undecided")], f"{LEADS} by all runs, not by A/B #6"),
        ([ab_of(6, "deepep", "hybridep", "undecided", 2.0)], f"{LEADS} by all runs, not by A/B #6"),
        ([ab_of(7, "hybridep", "deepep", "first")], f"{LEADS}; A/B #7: hybridep 4.8 % faster"),
        ([ab_of(8, "hybridep", "deepep", "equal")], f"{LEADS} by all runs, equal in A/B #8"),
    ],
)
def test_a_leader_is_compared_with_the_second_place_and_with_an_ab_that_says_otherwise(
    experiments: list[DispatcherExperiment], contested: str
) -> None:
    board = board_of(deepep=400, hybridep=420, alltoall=500)
    pair = board.pair(*board.entries[:2])
    assert pair is not None
    interval = gain_change(pair.gain_pct, pair.low_pct, pair.high_pct).interval.replace("\u202f", " ")
    lead = lead_sentence(board, experiments).replace("\u202f", " ")
    decided = f"deepep (400.0 ms) is 4.8 % faster than hybridep ({interval}), 20.0 % faster than alltoall"
    assert lead == (contested or decided)
    assert len(contested.replace(" %", "%").split()) <= 16


def test_an_ab_without_gain_from_the_second_place_keeps_the_leader_and_is_not_repeated() -> None:
    board = board_of(deepep=400, hybridep=420, alltoall=500)
    ab = ab_of(6, "hybridep", "deepep", "undecided", 2.0)
    lead = lead_sentence(board, [ab]).replace("\u202f", " ")
    assert re.fullmatch(
        r"deepep \(400\.0 ms\) is 4\.8 % faster than hybridep \([\d.]+ to [\d.]+\); not proven by A/B #6", lead
    ), "with its interval"
    assert len(lead.replace(" %", "%").split()) <= 16
    assert contradictions([ab], "deepep", "hybridep") == []
    against = ab_of(6, "deepep", "hybridep", "undecided", 2.0)
    assert against.comparison is not None
    against = replace(against, comparison=replace(against.comparison, more_runs=2))
    assert contradictions([against], "deepep", "hybridep") == [against]
    assert deciding_plan(board, 1024, [against]) is None, "the A/B is decided"


@pytest.mark.parametrize(
    ("outcome", "more", "runs"), [("undecided", 2, 4), ("undecided", None, None), ("first", None, None)]
)
def test_a_leader_that_an_inconclusive_ab_contradicts_is_decided_by_a_longer_one(
    outcome: Outcome, more: int | None, runs: int | None
) -> None:
    board = board_of(deepep=400, hybridep=420, alltoall=500)
    ab = ab_of(6, "hybridep", "deepep", outcome)
    assert ab.comparison is not None
    ab = replace(
        ab,
        comparison=replace(ab.comparison, more_runs=more),
        runs={"hybridep": ("1", "2"), "deepep": ("3", "4", "5")},
    )
    assert deciding_plan(board, 1024) is None, "without the A/B the leader is decided"
    plan = deciding_plan(board, 1024, [ab])
    assert (plan.runs if plan else None) == runs
    if plan is not None:
        assert (plan.dispatcher, plan.is_worth_it, plan.is_more) == ("hybridep", True, False)
        assert plan.sentence.startswith("4 runs of each would decide")


def test_a_dispatcher_that_ran_once_is_marked_with_its_number_of_runs() -> None:
    runs = [*make_runs("hybridep", [400] * 3), *make_runs("alltoall", [500])]
    standings = rank_stack(runs, QUIET)
    (board,) = standings.boards_at("screen")
    lead = lead_sentence(board).replace("\u202f", " ")
    assert lead == "hybridep (400.0 ms) is 20.0 % faster than alltoall (1 run), unconfirmed"
    (summary,) = summaries([board_results(standings, board)])
    assert {tally.dispatcher: tally.once for tally in summary.overall.tallies} == {
        "alltoall": (), "hybridep": ("alltoall",),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("matched", "further"),
    [(450, ", 10.0 % than alltoall at equal knobs"), (None, ", 20.0 % than alltoall with other knobs")],
)
def test_a_leader_with_other_knobs_than_alltoall_says_so_beside_the_second_place(
    matched: float | None, further: str
) -> None:
    runs = [*make_runs("alltoall", [500] * 3, config="a"), *make_runs("deepep", [400] * 3, config="d")]
    runs += make_runs("hybridep", [420] * 3, config="h")
    if matched:
        runs += [make_run(f"matched-{hour}", "deepep", matched, config="e", hour=hour) for hour in range(3)]
    own = {"a": ("alltoall", False), "d": ("deepep", True), "e": ("deepep", False), "h": ("hybridep", True)}
    contracts = {
        key: {"dispatcher": Stated(name, "metadata"), "ep_overlap": Stated(overlap, "metadata")}
        for key, (name, overlap) in own.items()
    }
    (board,) = rank_stack(runs, QUIET, contracts).boards_at("screen")
    assert lead_sentence(board).replace("\u202f", " ").endswith(further)


def add_experiment(engine: Engine, stack_key: str, result: ExperimentResult) -> int:
    """Store an A/B of hybridep against alltoall."""
    with transaction(engine) as session:
        run = session.execute(select(RunRow).where(col(RunRow.stack_key) == stack_key)).scalars().first()
        assert run is not None
        assert run.id is not None
        ab = ExperimentRow(
            project_id=run.project_id, baseline_run_id=run.id, title="x", stack_key=stack_key, baseline_key="",
            tag="x", state="done", created_by="Ada", knobs={"dispatcher": {"from": "alltoall", "to": "hybridep"}},
            result=to_json(result),
        )  # fmt: skip
        session.add(ab)
        session.flush()
        assert ab.id is not None
        return ab.id


def test_index_board_and_api_name_the_ab_that_contradicts_the_leader(
    client: TestClient, engine: Engine, stacks: dict[str, str]
) -> None:
    verdict = Verdict("inconclusive", "", (), (), (), (), Prior(0.01**2, 12, 5))
    ab = add_experiment(engine, stacks["other"], ExperimentResult(finished=True, verdict=verdict))
    text = f"A/B #{ab}: inconclusive"
    assert f"; {text}" in cells(client)["DeepSeek-V3 on GB200"][1]
    index = client.get("/leaderboards").text
    assert cells(client)["DeepSeek-V3 on GB200"][0] == "undecided"
    assert "hybridep leads 1 of 2 leaderboards; 1 is undecided." in index
    page = client.get("/leaderboards/gb200/deepseek-v3").text
    (stack,) = client.get("/api/v1/leaderboards?hardware=gb200&family=deepseek-v3").json()["items"]
    sentence = stack["boards"][0]["sentence"]
    assert sentence.startswith("Undecided: hybridep (7.40")
    assert f"faster than alltoall by all runs, not by A/B #{ab}" in sentence.replace(" (1 run)", "")
    assert sentence in page
    for address in (
        "/leaderboards/gb200/deepseek-v3/standings.csv",
        "/api/v1/leaderboards?hardware=gb200&family=deepseek-v3&format=csv",
    ):
        table = rows(client, address)
        contested = {row["dispatcher"]: row["contested_by"] for row in table}
        assert contested.pop(stack["boards"][0]["leaders"][0]) == text
        assert set(contested.values()) == {""}
        assert {row["reading"] for row in table} == {"contested"}
    assert stack["boards"][0]["reading"] == "contested"
    assert re.findall(r'data-reading="(\w+)"', page) == ["contested"]
    gains = client.get("/api/v1/leaderboards/gains?hardware=gb200&family=deepseek-v3").json()["items"]
    assert {gain["reading"] for gain in gains} == {"contested"}
    with read_session(engine) as session:
        (news,) = [update for update in leader_updates(session) if update.newest.stack_key == stacks["other"]]
    assert news.newest.change.after.reading == "contested"
    changes = client.get(f"/api/v1/leaderboards/changes?stack={stacks['other']}").json()["items"]
    assert changes[0]["after"]["reading"] == "contested"


def test_an_ab_that_agrees_with_the_board_adds_no_second_figure(
    client: TestClient, engine: Engine, stacks: dict[str, str]
) -> None:
    verdict = Verdict("improvement", "", (), (), (), (), Prior(0.01**2, 12, 5))
    result = ExperimentResult(finished=True, verdict=verdict, gain=PlannedGain(50.0, 40.0, 60.0), winner="candidate")
    ab = add_experiment(engine, stacks["other"], result)
    address = "/leaderboards/gb200/deepseek-v3"
    before = client.get(address).text
    (leader,) = re.findall(r'class="button primary" href="/runs/(\d+)/experiments/new"', before)
    with transaction(engine) as session:
        session.get_one(ExperimentRow, ab).baseline_run_id = int(leader)
    page = client.get(address).text
    assert f'class="button primary" href="/experiments/{ab}"' in page, "it is decided before the next change"
    assert f"{time_saved(50.0):.1f}" not in page.partition("data-copy-picture")[2].partition("</ul>")[0]


@pytest.mark.parametrize("is_same_pair", [True, False])
def test_two_configurations_have_one_figure_on_board_matrix_and_ab(
    client: TestClient, engine: Engine, is_same_pair: bool
) -> None:
    runs: dict[tuple[str, bool], list[int]] = {}
    with transaction(engine) as session:
        for (name, overlap), time in (
            (("alltoall", False), 500.0), (("hybridep", False), 420.0), (("hybridep", True), 350.0),
        ):  # fmt: skip
            fields = {"dispatcher": name, "ep_overlap": overlap}
            times = [time, time * 1.002, time * 0.998]
            runs[name, overlap] = make_stack(session, times, fields=fields, activity=stated_activity(name))
        key = session.execute(select(RunRow.stack_key).where(col(RunRow.id) == runs["alltoall", False][0])).scalar_one()
    candidate, baseline = (
        tuple(map(str, own[:2])) for own in (runs["hybridep", not is_same_pair], runs["alltoall", False])
    )
    verdict = Verdict("improvement", "", (), candidate, baseline, (), Prior(0.01**2, 12, 5))
    add_experiment(
        engine, key, ExperimentResult(baseline, candidate, verdict=verdict, gain=PlannedGain(25.0, 20.0, 30.0),
                                      finished=True, winner="candidate"),
    )  # fmt: skip
    (stack,) = client.get("/api/v1/leaderboards").json()["items"]
    gain = next(entry["gain"] for entry in stack["boards"][0]["entries"] if entry["gain"])
    names = {"hardware": "H100", "family": "Qwen3-30B-A3B"}
    (matrix,) = client.get("/api/v1/leaderboards/matrix", params=names).json()["matrices"]
    (cell,) = [cell for cell in matrix["cells"] if cell["dispatcher"] == "hybridep"]
    figures = {round(pair["gain_pct"], 1) for pair in (gain["equal_knobs"], cell["at_equal_knobs"])}
    assert figures == ({25.0} if is_same_pair else {19.0})
    page = client.get(PAGE).text
    bars, _, note = page.partition("data-copy-picture")[2].partition("</ul>")
    assert "16.0\u202f% faster, equal knobs" in bars, "the row has the figure of its own step times"
    assert "20.0\u202f% faster than alltoall" in note, "the note has that of the A/B"
    assert f"{'20.0' if is_same_pair else '16.0'}\u202f% at equal knobs" in page


@pytest.mark.parametrize(("hybridep", "rival"), [(420, ("hybridep", 5.0)), (520, ("alltoall", 25.0))])
def test_a_winner_is_counted_with_its_gain_over_the_second_place(hybridep: float, rival: tuple[str, float]) -> None:
    runs = [*make_runs("deepep", [400] * 3), *make_runs("hybridep", [hybridep] * 3), *make_runs("alltoall", [500] * 3)]
    standings = rank_stack(runs, QUIET)
    (board,) = standings.boards_at("screen")
    (summary,) = summaries([board_results(standings, board)])
    counted = {tally.dispatcher: tally.rivals for tally in summary.overall.tallies if tally.rivals}
    assert {name: [(second, round(pct, 1)) for second, pct in own] for name, own in counted.items()} == {
        "deepep": [rival]
    }


@pytest.mark.parametrize(
    ("matched", "lead"),
    [
        (
            450,
            "deepep (400.0 ms) is 20.0 % faster than alltoall, 10.0 % at equal knobs",
        ),
        (
            500,
            "deepep (400.0 ms) is 20.0 % faster than alltoall, but equal at equal knobs",
        ),
        (None, "deepep (400.0 ms) is 20.0 % faster than alltoall (permute_fusion and ep_overlap also differ)"),
    ],
)
def test_the_gain_of_a_leader_is_that_of_the_dispatcher(matched: float | None, lead: str) -> None:
    plain: dict[str, Value] = {"permute_fusion": False, "ep_overlap": False}
    runs = [*make_runs("alltoall", [500] * 3, config="a"), *make_runs("deepep", [400] * 3, config="d")]
    if matched:
        runs += [make_run(f"matched-{hour}", "deepep", matched, config="e", hour=hour) for hour in range(3)]
    fields: dict[str, dict[str, Value]] = {
        "a": {"dispatcher": "alltoall", **plain},
        "d": {"dispatcher": "deepep", "permute_fusion": True, "ep_overlap": True},
        "e": {"dispatcher": "deepep", **plain},
    }
    contracts = {key: {name: Stated(value, "metadata") for name, value in own.items()} for key, own in fields.items()}
    standings = rank_stack(runs, QUIET, contracts)
    (board,) = standings.boards_at("screen")
    assert lead_sentence(board).replace("\u202f", " ") == lead
    (result,) = [item for item in results_of(standings, board) if item.dispatcher == "deepep"]
    expected = (11.1, ()) if matched == 450 else (0.0, ()) if matched else (25.0, ("permute_fusion", "ep_overlap"))
    assert (round(result.gain_pct or 0.0, 1), result.other_knobs) == expected
