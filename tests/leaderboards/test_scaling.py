"""Scaling through the public interface: page, charts, CSV and API over one workload at several sizes."""

import csv
import io
import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from pyarrow import parquet
from sqlmodel import Session
from starlette.testclient import TestClient

from app.domain.numbers import THIN
from app.pipeline.decisions import quarantine
from tests.builders import FIRST_PLACE, judge, make_stack
from tests.runs.uploading import assert_problem

KNOWN = {"cluster": "west", "pp_layout": "even", "attention": "flash"}
NOISE = (0.0, 2.0, -2.0, 1.0, -1.0, 3.0)


def stack(
    session: Session, ms: float, *, project: str = "moe-lab", started: datetime = FIRST_PLACE, **fields: Any
) -> list[int]:
    times = [ms * (1 + change / 1000) for change in NOISE]
    run_ids = make_stack(session, times, project=project, started=started, fields=KNOWN | fields)
    session.commit()
    return run_ids


def weak(session: Session, *efficiencies: float, **fields: Any) -> list[list[int]]:
    """The first at 16 GPUs, each further one at twice as many, with a batch that grows proportionally."""
    sizes = [16 * 2**k for k in range(len(efficiencies))]
    return [
        stack(session, 31_310.0 / part, gpus=gpus, gbs=64 * gpus, **fields)
        for gpus, part in zip(sizes, efficiencies, strict=True)
    ]


def scaling(client: TestClient, **query: str) -> dict[str, Any]:
    answer = client.get("/api/v1/scaling", params=query)
    assert answer.status_code == 200, answer.text
    document: dict[str, Any] = answer.json()
    return document


def test_weak_scaling_is_relative_to_the_smallest_size(client: TestClient, session: Session) -> None:
    runs = weak(session, 1.0, 0.98, 0.9)
    result = scaling(client)
    assert (result["schema"], result["family"], result["hardware"]) == ("threewalls.scaling/1", "Qwen3-30B-A3B", "H100")
    (series,) = result["series"]
    assert (series["kind"], series["dispatcher"], series["along"]) == ("weak", "alltoall", "gpus")
    assert [point["size"] for point in series["points"]] == [16, 32, 64]
    values = [point["efficiency_pct"]["value"] for point in series["points"]]
    assert values == pytest.approx([100, 98, 90], abs=0.2)
    last = series["points"][-1]
    assert last["efficiency_pct"]["low"] < 90 < last["efficiency_pct"]["high"]
    assert last["runs"] == runs[-1]
    assert result["summary"].replace(THIN, " ").startswith("Weak scaling: alltoall keeps 90.0 % (")


def test_strong_scaling_and_longer_sequences_are_series_of_their_own(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0)
    stack(session, 16_300.0, gpus=32)
    stack(session, 36_000.0, seq_len=8192, gbs=512, cp=2)
    result = scaling(client)
    assert [item["kind"] for item in result["series"]] == ["strong", "sequence_tokens"]
    assert [point["cp"] for point in result["series"][1]["points"]] == [1, 2]
    per_token = result["series"][1]["points"][1]["tokens_pct"]
    assert per_token["value"] == pytest.approx(100 * 31_310 / 36_000, rel=1e-3)
    lists = re.findall(r'<ul class="scaling-sentences">(.*?)</ul>', client.get("/scaling").text, re.DOTALL)
    sentences = [re.sub(r"<[^>]+>", "", text).strip().replace(THIN, " ") for text in lists]
    assert f"({per_token['value']:.1f} % of its tokens/s per GPU)" in sentences[1], "longer sequences cost more FLOPs"
    assert "tokens/s" not in sentences[0], "the work of a token is the same"
    (tokens,) = re.findall(r"Tokens/s per GPU at seq 8,192: [^<]*", client.get("/scaling").text)
    share = f"{per_token['value']:.1f} % of that at seq 4,096. CP 1; CP 2 at 8,192."
    assert tokens.replace(THIN, " ").endswith(share), "an even efficiency hides that tokens take longer"
    assert [item["kind"] for item in scaling(client, kind="strong")["series"]] == ["strong"]
    assert scaling(client, dispatcher="deepep")["series"] == []
    lead = re.findall(r'<p class="answer">(.*?)</p>', client.get("/scaling").text)[0].replace(THIN, " ")
    pattern = r"Efficiency: strong [\d.]+ % at 32 GPUs; MFU at seq 8,192: [\d.]+ % of that at seq 4,096\."
    assert re.fullmatch(pattern, lead), lead


