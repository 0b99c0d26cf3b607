"""Pages of profiles: the walls, tables, comparison, and texts from hostile traces."""

import csv
import io
import re

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.profiles.views import Number, Wall, segments, time_axis
from app.storage.database import transaction
from app.storage.tables import RunRow
from tests.domain.profiles.traces import event, trace_bytes
from tests.profiles.attaching import attach, attached, make_run, trace
from tests.runs.uploading import LOG

HTML = {"Accept": "text/html"}


def page(client: TestClient, address: str) -> str:
    answer = client.get(address, headers=HTML)
    assert answer.status_code == 200, answer.text
    return answer.text


def test_the_page_shows_the_walls_and_what_to_do_next(client: TestClient) -> None:
    run_id = make_run(client)
    profile = attached(client, run_id, trace("ddp-a100-ns"))
    client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"})
    text = page(client, f"/runs/{run_id}/profiles/{profile['id']}")
    assert re.findall(r'data-wall="(\w+)"', text) == ["memory", "communication", "compute"]
    walls = dict(re.findall(r'class="wall( is-wall)?"\s+data-wall="(\w+)"', text))
    assert " is-wall" in walls
    assert "is the wall" in text
    assert 'data-suggestion="' in text
    assert re.search(r'data-class="comm.collective"', text)


def test_the_record_of_a_run_lists_the_files_of_its_profiles(client: TestClient) -> None:
    run_id = make_run(client)
    attached(client, run_id, trace("ddp-a100-ns"))
    files = page(client, f"/runs/{run_id}?tab=record").partition('id="files"')[2]
    assert len(re.findall(rf'<a href="/runs/{run_id}/profiles">[^<]+</a></th><td>profile</td>', files)) == 1


def test_a_figure_just_below_its_threshold_is_borderline_and_opens_nothing() -> None:
    def card(share: float | None) -> Wall:
        return Wall("communication", "Communication", (Number("exposed", share, 0.10),), ())

    states = [(card(share).is_wall, card(share).borderline is not None) for share in (None, 0.07, 0.08999, 0.1, 0.24)]
    assert states == [(False, False), (False, False), (False, True), (True, False), (True, False)]


def profiled_below_the_thresholds(client: TestClient) -> tuple[int, int]:
    """Make a run with 9 % exposed communication, 5 % idle time and 30 % free memory. Return it and its profile."""
    run_id = make_run(client, gpu="H100")
    stated = {"facts": {"mem_alloc_peak_gb": 56.0}, "author": "Ada"}
    client.patch(f"/api/v1/runs/{run_id}/facts", json=stated).raise_for_status()
    kernels = [
        *(event(name="gemm", ts=1000 * at, dur=860, args={"stream": 7}) for at in range(10)),
        *(event(name="ncclDevKernel_AllReduce", ts=1000 * at + 860, dur=90, args={"stream": 9}) for at in range(10)),
    ]
    return run_id, attached(client, run_id, trace_bytes(kernels))["id"]


def test_compute_is_the_wall_by_exclusion_and_its_card_says_so(client: TestClient) -> None:
    run_id, profile_id = profiled_below_the_thresholds(client)
    text = page(client, f"/runs/{run_id}/profiles/{profile_id}")
    walls = {name: is_wall for is_wall, name in re.findall(r'class="wall( is-wall)?"\s+data-wall="(\w+)"', text)}
    assert walls == {"memory": "", "communication": "", "compute": " is-wall"}
    assert "borderline at 9 %" in text.replace("\u202f", " ")
    assert len(re.findall(r'<rect class="k-communication exposed"', text)) == 10


