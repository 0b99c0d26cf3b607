"""Dispatchers by EP degree and the ledger of CUDA graphs: API and pages, from stored runs and from uploads."""

import random
import re
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select
from starlette.testclient import TestClient

from app.domain.numbers import change_text
from app.storage.tables import StackWorkRow
from tests.builders import FIRST_PLACE, make_stack, stated_activity
from tests.leaderboards.arrivals import PROJECT, Job
from tests.runs.uploading import assert_problem
from workers.tasks import judge_stack, process_run

OF = {"hardware": "H100", "family": "Qwen3-30B-A3B"}
PAGE = "/leaderboards/h100/qwen3-30b-a3b"
NOISE = (0.0, 2.0, -2.0, 1.0, -1.0, 3.0)
HYBRIDEP = {"dispatcher_type": "flex", "flex_backend": "hybridep", "dispatcher": "hybridep"}
TE: dict[str, Any] = {"graph_impl": "transformer_engine", "graph_modules": ("attn", "moe_router")}


def stack(session: Session, ms: float, fields: dict[str, Any], **columns: Any) -> list[int]:
    columns = {"activity": stated_activity(fields["dispatcher"])} | columns if "dispatcher" in fields else columns
    run_ids = make_stack(session, [ms * (1 + change / 1000) for change in NOISE], fields=fields, **columns)
    session.commit()
    return run_ids


def matrix(client: TestClient) -> dict[str, Any]:
    (only_matrix,) = client.get("/api/v1/leaderboards/matrix", params=OF).json()["matrices"]
    assert isinstance(only_matrix, dict)
    return only_matrix


def words_of(client: TestClient, address: str) -> str:
    """The text of a page."""
    return " ".join(re.sub(r"<[^>]+>", " ", client.get(address).text.replace("\u202f", " ")).split())


def cell(table: dict[str, Any], dispatcher: str, ep: int) -> dict[str, Any]:
    (row,) = (row for row in table["cells"] if (row["dispatcher"], row["ep"]) == (dispatcher, ep))
    assert isinstance(row, dict)
    return row


def test_each_ep_degree_compares_at_equal_knobs_and_empty_cells_are_suggestions(
    client: TestClient, session: Session
) -> None:
    stack(session, 31_310.0, {"ep": 16})
    fast = stack(session, 26_600.0, HYBRIDEP | {"ep": 16})
    stack(session, 31_310.0, {"ep": 8})
    stack(session, 31_340.0, HYBRIDEP | {"ep": 8})
    last = stack(session, 29_000.0, HYBRIDEP | {"ep": 4})
    table = matrix(client)
    assert (table["eps"], table["dispatchers"]) == ([4, 8, 16], ["alltoall", "hybridep"])
    assert "EP16: hybridep 15.0\u202f% faster" in table["at_equal_knobs"]
    assert cell(table, "hybridep", 16)["runs"] == fast
    equal = cell(table, "hybridep", 16)["at_equal_knobs"]
    assert equal["low_pct"] < 17.7 < equal["high_pct"]
    page = client.get(f"{PAGE}/matrix").text
    assert re.search(r'data-dispatcher="hybridep"\s+data-ep="16"\s+data-tint="2"', page), "a gain of 17.7 %"
    assert not re.search(r'data-dispatcher="hybridep"\s+data-ep="8"\s+data-tint', page), "a tie"
    (empty,) = table["empty"]
    assert (empty["suggestion"], empty["why"]) == ("Run alltoall at EP4", "not_run")
    assert empty["from_run"] in last
    page = client.get(f"{PAGE}/matrix").text
    assert page.count("data-interval>") == len(table["cells"])
    assert page.count("\u202fGiB,") == len(table["cells"]), "the memory of each cell"
    assert f"{cell(table, 'hybridep', 16)['low_ms'] / 1000:.2f}" in page
    marks = re.findall(r'<circle cx="([\d.]+)%" cy="([\d.]+)"', page)
    assert len(marks) == len(table["cells"])
    fastest = min(table["cells"], key=lambda row: row["step_time_ms"])
    assert max(marks, key=lambda mark: float(mark[1]))[0] == "97.0", "lowest in the last column"
    assert fastest["ep"] == 16
    link = f"/runs/{empty['from_run']}/experiments/new?field=dispatcher&value=alltoall"
    assert link in page.replace("&amp;", "&")
    assert client.get(link).status_code == 200