def test_a_workload_of_another_container_makes_no_series_with_it(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0)
    stack(session, 16_300.0, gpus=32, container="nvcr.io/nvidia/nemo:26.09")
    result = scaling(client)
    assert (result["series"], result["offers"]) == ([], [])
    assert result["summary"].startswith("No workload")
    assert "Nothing to scale yet" in client.get("/scaling").text


def test_containers_are_shown_one_at_a_time_the_newest_first(client: TestClient, session: Session) -> None:
    newer = "nvcr.io/nvidia/nemo:26.09"
    weak(session, 1.0, 0.9)
    weak(session, 1.0, 0.95, container=newer, started=FIRST_PLACE + timedelta(days=30))
    result = scaling(client)
    assert (result["container"], len(result["series"])) == (newer, 1)
    assert result["offers"][0]["containers"] == [newer, "nvcr.io/nvidia/nemo:26.06"]
    (older,) = scaling(client, container="nvcr.io/nvidia/nemo:26.06")["series"]
    assert older["points"][-1]["efficiency_pct"]["value"] == pytest.approx(90, abs=0.2)
    assert "No workload" in client.get("/scaling?container=<i>").text


def test_the_container_with_the_most_sizes_is_shown_first(client: TestClient, session: Session) -> None:
    weak(session, 1.0, 0.97, 0.9)
    weak(session, 1.0, 0.95, container="nvcr.io/nvidia/nemo:26.09", started=FIRST_PLACE + timedelta(days=30))
    result = scaling(client)
    assert result["container"] == "nvcr.io/nvidia/nemo:26.06"
    assert result["offers"][0]["sizes"] == {"nvcr.io/nvidia/nemo:26.06": 3, "nvcr.io/nvidia/nemo:26.09": 2}
    assert "nemo:26.09, 2 sizes" in client.get("/scaling").text


def test_configurations_that_differ_in_a_knob_make_no_series(client: TestClient, session: Session) -> None:
    stack(session, 31_310.0)
    stack(session, 16_300.0, gpus=32, ep_overlap=True)
    result = scaling(client)
    assert (result["series"], len(result["offers"])) == ([], 1)
    (near,) = result["nearest"]
    assert (near["kind"], near["sizes"], near["differs_in"]) == ("strong", [16, 32], {"ep_overlap": ["off", "on"]})
    assert result["summary"] == "16 and 32 GPUs cannot be compared: ep_overlap differs."
    page = client.get("/scaling?project=moe-lab").text
    assert f'href="/compare?a={near["runs"][0]}&amp;b={near["runs"][1]}"' in page
    assert "hardware=h100" in page.partition('id="not-comparable"')[2]
    for gpus in (8, 16):
        stack(session, 900.0, model="Mixtral-8x7B", gpus=gpus, gbs=gpus)
    assert client.get("/scaling").url.params["family"] == "mixtral-8x7b", "the one whose sizes compare"
    offers, _, folded = client.get("/scaling?project=moe-lab").text.partition('id="workloads"')[2].partition("<details")
    assert ("mixtral" in offers, "qwen3" in offers, "qwen3" in folded) == (True, False, True)
    assert scaling(client, family="mixtral-8x7b")["nearest"] == []


def test_a_quarantined_run_is_not_part_of_it(client: TestClient, session: Session) -> None:
    runs = weak(session, 1.0, 0.9)
    key = scaling(client)["series"][0]["points"][-1]["stack_key"]

    def leave_out(*left_out: int) -> None:
        for run in left_out:
            quarantine(session, run, "Ada", "a bad node")
        judge(session, "moe-lab", key)
        session.commit()

    leave_out(*runs[-1][1:])
    (series,) = scaling(client)["series"]
    assert series["points"][-1]["runs"] == runs[-1][:1]
    leave_out(runs[-1][0])
    without = scaling(client)
    assert (without["series"], without["offers"]) == ([], []), "a size without usable runs is not counted"


def test_series_of_one_kind_are_named_by_their_differences(client: TestClient, session: Session) -> None:
    weak(session, 1.0, 0.95)
    weak(session, 1.0, 0.97, 0.96, ep_overlap=True)
    names = {item["name"]: item["differs_in"] for item in scaling(client)["series"]}
    assert names == {
        "alltoall (ep_overlap on)": {"ep_overlap": "on"},
        "alltoall (ep_overlap off)": {"ep_overlap": "off"},
    }
    page = client.get("/scaling").text
    assert "ep_overlap on" in page
    assert page.count('class="scaling-sentences"') == 1
    assert page.count('href="#look-0"') == page.count('href="#look-1"') == 2  # next to its sentence and in the table
    chart = client.get("/scaling/chart?draw=weak", headers={"HX-Request": "true"}).text
    assert '"shape": "circle"' in chart
    assert '"shape": "square"' in chart


