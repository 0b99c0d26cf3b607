"""Comparisons: the page and `GET /api/v1/compare`."""

import html
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.compare.queries import SideSelection
from app.errors import InvalidQuery
from app.storage.database import transaction
from app.storage.tables import ExperimentRow, ExperimentRunRow, RunRow
from tests.builders import FIRST_PLACE, make_stack
from tests.compare.runs import make_compared, timers

HTML = {"Accept": "text/html"}
HTMX = {"HX-Request": "true"}
OTHER_CONTAINER = {"container": "nvcr.io/nvidia/nemo:26.08"}

Make = Callable[..., int]


@pytest.fixture
def make(engine: Engine) -> Make:
    def make(fields: dict[str, Any] | None = None, **columns: Any) -> int:
        with transaction(engine) as session:
            return make_compared(session, fields, **columns)

    return make


def words(page: str) -> str:
    """Return the visible text."""
    main = page[page.index("<main") :] if "<main" in page else page
    text = re.sub(r"<script.*?</script>", "", main, flags=re.DOTALL)
    text = re.sub(r"</?code>", "", text)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", text)))


def specification(page: str) -> dict[str, Any]:
    (spec,) = re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    assert "<" not in spec
    result: dict[str, Any] = json.loads(spec)
    return result


def test_the_answer_comes_first_then_the_figures_then_what_differs(client: TestClient, make: Make) -> None:
    a, b = make(name="off"), make({"ep_overlap": True}, name="on", step_time_ms=23_800.0)
    text = words(client.get(f"/compare?a={a}&b={b}").text)
    assert re.search(r"B is 24\.0 % faster.*? ep_overlap\.", text)
    order = ("One knob: ep_overlap", "matched A/B B is faster", "A step of B is 24.0 % faster than one of A", "Figures")
    places = [text.index(part) for part in (*order, "Differences", "off arguments on metadata knob")]
    assert places == sorted(places)
    assert re.search(r"Step time 31\.28 s ± 0\.41 23\.78 s ± 0\.31 24\.0 % faster \(.*?\) better", text)
    assert "Peak memory 61.4 GiB 61.4 GiB" in text
    assert "Loss at iterations 41 to 50" in text


def test_the_loss_names_the_iterations_that_both_sides_have(client: TestClient, make: Make) -> None:
    run, long, short = make(), make({"ep_overlap": True}), make({"ep_overlap": True}, iterations=30)
    losses = [client.get(f"/api/v1/compare?a={run}&b={other}").json()["loss"] for other in (long, short)]
    assert [(loss["first_iteration"], loss["last_iteration"]) for loss in losses] == [(41, 50), (21, 30)]
    assert losses[0]["baseline"] != losses[1]["baseline"]


def test_no_winner_is_named_between_two_containers(client: TestClient, make: Make) -> None:
    a, b = make(), make(OTHER_CONTAINER, step_time_ms=40_000.0)
    text = words(client.get(f"/compare?a={a}&b={b}").text)
    body = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert (body["kind"], body["attributed_to"], body["winner"]) == ("contrast", "container", None)
    assert "No winner: container differs" in text
    axis, _, figures = text[text.index("Figures") : text.index("Differences")].partition(" Decision ")
    assert axis.endswith("← better worse →"), "also of memory and loss"
    assert "slower" in figures
    assert "not ranked" in figures
    assert not re.search(r"better|(?<!no )worse|regression|improvement", figures)


def test_different_tasks_are_shown_and_not_compared(client: TestClient, make: Make) -> None:
    a, b = make(), make({"gpu": "GB200", "gpus": 64, "cluster": ...}, step_time_ms=9_000.0)
    text = words(client.get(f"/compare?a={a}&b={b}").text)
    assert "incomparable no winner" in text
    assert "31.28 s" in text
    assert "not compared" not in text
    assert "Their speeds cannot be compared: gpu and gpus differ." in text
    assert "Cluster, west" not in text
    assert text.index("Differences") < text.index("Figures") < text.index("Step times of both sides")
    assert "meta.cluster" in text