def test_the_bar_divides_idle_time_by_its_reasons() -> None:
    window = {"window_ms": 100.0, "compute_ms": 60.0, "exposed_comm_ms": 20.0, "exposed_copy_ms": 0.0, "idle_ms": 20.0}
    credited = {"gemm": 62.0, "comm.ep": 20.0, "idle.host_sync": 4.0, "idle.unresolved": 16.0}
    split = {"launch_starved": 0.0, "host_sync": 5.0, "issued_other": 0.0, "unresolved": 15.0}
    parts = {"compute": 60.0, "communication": 20.0}
    for own, by_reason in (
        ({"idle_split_ms": split}, {"idle-host-sync": 5.0, "idle-unresolved": 15.0}),
        ({}, {"idle-host-sync": 4.0, "idle-unresolved": 16.0}),  # read by an earlier version
    ):
        bar = segments({"window": window | own, "credited_ms": credited})
        assert {segment.kind: segment.ms for segment in bar} == parts | by_reason
    older = segments({"window": window, "credited_ms": {"gemm": 80.0}})
    assert {segment.kind: segment.ms for segment in older}["idle-unresolved"] == 20.0


def test_a_waiting_profile_polls_and_shows_the_walls_later(client: TestClient) -> None:
    run_id = make_run(client)
    number = attach(client, run_id, trace("ddp-a100-ns")).json()["id"]
    address = f"/runs/{run_id}/profiles/{number}"
    assert f'hx-get="{address}/news?seen=received"' in page(client, address)
    assert client.get(f"{address}/news?seen=received", headers={"HX-Request": "true"}).status_code == 204
    from workers.tasks import process_profile  # noqa: PLC0415

    process_profile(number)
    news = client.get(f"{address}/news?seen=received", headers={"HX-Request": "true"})
    assert 'id="walls"' in news.text
    assert "<html" not in news.text


def test_a_form_attaches_a_profile_and_leads_to_it(client: TestClient) -> None:
    run_id = make_run(client)
    files = [("profile", (f"rank-{rank}.json.gz", trace(f"synthetic/seed-11/ranks-{rank}"))) for rank in range(2)]
    answer = client.post(f"/runs/{run_id}/profiles", files=files, follow_redirects=False)
    assert answer.status_code == 303
    only = client.get(f"/runs/{run_id}/profiles", follow_redirects=False)
    assert (only.status_code, only.headers["location"]) == (303, answer.headers["location"])
    form = f'action="/runs/{run_id}/profiles"'
    assert form in page(client, answer.headers["location"])
    client.post(f"/runs/{run_id}/profiles", files=files[:1])
    listed = page(client, f"/runs/{run_id}/profiles")
    assert answer.headers["location"] in listed
    assert form in listed


def test_the_command_that_records_a_profile_stays_in_the_steady_window(client: TestClient) -> None:
    run_id = make_run(client)
    window = client.get(f"/api/v1/runs/{run_id}").json()["steady_state"]
    steps = re.search(r"--profile-step-start (\d+) --profile-step-end (\d+)", page(client, f"/runs/{run_id}/profiles"))
    assert steps is not None
    assert window["first_iteration"] <= int(steps[1]) < int(steps[2]) <= window["last_iteration"]


def test_a_run_without_profile_leads_to_the_nearest_of_its_model_and_gpu(client: TestClient, engine: Engine) -> None:
    run_id, near, newest, foreign, elsewhere = (
        make_run(client, name=name, project=name[0]) for name in ("a", "a2", "a3", "a4", "b")
    )
    for other in (near, newest, foreign):
        attached(client, other, trace("synthetic/seed-11/pair-before"))

    def leads(run_id: int) -> list[str]:
        return re.findall(r'href="/runs/(\d+)/profiles">#', page(client, f"/runs/{run_id}/profiles"))

    def move(other: int, **fields: str) -> None:
        with transaction(engine) as session:
            row = session.get_one(RunRow, other)
            for name, value in {"config_key": f"own of {other}", **fields}.items():
                setattr(row, name, value)

    move(foreign, model="another model")
    move(newest, stack_key="another container")
    move(near)
    assert leads(run_id) == [str(near)]
    assert leads(elsewhere) == []
    move(near, gpu="another GPU")
    assert leads(run_id) == [str(newest)], "another container of its model and GPU"
    move(newest, gpu="another GPU")
    assert leads(run_id) == []