def test_an_ep_degree_that_is_not_clearly_slower_is_named_beside_the_first(
    client: TestClient, session: Session
) -> None:
    stack(session, 31_310.0, {"ep": 16})
    for ep, ms in ((16, 26_600.0), (8, 26_750.0), (4, 29_000.0)):
        stack(session, ms, HYBRIDEP | {"ep": ep})
    answer = client.get("/api/v1/leaderboards/matrix", params=OF).json()["answer"]
    assert re.fullmatch(
        r"hybridep is fastest at EP16 \(26\.\d+ s\), undecided against EP8; 15\.\d % faster than alltoall there\. .*",
        answer.replace("\u202f", " "),
    )


def test_best_against_best_may_differ_in_other_knobs_and_says_so(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0, {})
    stack(session, 30_000.0, HYBRIDEP)
    stack(session, 25_000.0, HYBRIDEP | {"ep_overlap": True})
    row = cell(matrix(client), "hybridep", 16)
    assert row["at_equal_knobs"]["gain_pct"] == pytest.approx(4.4, abs=0.1)
    assert row["best_against_best"]["gain_pct"] == pytest.approx(25.2, abs=0.1)
    assert (len(row["runs"]), row["runs_in_all"]) == (6, 12)
    board = words_of(client, PAGE)
    assert "hybridep ep_overlap on 24.99 s 20.2 % faster, with other knobs 6 runs" in board, "each bar is told apart"
    assert "hybridep ep_overlap off 29.99 s 4.2 % faster, equal knobs 6 runs" in board
    assert re.search(r"hybridep \([\d.]+ s\) is 20\.2 % faster than alltoall, 4\.2 % at equal knobs", board)
    drawn = map(int, re.findall(r"(?:knobs|reference) (\d+) runs", board))
    assert f"{sum(drawn)} runs, " in board, "all that are drawn"


def test_the_reference_has_a_second_bar_if_only_its_slower_configuration_has_equal_knobs(
    client: TestClient, session: Session
) -> None:
    stack(session, 24_000.0, {"permute_fusion": True})
    stack(session, 31_310.0, {"permute_fusion": False})
    stack(session, 22_000.0, HYBRIDEP | {"permute_fusion": False})
    board = words_of(client, PAGE)
    assert re.search(r"alltoall permute_fusion off 31.\d\d s hybridep 29.\d % faster, equal knobs 6 runs", board)
    assert re.search(r"alltoall permute_fusion on 2[34].\d\d s reference 6 runs", board)
    assert client.get(PAGE).text.count('<li class="is-measured">') == 3, "one configuration, one bar"


def test_matrix_and_board_represent_a_dispatcher_by_the_same_configuration(
    client: TestClient, session: Session
) -> None:
    stack(session, 31_310.0, {})
    ranked = stack(session, 25_000.0, HYBRIDEP)
    fields = HYBRIDEP | {"ep_overlap": True}
    (lucky,) = make_stack(session, [24_950.0], fields=fields, activity=stated_activity("hybridep"))
    session.commit()
    row = cell(matrix(client), "hybridep", 16)
    assert (row["runs"], row["runs_in_all"]) == (ranked, len(ranked) + 1), f"#{lucky} is one run that ties"
    (item,) = client.get("/api/v1/leaderboards").json()["items"]
    assert item["boards"][0]["entries"][0]["runs"] == list(map(str, ranked))