@pytest.mark.parametrize(
    ("fields", "columns", "says"),
    [
        ({"routing_mode": "forced-balance"}, {}, "No winner: forced balance against natural routing"),
        ({}, {"definition_version": 2}, "No winner: the figures use different versions"),
        ({}, {"health": {"outcome": "failed"}}, "No winner: #2 failed (the job failed)"),
        ({}, {"quarantine": "a hot node"}, "No winner: #2 is quarantined: a hot node"),
        ({}, {"status": "failed"}, "No winner: #2 failed"),
    ],
)
def test_the_sentence_explains_why_there_is_no_winner(
    client: TestClient, make: Make, fields: dict[str, Any], columns: dict[str, Any], says: str
) -> None:
    make()
    make(fields, step_time_ms=40_000.0, **columns)
    page = client.get("/compare?a=1&b=2")
    assert page.status_code == 200
    assert says in words(page.text)
    assert "is better" not in words(page.text)


def test_a_comparison_that_cannot_be_ranked_offers_the_nearest_fair_ones(client: TestClient, make: Make) -> None:
    a, other = make(), make(OTHER_CONTAINER, step_time_ms=40_000.0)
    again, knob = make(), make({**OTHER_CONTAINER, "ep_overlap": True}, step_time_ms=38_000.0)
    page = client.get(f"/compare?a={a}&b={other}").text
    assert "Likely cause: container; not ranked." in words(page)
    assert re.findall(r'class="fair"\s+href="/compare\?a=(\d+)&amp;b=(\d+)"', page) == [
        (f"{knob}", f"{other}"),
        (f"{again}", f"{a}"),
    ]
    assert re.findall(r'class="button primary"\s+href="(/(?:runs|compare)[^"]+)"', page) == [f"/runs/{other}/next"]
    ranked = client.get(f"/compare?a={other}&b={knob}").text
    assert f"#{other} against #{knob} (one knob: ep_overlap (on → off))" in words(page)
    assert 'class="fair"' not in ranked
    assert "data-bootstrap" in ranked
    sets = client.get(f"/compare?a={a},{again}&b={other}").text
    assert 'class="fair"' not in sets, "a pair does not answer what was asked about a set"


def test_short_runs_are_directional_with_their_iterations(client: TestClient, make: Make) -> None:
    a, b = make(iterations=10), make({"ep_overlap": True}, iterations=12, step_time_ms=23_800.0)
    text = words(client.get(f"/compare?a={a}&b={b}").text)
    assert client.get(f"/api/v1/compare?a={a}&b={b}").json()["directional"] is True
    assert "6 iterations of A" in text


def test_a_set_is_pooled_by_run_and_names_contradictions(client: TestClient, make: Make) -> None:
    a = [make(name=f"a{k}", step_time_ms=31_300.0 + 50 * k) for k in range(3)]
    b = [make({"ep_overlap": True}, name=f"b{k}", step_time_ms=23_800.0 + 50 * k) for k in range(3)]
    address = f"/compare?a={','.join(map(str, a))}&b={','.join(map(str, b))}"
    text = words(client.get(address).text)
    assert "A is 3 reruns" in text
    assert client.get(f"/api/v1{address}").json()["kind"] == "matched_ab"
    other = make(OTHER_CONTAINER)
    text = words(client.get(f"{address},{other}").text)
    body = client.get(f"/api/v1{address},{other}").json()
    assert (body["kind"], body["winner"]) == ("incomparable", None)
    assert "container, ep_overlap" in text
    assert "/compare?a=1,2,3&amp;b=4,5,6" in client.get(f"{address},{other}").text  # the address without it


def test_both_sides_of_a_row_have_one_unit(client: TestClient, make: Make) -> None:
    a, b = make(step_time_ms=31_300.0), make({"ep_overlap": True}, step_time_ms=9_400.0)
    assert re.search(
        r"Step time 31\.27 s ± 0\.41 9\.39\d s ± 0\.12\d ", words(client.get(f"/compare?a={a}&b={b}").text)
    )