def test_the_page_of_the_run_shows_its_profile_in_small(client: TestClient) -> None:
    run_id = make_run(client, gpu="H100")
    assert f'hx-get="/runs/{run_id}/profiled"' in page(client, f"/runs/{run_id}")
    part = client.get(f"/runs/{run_id}/profiled", headers={"HX-Request": "true"}).text
    assert re.findall(r'data-wall="(\w+)"', part) == [], "the log shows none"
    assert re.findall(r'data-presumed="(\w+)"', part) == ["communication"]
    assert f'href="/runs/{run_id}/profiles#attach"' in part
    profile = attached(client, run_id, trace("synthetic/seed-11/pair-before"))
    client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"})
    assert "dispatch and permutation" in page(client, f"/runs/{run_id}/profiles/{profile['id']}")
    part = client.get(f"/runs/{run_id}/profiled", headers={"HX-Request": "true"}).text
    assert f"/runs/{run_id}/profiles/{profile['id']}" in part
    assert re.findall(r'data-wall="(\w+)"', part) == ["memory", "communication", "host"]


def limit_of(text: str) -> str:
    match = re.search(r"Limited by: ([^<]+)<", text)
    assert match is not None
    return match[1].strip()


def test_panel_next_step_and_profile_call_the_same_figure_borderline(client: TestClient) -> None:
    run_id, _ = profiled_below_the_thresholds(client)
    panel = client.get(f"/runs/{run_id}/profiled", headers={"HX-Request": "true"}).text
    assert re.findall(r'data-rating="(\w+)"', panel) == ["borderline"]
    wall = client.get(f"/api/v1/runs/{run_id}/suggestions").json()["wall"]
    assert (wall["wall"], wall["certainty"], wall["borderline"]) == ("compute", "measured", ["exposed_comm_frac"])
    assert limit_of(panel) == limit_of(page(client, f"/runs/{run_id}/next"))
    assert "borderline" in limit_of(panel)


def phases_of(client: TestClient, run_id: int) -> dict[str, str]:
    phases = client.get(f"/api/v1/runs/{run_id}/suggestions").json()["phases"]
    return {phase["phase"]: phase["state"] for phase in phases}


def test_the_step_that_requests_a_profile_lists_what_waits_for_it(client: TestClient) -> None:
    run_id = make_run(client)
    text = page(client, f"/runs/{run_id}/next/profile-required")
    assert re.findall(r'data-waits="([\w-]+)"', text)
    command = re.search(r"<code>(nsys profile.*?)</code>", text, re.DOTALL)
    assert command is not None
    assert command[0] in page(client, f"/runs/{run_id}/profiles"), "one command for both pages"
    for flag in ("--capture-range-end=stop", "--profile-ranks 0"):
        assert flag in command[1]


def test_a_profile_among_the_logs_of_an_upload_is_attached_to_their_run(client: TestClient) -> None:
    files = [("log", ("train.log", LOG)), ("log", ("rank-0.json.gz", trace("ddp-a100-ns")))]
    answer = client.post("/upload", files=files, data={"project": "profiled"}, follow_redirects=False)
    run_id = int(answer.headers["location"].rpartition("/")[2])
    assert len(client.get(f"/api/v1/runs/{run_id}/profiles").json()["items"]) == 1
    assert [file["name"] for file in client.get(f"/api/v1/runs/{run_id}").json()["files"]] == ["train.log"]
    alone = client.post("/upload", files=files[1:], data={"project": "profiled"})
    assert alone.status_code == 422
    assert "rank-0.json.gz is a trace or an archive" in alone.text


def test_a_profile_ends_its_phase_and_opens_retuning_until_it_is_removed(client: TestClient) -> None:
    run_id = make_run(client)
    before = phases_of(client, run_id)
    profile = attached(client, run_id, trace("synthetic/seed-11/pair-before"))
    client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"})
    after = phases_of(client, run_id)
    assert (before["profile"], after["profile"]) == ("open", "done")
    assert after["retune"] != "blocked"
    client.delete(f"/api/v1/runs/{run_id}/profiles/{profile['id']}?author=kim")
    assert phases_of(client, run_id) == before