def test_step_times_from_1000_ms_on_are_seconds_and_an_empty_cell_names_its_plan(
    client: TestClient, session: Session
) -> None:
    stack(session, 6_559.0, {"ep": 16})
    stack(session, 6_900.0, HYBRIDEP | {"ep": 16})
    stack(session, 7_100.0, HYBRIDEP | {"ep": 8})
    text = words_of(client, f"{PAGE}/matrix")
    assert "Plan alltoall at EP8" in text
    assert re.search(r"\b6\.5\d\d s\b", text)
    assert not re.search(r"\d,\d{3} ms", text + words_of(client, PAGE))


def test_the_ab_that_would_decide_a_board_shows_its_cost(client: TestClient, session: Session) -> None:
    for times, fields in (([40_000.0, 40_400.0], {}), ([40_600.0, 42_600.0], HYBRIDEP)):
        make_stack(session, times, fields=fields, activity=stated_activity(str(fields.get("dispatcher", "alltoall"))))
    session.commit()
    assert re.search(r"Plan A/B: \d+ more runs? each, about [\d.]+ GPU-hours", words_of(client, PAGE))


def test_a_board_shows_what_the_knobs_of_a_dispatcher_are_worth(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0, {})
    stack(session, 30_000.0, HYBRIDEP)
    stack(session, 25_000.0, HYBRIDEP | {"ep_overlap": True})
    page = client.get(PAGE).text
    (section,) = re.findall(r'<section[^>]+aria-labelledby="knobs-[a-z]+".*?</section>', page, re.DOTALL)
    times = re.findall(r'data-label="Step time">([\d.]+)', section)
    assert times == ["24.99", "29.99"], "the ranked configuration first"
    assert "20.0\u202f% slower" in section


def test_a_single_ep_degree_offers_the_next_degrees_that_the_gpus_allow(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0, {"ep": 16})
    fast = stack(session, 26_600.0, HYBRIDEP | {"ep": 16})
    page = client.get(f"{PAGE}/matrix").text.replace("&amp;", "&")
    assert "board-picture" in page, "a leaderboard shows all of one EP degree"
    plans = set(re.findall(r'href="(/runs/\d+/experiments/new[^"]+)"', page))
    assert plans == {f"/runs/{fast[-1]}/experiments/new?field=ep&value=8"}, "16 GPUs"
    places = [float(place) for place in re.findall(r'<circle cx="([\d.]+)%" cy="50%" r="7"', page)]
    assert places == sorted(set(places)), "the fastest first, left of the other"
    assert len(places) == 2
    assert client.get(plans.pop()).status_code == 200


def test_what_does_not_exist_is_refused(client: TestClient, session: Session) -> None:
    assert_problem(client.get("/api/v1/leaderboards/matrix", params=OF), 404)
    assert client.get(f"{PAGE}/matrix").status_code == 404
    stack(session, 31_310.0, {})
    assert client.get("/api/v1/leaderboards/matrix", params=OF).json()["matrices"] == []
    assert client.get(f"{PAGE}/matrix", follow_redirects=False).headers["location"] == PAGE, "nothing to compare"
    assert_problem(client.get("/api/v1/leaderboards/matrix", params=OF | {"project": "none"}), 404)


TIMES = {"hybridep": 340.0, "deepep": 352.0, "alltoall": 410.0, "allgather": 520.0}
CELLS = [(dispatcher, ep) for ep in (16, 8, 4, 2) for dispatcher in TIMES]
SLOWER = {16: 1.0, 8: 1.09, 4: 1.3, 2: 1.7}