def test_timers_stand_side_by_side(client: TestClient, make: Make) -> None:
    a, b = make(timers=timers()), make({"ep_overlap": True}, timers=timers(0.7))
    text = words(client.get(f"/compare?a={a}&b={b}").text)
    assert "25.00 s 80.0 % 17.50 s 80.0 % −7,500 ms" in text


def test_packages_and_environment_are_listed_by_side(client: TestClient, make: Make) -> None:
    a = make({"nccl_version": "2.27", "env.NCCL_NVLS_ENABLE": "1"})
    b = make({"nccl_version": "2.28"})
    text = words(client.get(f"/compare?a={a}&b={b}").text)
    environment = text[text.index("Environment and packages: 2 differ") :]
    assert "nccl_version 2.27 metadata 2.28 metadata" in environment
    assert "NCCL_NVLS_ENABLE 1 metadata unknown" in environment
    assert "1 environment variable" in text


def test_an_environment_that_no_run_states_is_not_recorded(client: TestClient, make: Make) -> None:
    a, b = make(), make()
    text = words(client.get(f"/compare?a={a}&b={b}").text)
    assert "Environment and packages: not recorded" in text
    assert "0 differ" not in text


def test_both_series_are_aligned_at_the_start_of_their_windows(client: TestClient, make: Make) -> None:
    a, b = make(), make({"ep_overlap": True}, iterations=80)
    spec = specification(client.get(f"/compare/series?a={a}&b={b}", headers=HTMX).text)
    points = spec["datasets"]["points"]
    starts = {point["side"]: point["iteration"] for point in points if point["offset"] == 0}
    assert starts == {"a": 5, "b": 5}
    assert {point["side"]: point["run"] for point in points} == {"a": a, "b": b}
    low, high = (corner["shown"] for corner in spec["datasets"]["frame"])
    lane = spec["datasets"]["lane"]
    assert {row["side"] for row in lane} == {"a", "b"}, "the first iterations are far off"
    rows = {side: {row["height"] for row in lane if row["side"] == side} for side in ("a", "b")}
    assert not rows["a"] & rows["b"], "no mark covers one of the other side"
    assert all(any(row["lane"] for row in lane if row["side"] == side) for side in rows)
    for point in points:
        is_on_scale = low <= point["value"] <= high
        assert point["shown"] == (point["value"] if is_on_scale else None), "a mark lies at its value, or in the lane"
        assert (
            is_on_scale
            or {"run": point["run"], "text": point["text"]}.items()
            <= max(
                (row for row in spec["datasets"]["lane"] if (row["run"], row["at"]) == (point["run"], point["at"])),
                key=len,
            ).items()
        )
    table = words(client.get(f"/compare/series?a={a}&b={b}&view=table&series=lm_loss", headers=HTMX).text)
    assert re.search(r"−4 12\.10 12\.10 ", table)
    assert re.search(r" 45 \d\.\d+ \d\.\d+ 46 – 8\.\d+", table)
    assert client.get(f"/compare?a={a}&b={b}&series=nothing", headers=HTML).status_code == 422


def test_a_zoom_keeps_its_iterations_and_fits_the_axis_to_them(client: TestClient, make: Make) -> None:
    a, b = make(), make({"ep_overlap": True})
    address = f"/compare/series?a={a}&b={b}"
    whole = specification(client.get(address, headers=HTMX).text)["datasets"]
    block = client.get(f"{address}&first=0&last=9", headers=HTMX).text
    zoomed = specification(block)["datasets"]
    assert {point["offset"] for point in zoomed["points"]} == set(range(10))
    assert zoomed["frame"][1]["shown"] < whole["frame"][1]["shown"]
    assert f'hx-get="/compare/series?a={a}&amp;b={b}"' in block, "leads back to all iterations"
    assert client.get(f"/compare?a={a}&b={b}&first=x", headers=HTML).status_code == 422