def test_one_of_several_workloads_is_chosen(client: TestClient, session: Session) -> None:
    weak(session, 1.0, 0.95, 0.9)
    for gpus in (8, 16):
        stack(session, 900.0, project="<other>", model="Mixtral-8x7B", gpu="A100", gpus=gpus, gbs=gpus)
    result = scaling(client)
    assert (result["project"], result["series"], len(result["offers"])) == (None, [], 2)
    answer = client.get("/scaling")
    assert answer.url.params["family"] == "qwen3-30b-a3b"  # the widest
    page = answer.text
    assert "project=%3Cother%3E&amp;hardware=a100&amp;family=mixtral-8x7b" in page
    assert "<other>" not in page
    assert "family=mixtral-8x7b" not in client.get("/scaling?project=moe-lab").text, "a workload of another project"
    assert scaling(client, hardware="a100")["project"] == scaling(client, family="Mixtral-8x7B")["project"] == "<other>"
    for address in ("/scaling", "/scaling.csv", "/api/v1/scaling"):
        assert_problem(client.get(f"{address}?hardware=tpu"), 404, "Available: a100, h100.")


def test_the_page_contains_the_table_and_the_chart_loads_later(client: TestClient, session: Session) -> None:
    weak(session, 1.0, 0.98, 0.9)
    page = client.get("/scaling").text.replace(THIN, " ")
    assert re.search(r'<p class="answer">Efficiency: weak 90.0 % at \d+ GPUs', page)
    assert "alltoall keeps 90.0 %" in page
    assert "data-chart" not in page
    assert page.count('<th scope="row"') == 3
    chart = client.get("/scaling/chart?draw=weak", headers={"HX-Request": "true"}).text
    assert chart.count('"colour": "alltoall"') == 3 + 2 + 1  # points, intervals, the label of the line
    assert '"label": "ideal"' in chart
    zoomed = client.get("/scaling/chart?draw=weak&first=32&last=64", headers={"HX-Request": "true"}).text
    assert (zoomed.count('"colour": "alltoall"'), "All sizes" in zoomed) == (2 + 2 + 1, True)
    alone = client.get("/scaling/chart?draw=weak&first=33&last=64", headers={"HX-Request": "true"}).text
    assert (alone.count('"colour": "alltoall"'), "All sizes" in alone) == (3 + 2 + 1, False), "no line through one size"
    assert client.get("/scaling/chart?draw=strong", headers={"accept": "text/html"}).status_code == 422


def test_the_charts_of_a_page_share_one_scale(client: TestClient, session: Session) -> None:
    weak(session, 1.0, 0.98, 0.9)
    stack(session, 17_000.0, gpus=32, gbs=1024)
    asked = {"HX-Request": "true"}
    charts = [client.get(f"/scaling/chart?draw={kind}", headers=asked).text for kind in ("weak", "strong")]
    scales = {ends for chart in charts for ends in re.findall(r"\[(\d\d)(?:\.0)?, ?(1\d\d)(?:\.0)?\]", chart)}
    ((low, high),) = scales
    assert int(low) <= 90
    assert int(high) >= 100


def test_the_points_are_exported(client: TestClient, session: Session) -> None:
    weak(session, 1.0, 0.9)
    rows = list(csv.DictReader(io.StringIO(client.get("/scaling.csv").text)))
    assert (rows[0]["kind"], rows[0]["size"], rows[0]["efficiency_pct"]) == ("weak", "16", "100.0")
    assert float(rows[1]["efficiency_pct"]) == pytest.approx(90, abs=0.2)
    assert len(rows[1]["runs"].split()) == 6
    table = parquet.read_table(io.BytesIO(client.get("/api/v1/scaling?format=parquet").content)).to_pylist()
    assert [(row["size"], row["efficiency_pct"]) for row in table] == [
        (int(row["size"]), float(row["efficiency_pct"])) for row in rows
    ]


def test_a_wrong_question_is_refused(client: TestClient) -> None:
    assert_problem(client.get("/api/v1/scaling?kind=sideways"), 422, field="kind")
    assert_problem(client.get("/api/v1/scaling?dispatcher=pigeon"), 422, field="dispatcher")
    assert_problem(client.get("/api/v1/scaling?gpu=h100"), 422, field="gpu")
    assert_problem(client.get("/api/v1/scaling?hardware=h100"), 404, "None has been ranked yet")
    assert_problem(client.get("/api/v1/scaling?project=nobody"), 404, "does not exist")