def run_night(client: TestClient, engine: Engine, day: int, cells: list[tuple[str, int]]) -> dict[str, Any]:
    """Upload the cells of one commit, judging after each. Return their verdicts by cell."""
    runs: dict[str, int] = {}
    for dispatcher, ep in cells:
        # The flags in the log state EP16; the metadata of a matrix job override them.
        runs[f"{dispatcher} EP{ep}"] = run = Job(
            dispatcher, TIMES[dispatcher] * SLOWER[ep], day, meta=(("ep", ep), ("job", "matrix"))
        ).upload(client)
        process_run(run)
        with Session(engine) as session:
            waiting = session.exec(select(StackWorkRow.id).where(StackWorkRow.work != "")).all()
        for work_id in waiting:
            judge_stack(work_id or 0)
    return {name: client.get(f"/api/v1/runs/{run}/verdict").json() for name, run in runs.items()}


@pytest.mark.parametrize("seed", [0, 1])
def test_cells_of_a_matrix_from_ci_are_judged_against_themselves(client: TestClient, engine: Engine, seed: int) -> None:
    shuffle = random.Random(seed)  # noqa: S311
    nights = [
        run_night(client, engine, day, shuffle.sample(CELLS, len(CELLS) - missing)) for day, missing in ((3, 1), (5, 0))
    ]
    assert {(cell["verdict"], cell["baseline"]["kind"]) for cell in nights[0].values()} == {("no_baseline", "none")}
    for name, cell_verdict in nights[1].items():
        before = [str(nights[0][name]["run"])] if name in nights[0] else []
        assert cell_verdict["baseline"]["runs"] == before
        assert cell_verdict["verdict"] not in ("regression", "improvement")
        if not before:
            (closest,) = cell_verdict["nearest_misses"]
            assert closest["comparability"]["kind"] == "matched_ab"
            page = client.get(f"/compare?a={closest['run']}&b={cell_verdict['run']}")
            assert page.status_code == 200
    matrices = client.get("/api/v1/leaderboards/matrix", params=OF | {"project": PROJECT}).json()["matrices"]
    assert [(row["eps"], len(row["cells"]), row["empty"]) for row in matrices] == [([2, 4, 8, 16], 16, [])]
    assert client.get(f"/api/v1/regressions?project={PROJECT}").json()["items"] == []


def test_the_ledger_of_graphs_says_what_fits_gains_and_was_not_captured(client: TestClient, session: Session) -> None:
    none: dict[str, Any] = {"graph_impl": "none", "graph_modules": None}
    activity = {"graph_impl": {"requested": {"value": TE["graph_impl"], "source": "arguments"}, "active": None,
                            "agrees": None}}  # fmt: skip
    stack(session, 31_310.0, none, peak_memory_gib=60.0)
    stack(session, 29_000.0, TE, peak_memory_gib=64.5, activity=activity)
    failures = [
        {"kind": "out_of_memory"},
        {"kind": "exception", "title": "operation not permitted when stream is capturing"},
    ]
    failed: dict[str, Any] = {"status": "failed", "outcome": "failed", "failures": failures}
    fields: dict[str, Any] = TE | {"graph_modules": ()}
    make_stack(session, [1.0], fields=fields, health={"iterations": 0, "outcome": "failed"}, **failed)
    late: dict[str, Any] = failed | {"failures": failures[:1], "peak_memory_gib": 77.3}
    make_stack(session, [1.0], fields=TE, health={"iterations": 9, "outcome": "failed"}, **late)
    session.commit()
    rows = {row["scope"]: row for row in client.get("/api/v1/leaderboards/graphs", params=OF).json()["scopes"]}
    assert list(rows) == ["none", "transformer_engine: attn, moe_router", "transformer_engine: whole layers"]
    narrow, layers = rows["transformer_engine: attn, moe_router"], rows["transformer_engine: whole layers"]
    assert (narrow["fitted"], narrow["not_shown"], narrow["peak_gib"]) == (6, 6, 64.5)
    (gain,) = narrow["gains"]
    assert (gain["more_gib"], gain["tie"]) == (4.5, False)
    assert gain["low_pct"] < 8.0 < gain["high_pct"]
    assert (layers["fitted"], layers["out_of_memory"], layers["gains"]) == (0, 1, [])
    assert [row["capture_failed"] for row in rows.values()] == [0, 0, 1]
    page = client.get(f"{PAGE}/graphs").text
    assert page.count("out of memory at 77.3") == 1
    cells = re.findall(
        r'data-scope="([^"]+)".*?data-label="runs">.*?>(\d+)</a>.*?data-label="fits">(.*?)</td>(.*?)</tr>', page
    )
    assert [scope for scope, *_ in cells] == list(rows)
    for _, runs, fits, rest in cells:
        assert sum(map(int, re.findall(r"\d+", fits))) == int(runs)
        captures = re.sub(r"<[^>]+>", "", rest.partition('data-label="capture">')[2])
        assert sum(map(int, re.findall(r"\d+", captures))) in (0, int(runs))
    plans = re.findall(r'href="(/runs/\d+/experiments/new[^"]+)"', page)
    assert plans == [], "whole layers never fitted, and the others have an answer"
    assert 'id="published"' in page