def test_long_series_are_thinned_and_the_page_says_so(client: TestClient, make: Make) -> None:
    a, b = make(iterations=10_000), make({"ep_overlap": True}, iterations=10_000)
    block = client.get(f"/compare/series?a={a}&b={b}", headers=HTMX).text
    points = specification(block)["datasets"]["points"]
    assert len(points) == 2 * 589
    assert all(point["low"] <= point["shown"] <= point["high"] for point in points if point["shown"] is not None)
    assert "17 iterations" in words(block)


def test_distributions_are_densities_or_single_values(client: TestClient, make: Make) -> None:
    a, b = make(), make({"ep_overlap": True}, iterations=10)
    data = specification(client.get(f"/compare/distributions?a={a}&b={b}", headers=HTMX).text)["datasets"]
    assert {row["run"] for row in data["density"]} == {a}
    assert [row["run"] for row in data["dots"]] == [b] * 6
    assert [(row["side"], row["n"]) for row in data["boxes"]] == [("a", 46), ("b", 6)]


def test_the_label_of_the_only_drawn_side_has_its_colour(client: TestClient, make: Make) -> None:
    def rows_of_a(a: int, b: int) -> list[str]:
        block = client.get(f"/compare/distributions?a={a}&b={b}", headers=HTMX).text
        return re.findall(r"datum\.value \\u003c (\d)", block)

    failed, b = make(status="failed"), make({"ep_overlap": True})
    assert rows_of_a(failed, b) == ["0"]
    assert rows_of_a(b, failed) == ["1"]


def test_nothing_chosen_offers_recent_pairs_and_runs(client: TestClient, make: Make) -> None:
    assert "Choose two runs" in words(client.get("/compare").text)
    a, b = make(name="off"), make({"ep_overlap": True}, name="on")
    page = client.get("/compare").text
    assert f'href="/compare?a={a}&amp;b={b}"' in page
    assert "ep_overlap (off → on)" in words(page)
    assert f'href="/compare?a={a}"' in page
    text = client.get(f"/compare?b={b}").text
    assert f'href="/compare?a={a}&amp;b={b}"' in text
    assert f"Choose #{a} for A" in text
    assert f"Choose #{b} for B" in client.get(f"/compare?a={a}").text, "the older run is the baseline"
    assert f"Choose #{a} for A" in client.get(f"/compare?a={b}").text


def test_a_contrast_with_other_code_is_not_attributed_to_its_field(client: TestClient, make: Make) -> None:
    a, b = make(), make(OTHER_CONTAINER, step_time_ms=40_000.0, commit="bbbb2222")
    page = client.get(f"/compare?a={a}&b={b}").text
    text = words(page)
    assert "several differences no winner" in text
    assert re.findall(r'data-suspect="(\w+)"', page) == ["possible", "possible"], "nothing tells which of them it was"
    body = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert (body["kind"], body["attributed_to"]) == ("contrast", None)


def test_a_matched_ab_with_other_code_does_not_credit_the_knob(client: TestClient, make: Make) -> None:
    a = make(name="off", commit="a" * 40)
    b = make({"ep_overlap": True}, name="on", commit="b" * 40, step_time_ms=23_800.0)
    same = make({"ep_overlap": True}, name="same code", commit="a" * 40, step_time_ms=23_800.0)
    page = client.get(f"/compare?a={a}&b={b}").text
    badges = page[page.index('id="result"') : page.index('id="confidence"')]
    assert "matched A/B, other code B is faster" in words(badges)
    assert 'class="badge good' not in badges
    page = client.get(f"/compare?a={a}&b={same}").text
    badges = page[page.index('id="result"') : page.index('id="confidence"')]
    assert "matched A/B B is faster" in words(badges)
    assert 'class="badge good' in badges
    assert "matched A/B, other code" in words(client.get("/compare").text)