def test_a_run_uses_the_profile_of_a_run_with_the_same_configuration(client: TestClient) -> None:
    run_id, nightly, other = make_run(client), make_run(client, commit="b" * 40), make_run(client, ep=2)
    profile = attached(client, run_id, trace("synthetic/seed-11/pair-before"))
    client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"})
    body = client.get(f"/api/v1/runs/{nightly}/suggestions").json()
    assert body["wall"]["certainty"] == "measured"
    assert f"run #{run_id}" in body["wall"]["because"]
    assert "profile-required" not in [row["rule"] for row in body["suggestions"]]
    text = page(client, f"/runs/{nightly}/next")
    assert f'href="/runs/{run_id}/profiles/{profile["id"]}"' in text
    assert f"(measured on #{run_id}, same configuration)" in text
    assert phases_of(client, other)["profile"] == "open"


def test_suggestions_name_the_profile_and_the_numbers_that_they_rest_on(client: TestClient) -> None:
    attached(client, make_run(client), trace("synthetic/seed-11/pair-before"))
    run_id = make_run(client, exposed_comm_frac=0.5)
    profile = attached(client, run_id, trace("synthetic/seed-11/pair-before"))
    client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"})
    text, address = page(client, f"/runs/{run_id}/next"), f"/runs/{run_id}/profiles/{profile['id']}"
    rank, steps = profile["document"]["facts_from"]["rank"], profile["document"]["quality"]["steps"]
    title = f"profile 1 (rank {rank}, {steps} steps)"
    assert f"measured by {title}; " in text
    assert re.search(
        rf'data-rests-on>\s*[A-Z][a-z ]+ <a href="{address}">{re.escape(title)}</a>: [^<]*exposed_comm_frac 0.15', text
    )
    client.delete(f"/api/v1/runs/{run_id}/profiles/{profile['id']}?author=kim")
    after = page(client, f"/runs/{run_id}/next")
    assert "data-rests-on" not in after
    assert "measured by profile" not in after


def test_the_upload_page_accepts_traces_with_the_log(client: TestClient) -> None:
    files = [("log", ("train.log", LOG)), ("profile", ("rank-0.json.gz", trace("ddp-a100-ns")))]
    answer = client.post("/upload", files=files, data={"project": "profiled"}, follow_redirects=False)
    assert answer.status_code == 303, answer.text
    run_id = answer.headers["location"].rpartition("/")[2]
    assert len(client.get(f"/api/v1/runs/{run_id}/profiles").json()["items"]) == 1


def test_names_from_a_hostile_trace_stay_text(client: TestClient) -> None:
    evil = "<script>alert(1)</script>\"' onload=x {{7*7}} </title>"
    run_id = make_run(client)
    args = {"Collective name": evil, "Process Group Description": evil, "stream": evil}
    events = [event(ts=10 * at, name=f"nccl{evil}" if at % 2 else evil, args=args) for at in range(10)]
    data = trace_bytes(events, deviceProperties=[{"id": 0, "name": evil, "numSms": 10}])
    profile = attached(client, run_id, data, name=f"{evil}.json")
    texts = [page(client, f"/runs/{run_id}/profiles/{profile['id']}"), page(client, f"/runs/{run_id}/profiles")]
    texts.append(client.get(f"/runs/{run_id}/profiles/{profile['id']}/walls.svg").text)
    for text in texts:
        assert "<script>alert" not in text
    assert "&lt;script&gt;" in texts[0]


def test_the_picture_comes_as_svg_and_png(client: TestClient) -> None:
    run_id = make_run(client)
    profile = attached(client, run_id, trace("synthetic/seed-11/moe-deepep-rel_ns"))
    address = f"/runs/{run_id}/profiles/{profile['id']}/walls"
    assert client.get(f"{address}.svg").text.startswith("<svg")
    assert client.get(f"{address}.png").content.startswith(b"\x89PNG")