def test_a_scope_without_a_rival_offers_the_experiment(client: TestClient, session: Session) -> None:
    runs = stack(session, 29_000.0, TE)
    page = client.get(f"{PAGE}/graphs").text
    (plan,) = re.findall(r'href="(/runs/\d+/experiments/new[^"]+)"', page)
    assert plan == f"/runs/{runs[-1]}/experiments/new?field=graph_impl&amp;value=none"
    assert client.get(plan.replace("&amp;", "&")).status_code == 200


def test_runs_without_graphs_offer_the_experiment_with_them(client: TestClient, session: Session) -> None:
    none: dict[str, Any] = {"graph_impl": "none", "graph_modules": None}
    runs = stack(session, 31_310.0, none)
    (plan,) = re.findall(r'href="(/runs/\d+/experiments/new[^"]+)"', client.get(f"{PAGE}/graphs").text)
    assert plan == f"/runs/{runs[-1]}/experiments/new?field=graph_impl"
    assert client.get(plan).status_code == 200
    missing = client.get(f"{PAGE}/graphs").text.partition('id="missing"')[2]
    assert re.findall(r'href="(/runs/\d+)"', missing) == [f"/runs/{runs[-1]}"]
    ledger = client.get("/api/v1/leaderboards/graphs", params=OF).json()
    assert ledger["published"]
    assert ledger["published_elsewhere"] == []


def test_without_published_results_the_ledger_has_all_of_other_models_on_the_gpu(
    client: TestClient, session: Session
) -> None:
    family: dict[str, Any] = {"model": "Qwen3-235B-A22B", "graph_impl": "none", "graph_modules": None}
    stack(session, 31_310.0, family)
    ledger = client.get("/api/v1/leaderboards/graphs", params=OF | {"family": "Qwen3-235B-A22B"}).json()
    saved = [item["step_time_saved_pct"] for item in ledger["published_elsewhere"]]
    assert ledger["published"] == []
    assert min(saved) < 0 < max(saved)
    page = client.get("/leaderboards/h100/qwen3-235b-a22b/graphs").text
    bars = page.partition('id="published"')[2]
    assert all(item["setting"] in bars for item in ledger["published_elsewhere"])
    ends = [change_text(-end).figure for end in (min(saved), max(saved))]
    assert ledger["answer"].endswith(f"{' to '.join(ends)}.")