def test_an_undecided_comparison_offers_what_decides_it(client: TestClient, make: Make) -> None:
    a, again = make(name="off", commit="a" * 40), make(name="off again", commit="b" * 40, step_time_ms=31_300.0)
    near = make({"ep_overlap": True}, name="on", commit="a" * 40, step_time_ms=31_200.0)
    far = make({"ep_overlap": True}, name="on", commit="a" * 40, step_time_ms=23_800.0)

    def action(b: int) -> list[str]:
        main = client.get(f"/compare?a={a}&b={b}").text.partition("<main")[2]
        return [html.unescape(address) for address in re.findall(r'class="button primary"\s+href="([^"]*)"', main)]

    assert action(near) == [f"/runs/{a}/experiments/new?field=ep_overlap&value=true"]
    assert action(again) == [f"/runs/{again}?tab=why#rerun"]
    assert action(far) == [f"/runs/{far}/next"]
    chosen = re.findall(r'<option value="(\w+)"\s+selected', client.get(action(near)[0]).text)
    assert {"ep_overlap", "true"} <= {*chosen}


def test_a_rerun_of_the_same_code_leads_to_the_noise_of_its_stack(client: TestClient, make: Make) -> None:
    sides = make(commit="a" * 40), make(commit="a" * 40)
    unknown = client.get("/api/v1/compare?a={}&b={}".format(*sides)).json()["unknown"]
    a, b = (make(dict.fromkeys(unknown, 1), commit="a" * 40, step_time_ms=ms) for ms in (31_280.0, 31_300.0))
    key = client.get(f"/api/v1/runs/{b}").json()["stack_key"]
    page = client.get(f"/compare?a={a}&b={b}").text.partition("<main")[2]
    assert re.findall(r'class="button primary"\s+href="([^"]*)"', page) == [f"/history/{key}"]
    assert "data-needs" not in page, "more runs decide nothing"


def test_the_numbers_of_a_side_are_edited_in_a_fold(client: TestClient, make: Make) -> None:
    a, b = make(name="off"), make({"ep_overlap": True}, name="on")
    page = client.get(f"/compare?a={a}&b={b}").text
    folds = re.findall(r'<details class="side-change">.*?</details>', page, re.DOTALL)
    assert [re.findall(r'id="combo-(.)"', fold) for fold in folds] == [["a"], ["b"]]
    assert page.count('id="combo-') == 2


def test_offered_runs_are_grouped_by_workload(client: TestClient, make: Make) -> None:
    for name, model in (("first", "Mixtral-8x7B"), ("second", "DeepSeek-V3"), ("third", "Mixtral-8x7B")):
        make(name=name, model=model)
    page = client.get("/compare").text
    picker = page[page.index('id="compare-picker"') :]
    assert re.findall(r'<h3[^>]*>(\S+?),|<a href="/runs/\d+" title="(\w+)">', picker) == [
        ("Mixtral-8x7B", ""), ("", "third"), ("", "first"), ("DeepSeek-V3", ""), ("", "second"),
    ]  # fmt: skip


def test_the_pair_with_the_clearest_result_comes_first(client: TestClient, make: Make) -> None:
    long = "mcore_tp2_pp2_ep2_etp2_te_4experts2parallel_overlap_grad_reduce dgx_gb200"
    make({"delay_wgrad": False}, name="off", step_time_ms=24_950.0)
    a = make({"ep_overlap": True, "delay_wgrad": False}, name=long, step_time_ms=24_900.0)
    b = make({"ep_overlap": True, "delay_wgrad": True}, name="fused", step_time_ms=21_000.0)
    make({"ep_overlap": True, "delay_wgrad": False}, name="again", step_time_ms=21_030.0)
    page = client.get("/compare").text
    pairs = page[page.index("pairs-list") : page.index("Newest runs")]
    assert pairs.index(f"a={a}&amp;b={b}") == pairs.index("a="), "the decided one is first"
    assert re.search(r"B 15\.\d % faster delay_wgrad \(off → on\).*? fused #\d+ matched A/B", words(pairs))
    assert "inconclusive" in words(pairs)
    assert "mcore_tp2_pp2_ep2_etp2_te_4e…erlap_grad_reduce dgx_gb200" in words(pairs)