def test_two_profiles_side_by_side_add_up(client: TestClient) -> None:
    run_id = make_run(client)
    a, b = (attached(client, run_id, trace(f"synthetic/seed-11/pair-{side}"))["id"] for side in ("before", "after"))
    text = page(client, f"/compare/profiles?a={a}&b={b}")
    assert re.findall(r'data-row="([\w.]+)"', text)[0] == "comm.ep"
    rows = list(csv.DictReader(io.StringIO(client.get(f"/compare/profiles.csv?a={a}&b={b}").text)))
    classes = [float(row["difference_ms"]) for row in rows if not row["kernel"]]
    answer = client.get(f"/api/v1/compare/profiles?a={a}&b={b}").json()
    assert abs(sum(classes) - answer["difference_ms"]) < 1e-5


def test_a_comparison_of_two_profiled_runs_leads_to_their_profiles(client: TestClient) -> None:
    runs = [make_run(client), make_run(client, seed=2)]
    comparison = f"/compare?a={runs[0]}&b={runs[1]}"
    a = attached(client, runs[0], trace("synthetic/seed-11/pair-before"))["id"]
    assert "/compare/profiles" not in client.get(comparison).text
    b = attached(client, runs[1], trace("synthetic/seed-11/pair-after"))["id"]
    assert f'href="/compare/profiles?a={a}&amp;b={b}"' in client.get(comparison).text


def test_a_change_is_explained_by_the_profiles_nearest_to_it(client: TestClient) -> None:
    runs = [make_run(client, name=name, branch="main", commit=str(at) * 7) for at, name in enumerate("abc", 1)]
    profiles = {}
    for run_id, side in ((runs[0], "before"), (runs[2], "after")):
        profile = attached(client, run_id, trace(f"synthetic/seed-11/pair-{side}"))
        client.post(f"/api/v1/runs/{run_id}/profiles/{profile['id']}/confirm", json={"author": "kim"})
        profiles[side] = profile["id"]
    part = {"HX-Request": "true"}
    text = client.get(f"/compare/profiled?run={runs[1]}", headers=part).text
    assert f'data-profiles="{profiles["before"]} {profiles["after"]}"' in text
    assert "expert dispatch and combine" in text
    assert "data-profiles" not in client.get(f"/compare/profiled?run={runs[0]}", headers=part).text

    stack = client.get(f"/api/v1/runs/{runs[0]}").json()["stack_key"]
    assert client.get(f"/api/v1/history/{'0' * 64}/profiles").status_code == 404
    listed = client.get(f"/api/v1/history/{stack}/profiles").json()["items"]
    assert [(row["run"], row["profile"]["id"]) for row in listed] == [
        (runs[2], profiles["after"]), (runs[0], profiles["before"]),
    ]  # fmt: skip
    shown = client.get(f"/history/{stack}/profiled", headers=part).text
    assert [int(run) for run in re.findall(r'data-profiled="(\d+)"', shown)] == [runs[2], runs[0]]
    assert client.get(f"/history/{'0' * 64}/profiled", headers=part).text.strip() == ""
    assert f'hx-get="/history/{stack}/profiled"' in page(client, f"/history/{stack}")


def test_whole_graphs_and_failures_have_pages(client: TestClient) -> None:
    from tests.domain.profiles.traces import corpus  # noqa: PLC0415

    run_id = make_run(client)
    graph = attached(client, run_id, (corpus() / "synthetic/seed-11/nsys-whole-graph.sqlite.gz").read_bytes())
    assert "traced as a whole" in page(client, f"/runs/{run_id}/profiles/{graph['id']}")
    failed = attached(client, run_id, b"{}")
    assert "traceEvents" in page(client, f"/runs/{run_id}/profiles/{failed['id']}")


@pytest.mark.parametrize(
    ("window_ms", "unit", "narrow"),
    [
        (18_740.0, "s", ["0", "6", "12", "18"]),
        (15_200.0, "s", ["0", "4", "8", "12"]),
        (640.0, "ms", ["0", "200", "400", "600"]),
        (5_000.0, "s", ["0", "1.5", "3", "4.5"]),
    ],
)
def test_a_narrow_time_axis_has_at_most_four_texts(window_ms: float, unit: str, narrow: list[str]) -> None:
    axis = time_axis(window_ms)
    assert axis.unit == unit
    assert [text for _, text, when_narrow in axis.ticks if when_narrow] == narrow
    assert all(0 <= at <= 100 for at, _, _ in axis.ticks)