@pytest.mark.parametrize(
    ("with_graphs", "commits", "also"),
    [(20_000.0, {}, ["recompute_modules"]), (31_200.0, {"commit": "b2"}, ["recompute_modules", "code"])],
)
def test_the_nearest_pair_with_and_without_graphs_has_the_result_of_its_comparison(
    client: TestClient, session: Session, with_graphs: float, commits: dict[str, str], also: list[str]
) -> None:
    none = {"graph_impl": "none", "graph_modules": None, "mbs": 2, "recompute_modules": ("mlp",)}
    without = stack(session, 31_310.0, none)
    stack(session, 29_000.0, TE | {"mbs": 1, "ep": 8})
    near = stack(session, with_graphs, TE | {"mbs": 2, "recompute_modules": ("moe",)}, **commits)
    html = client.get(f"{PAGE}/graphs").text.replace("&amp;", "&")
    assert html.count("data-bars-note") == html.count("data-picture"), "each list of bars says what their length means"
    a, b = re.findall(r"/compare\?a=(\d+)&b=(\d+)", html)[0]
    assert (int(a) in without, int(b) in near) == (True, True)
    text = words_of(client, f"{PAGE}/graphs")
    compared = words_of(client, f"/compare?a={a}&b={b}")
    (start, change) = re.findall(r"(Inconclusive: )?B is ([\d.]+ % faster(?: \([^)]+\))?)", compared)[0]
    figure, _, interval = change.partition(" (")
    assert f"{start}#{b} with graphs is {figure} than #{a} ({interval}." in text
    assert re.findall(r"they also differ in ([\w, ]+?) #", text) == [", ".join(also)]
    row = text.partition("vs. no graphs")[2]
    assert f"{figure} than #{a}{', inconclusive' * bool(start)}" in row
    assert ("hollow undecided" in html) == bool(start) == (with_graphs > 31_000)


def test_the_index_names_the_container_of_a_ranking_that_a_newer_container_lacks(
    client: TestClient, session: Session
) -> None:
    stack(session, 30_000.0, {"ep": 8})
    stack(session, 27_000.0, HYBRIDEP | {"ep": 8})
    address = re.escape(f'href="{PAGE}"')
    before = client.get("/leaderboards").text
    assert not re.search(rf'{address}[^>]*title="[^"]*in nemo:26.06', before)
    assert ('class="cell won leads"' in before, "1 is unconfirmed" in before) == (True, False)
    newer = {"ep": 8, "container": "nvcr.io/nvidia/nemo:26.09"}
    stack(session, 30_000.0, newer, started=FIRST_PLACE + timedelta(days=30))
    title = "in nemo:26.06, no ranking in nemo:26.09 yet"
    page = client.get("/leaderboards").text
    assert re.search(rf'{address}[^>]*title="[^"]*{title}', page)
    assert ('class="cell won"' in page, "1 is unconfirmed" in page) == (True, True), "no lead in the newest container"


def test_the_matrix_says_where_the_best_results_have_different_ep_degrees(client: TestClient, session: Session) -> None:
    for ep, alltoall, hybridep in ((8, 30_000.0, 29_000.0), (16, 31_000.0, 27_000.0)):
        stack(session, alltoall, {"ep": ep})
        stack(session, hybridep, HYBRIDEP | {"ep": ep})
    assert "hybridep at EP16, alltoall at EP8" in client.get(f"{PAGE}/matrix").text
    lead = r"hybridep \(EP16, [\d.]+ s\) is 10\.0 % faster than alltoall \(EP8\), 12\.9 % at EP16, 3\.3 % at EP8"
    assert re.search(lead, words_of(client, PAGE))
    assert "hybridep 10.0 % faster" in words_of(client, "/leaderboards"), "the figure with which the board begins"


def test_the_pages_of_a_board_count_its_ranked_stacks_too(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0, {})
    stack(session, 30_000.0, HYBRIDEP)
    stack(session, 20_000.0, {"gbs": 256})
    text = words_of(client, PAGE)
    assert "1 unranked stack" in text
    assert "of 2" not in text[text.index("1 unranked stack") :], "one page has no pages"
    for length in range(10):
        make_stack(session, [20_000.0], fields={"gbs": 300 + length})
    session.commit()
    text = words_of(client, PAGE)
    assert re.search(r"11 unranked stacks .* 1–10 of 12 stacks, ranked ones first Next", text)