def test_of_an_experiment_the_baseline_is_side_a_even_if_it_ran_later(
    client: TestClient, engine: Engine, make: Make
) -> None:
    candidate, baseline = make({"ep_overlap": True}, name="on"), make(name="off")
    with transaction(engine) as session:
        row = ExperimentRow(
            project_id=session.get_one(RunRow, baseline).project_id, baseline_run_id=baseline, title="x", stack_key="",
            baseline_key="", tag="x", state="waiting", created_by="Ada",
        )  # fmt: skip
        session.add(row)
        session.flush()
        for run, side in ((candidate, "candidate"), (baseline, "baseline")):
            session.add(ExperimentRunRow(experiment_id=row.id, run_id=run, side=side, joined_by="tag"))
    page = client.get("/compare").text
    assert f'href="/compare?a={baseline}&amp;b={candidate}"' in page
    pair = client.get(f"/compare?a={baseline}&b={candidate}").text
    assert f"<h1>#{candidate} against baseline #{baseline}</h1>" in pair
    assert "ep_overlap (off → on)" in words(page)


def test_a_name_in_the_box_of_a_side_is_searched_for(client: TestClient, make: Make) -> None:
    a, b = make(name="fused"), make({"ep_overlap": True}, name="on")
    page = client.get(f"/compare?a=fused&b={b}").text
    assert f'href="/compare?a={a}&amp;b={b}"' in page
    assert "No matching runs" in client.get("/compare?a=nothing").text


def test_the_picker_offers_the_same_stack_first_and_finds_by_words(client: TestClient, make: Make) -> None:
    a, other, near = make(name="first"), make(OTHER_CONTAINER, name="another"), make({"ep_overlap": True}, name="near")
    make(OTHER_CONTAINER, name="newest")
    block = client.get(f"/compare?a={a}&b={other}&pick=b", headers=HTMX).text
    assert block.strip().startswith('<div id="compare-picker">')
    assert re.findall(r'<a href="/runs/\d+" title="(\w+)">', block) == ["near", "newest"]
    assert words(block).count("same stack") == 1
    assert f'href="/compare?a={a}&amp;b={near}"' in block
    assert f'href="/compare?a={a}&amp;b={other},{near}"' in block
    text = client.get(f"/compare?a={a}&pick=b&q=NEW", headers=HTMX).text
    assert re.findall(r'<a href="/runs/\d+" title="(\w+)">', text) == ["newest"]


@pytest.mark.parametrize(
    ("address", "status", "says"),
    [
        ("/compare?a=1&b=99", 404, "Run #99 does not exist."),
        ("/compare?a=1&b=1", 422, "contains #1, like `a`: a run cannot be compared with itself"),
        ("/compare?a=1&b=2", 409, "#2 is not processed yet"),
        ("/compare?a=1;2&b=3", 422, "must be run numbers"),
        ("/compare/series?a=1", 422, "A comparison has two sides"),
        ("/compare?run=1&run=99", 404, "Run #99 does not exist."),
        ("/compare?run=x", 422, "run numbers"),
    ],
)
def test_what_cannot_be_compared_says_so(client: TestClient, make: Make, address: str, status: int, says: str) -> None:
    make()
    make(status="processing")
    answer = client.get(address, headers=HTML)
    assert answer.status_code == status
    assert says in html.unescape(answer.text)


def test_a_run_that_exists_stays_chosen_beside_one_that_does_not(client: TestClient, make: Make) -> None:
    a = make()
    page = client.get(f"/compare?a={a}&b=99999", headers=HTML)
    chosen = page.text[page.text.index('class="chosen"') :]
    assert (page.status_code, re.findall(r'href="/runs/(\d+)"', chosen)[:1]) == (404, [str(a)])
    assert "#99999" not in chosen


def test_runs_selected_in_the_list_become_two_sides(client: TestClient, make: Make) -> None:
    first, second, third = make(name="a"), make({"ep_overlap": True}, name="b"), make({"ep_overlap": True}, name="c")
    answer = client.get(f"/compare?run={third}&run={first}&run={second}", follow_redirects=False)
    assert answer.headers["Location"] == f"/compare?a={first}&b={second},{third}"
    response = client.get(f"/compare?run={third}", follow_redirects=False)
    assert response.headers["Location"] == f"/compare?b={third}"


def test_hostile_names_and_values_stay_text(client: TestClient, make: Make) -> None:
    attack = "<script>alert(1)</script>"
    a = make({"container": attack}, name=attack, branch=attack, quarantine=attack)
    b = make({"container": f"{attack}`"}, name='"><img src=x>')
    for address in (f"/compare?a={a}&b={b}&pick=a", "/compare", f"/compare?q={attack}", f"/compare?a={attack}"):
        for headers in (HTML, HTMX | HTML):
            text = client.get(address, headers=headers).text
            assert attack not in text, address
            assert "<img src=x>" not in text, address


# --- The URL of a comparison: its parameters, refused values, and links.


def read(**params: str) -> SideSelection:
    return SideSelection.from_params(params)


def test_an_address_says_everything_and_nothing_twice() -> None:
    result = read(a="1, #2,2", b="3", series="lm_loss")
    assert (result.a, result.b) == ((1, 2), (3,))
    assert result.address() == "/compare?a=1,2&b=3&series=lm_loss"
    assert result.swapped() == "/compare?a=3&b=1,2&series=lm_loss"
    assert result.without("a", 1) == "/compare?a=2&b=3&series=lm_loss"
    assert result.added("b", 9) == "/compare?a=1,2&b=3,9&series=lm_loss"
    assert result.instead("b", 9) == "/compare?a=1,2&b=9&series=lm_loss"
    assert SideSelection().address() == "/compare"


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"a": "x"}, "a"),
        ({"a": "0"}, "a"),
        ({"b": "٣"}, "b"),
        ({"b": "99999999999"}, "b"),
        ({"a": "1,2", "b": "2"}, "b"),
        ({"a": ",".join(map(str, range(1, 23)))}, "a"),
        ({"view": "map"}, "view"),
        ({"pick": "c"}, "pick"),
        ({"q": "\0"}, "q"),
        ({"page": "-1"}, "page"),
    ],
)
def test_what_means_nothing_is_refused_by_its_name(params: dict[str, str], field: str) -> None:
    with pytest.raises(InvalidQuery) as refused:
        read(**params)
    assert [error.field for error in refused.value.errors] == [field]


WEEK = timedelta(days=7)


def test_a_matched_ab_names_its_knob_and_its_winner(client: TestClient, make: Make) -> None:
    a, b = make(), make({"ep_overlap": True}, step_time_ms=23_800.0, iterations=10)
    body = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert (body["kind"], body["attributed_to"], body["winner"]) == ("matched_ab", "ep_overlap", "b")
    (difference,) = body["differences"]["recipe"]
    assert (difference["a"]["value"], difference["a"]["source"]) == (False, "arguments")
    assert (difference["b"]["value"], difference["role"]) == (True, "config")
    time = body["metrics"]["step_time_ms"]
    assert time["ci_low_pct"] < time["delta_pct"] < time["ci_high_pct"] < 0
    assert body["metrics"]["tokens_per_s_per_gpu"]["delta_pct"] > 0
    assert time["decision"] == body["metrics"]["mfu_pct"]["decision"] == "better"
    assert (body["directional"], body["fewest_iterations"]) == (True, [46, 6])
    assert body["loss"]["decision"] == "no_worse"
    assert [(distribution["side"], distribution["n"]) for distribution in body["distributions"]] == [
        ("a", 46),
        ("b", 6),
    ]
    assert body["test"]["baseline_runs"] == [a]
    assert "task" in body["unknown"]
    assert "model" in body["same"]
    assert body["url"].endswith(f"/compare?a={a}&b={b}")


def test_a_contrast_has_no_winner_and_says_why(client: TestClient, make: Make) -> None:
    a, b = make(), make({"container": "nemo:26.08"}, step_time_ms=40_000.0)
    body = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert (body["kind"], body["attributed_to"], body["winner"]) == ("contrast", "container", None)
    assert ["container" in reason for reason in body["no_winner_because"]] == [True]
    assert body["metrics"]["step_time_ms"]["decision"] == "differs"


def test_incomparable_runs_are_not_measured(client: TestClient, make: Make) -> None:
    a, b = make(), make({"container": "nemo:26.08", "gpus": 32})
    body = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert (body["kind"], body["test"], body["winner"]) == ("incomparable", None, None)
    assert body["not_measured_because"]
    assert body["metrics"]["step_time_ms"]["baseline"] is not None
    assert body["metrics"]["step_time_ms"]["delta_pct"] is None


def test_a_set_of_different_jobs_names_the_differing_fields(client: TestClient, make: Make) -> None:
    a, b, other = make(), make(commit="aaaa1111"), make({"ep_overlap": True}, commit="bbbb2222")
    body = client.get(f"/api/v1/compare?a={a}&b={b},{other}").json()
    assert (body["b"]["reruns"], body["b"]["differ_in"]) == (False, ["ep_overlap", "commit"])
    assert body["kind"] == "side_by_side"
    assert body["test"] is None


def test_the_family_sharpens_a_comparison_as_it_does_a_verdict(client: TestClient, make: Make) -> None:
    for config in range(5):
        for k in range(3):
            fields = {"tp": config + 2}
            make(fields, purpose="ci", step_time_ms=31_300.0 * (1 + 0.001 * k), commit=f"{config}{k}cccc")
    a, b = make(), make({"ep_overlap": True}, step_time_ms=30_000.0)
    body = client.get(f"/api/v1/compare?a={a}&b={b}").json()
    assert body["test"]["learned_from"] == 5
    assert body["winner"] == "b"


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("", 422, "a"),
        ("a=1", 422, "b"),
        ("a=1&b=1", 422, "b"),
        ("a=x&b=1", 422, "a"),
        ("a=1&b=99", 404, None),
        ("a=1&b=2", 409, None),
    ],
)
def test_errors_are_problem_documents(
    client: TestClient, make: Make, query: str, status: int, field: str | None
) -> None:
    make()
    make(status="received")
    answer = client.get(f"/api/v1/compare?{query}")
    assert answer.status_code == status
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert [error["field"] for error in answer.json().get("errors", [])][:1] == ([field] if field else [])


def test_a_run_and_its_baseline_get_the_interval_of_the_verdict(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for number in range(6):  # six configurations of the family, from which the variation is learned
            times = [20_000.0, 20_120.0, 19_950.0 + 20 * number, 20_060.0]
            make_stack(session, times, fields={"dispatch_sms": 8 + number}, judged=False)
        runs = make_stack(session, [20_000.0, 20_100.0, 19_950.0, 20_050.0, 20_900.0], started=FIRST_PLACE + WEEK)
    verdict = client.get(f"/api/v1/runs/{runs[-1]}/verdict").json()
    baseline = ",".join(str(run) for run in runs[:-1])
    body = client.get(f"/api/v1/compare?a={baseline}&b={runs[-1]}").json()
    sides = (verdict["metrics"]["step_time_ms"], body["metrics"]["step_time_ms"])
    assert sides[0]["ci_low_pct"] is not None
    for name in ("delta_pct", "ci_low_pct", "ci_high_pct"):
        assert sides[0][name] == pytest.approx(sides[1][name])
    assert "data-judged" not in client.get(f"/compare?a={baseline}&b={runs[-1]}").text
    alone = client.get(f"/compare?a={runs[-2]}&b={runs[-1]}").text
    assert "data-judged" in alone, "the verdict, which has another figure, is named"


def test_both_sides_are_chosen_in_one_form(client: TestClient) -> None:
    page = client.get("/compare").text
    (form,) = re.findall(r'<form class="combos".*?</form>', page, re.DOTALL)
    assert re.findall(r'<input[^>]* name="([^"]+)"', form) == ["a", "b"]
    assert form.count('type="submit"') == 1
