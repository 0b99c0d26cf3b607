"""Reading runs by the API: lists by cursor on both databases, series, lines, files, errors."""

import csv
import io
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from pyarrow import parquet
from sqlalchemy import Connection, Engine, event, text
from sqlmodel import Session
from starlette.testclient import TestClient

from app.domain.performance.failures import FailedAllocation, failed_allocation
from app.errors import InvalidQuery
from app.runs import queries
from app.runs.queries import SORTS, RunQuery, find_runs
from app.runs.run_page import memory_bar
from app.settings import Settings
from app.storage import readings, search
from app.storage.database import make_engine, read_session, transaction
from app.storage.search import describe_configurations
from app.storage.tables import ProjectRow, RunResultRow, RunRow, SeriesRow, utc_now
from app.web.lists import PARQUET
from tests.builders import insert_runs, make_project, make_run, make_stack, run_columns
from tests.regressions.judging import arrive, judge_all, steady
from tests.runs.uploading import LOG, assert_problem, upload
from tests.services.postgres_server import Postgres
from workers.tasks import process_run


@pytest.fixture
def run_id(engine: Engine) -> int:
    """A run with two iterations, the second without a loss."""
    with transaction(engine) as session:
        project = ProjectRow(slug="p")
        session.add(project)
        session.flush()
        assert project.id is not None
        run = RunRow(project_id=project.id, name="r", purpose="ci", content_key="k", status="ready")
        session.add(run)
        session.flush()
        assert run.id is not None
        columns = {"iteration": [1, 2], "step_time_ms": [412.5, 400], "lm_loss": [10.5, np.nan]}
        for metric, values in columns.items():
            blob = readings.pack_series(np.asarray(values, dtype=np.float64))
            session.add(SeriesRow(run_id=run.id, metric=metric, unit="ms" * ("ms" in metric), n=2, blob=blob))
        return run.id


def test_series_have_null_where_nothing_was_printed(client: TestClient, run_id: int) -> None:
    assert client.get(f"/api/v1/runs/{run_id}/series").json() == {
        "columns": {"iteration": [1, 2], "step_time_ms": [412.5, 400.0], "lm_loss": [10.5, None]},
        "units": {"iteration": "", "step_time_ms": "ms", "lm_loss": ""},
    }


def test_series_come_as_csv_when_asked_for(client: TestClient, run_id: int) -> None:
    answer = client.get(f"/api/v1/runs/{run_id}/series", headers={"Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.text == "iteration,step_time_ms,lm_loss\n1,412.5,10.5\n2,400.0,\n"


def test_series_and_lists_come_as_parquet(client: TestClient, engine: Engine, run_id: int) -> None:
    with transaction(engine) as session:
        listed_id = make_run(session, branch="parquet")
        created_at = session.get_one(RunRow, listed_id).created_at
    for address, columns in (
        (f"/api/v1/runs/{run_id}/series", {"step_time_ms": [412.5, 400.0], "lm_loss": [10.5, None]}),
        ("/api/v1/runs?branch=parquet", {"id": [listed_id], "created_at": [created_at]}),
        ("/api/v1/regressions", {"id": []}),
    ):
        answer = client.get(address, headers={"Accept": PARQUET})
        assert answer.headers["content-type"] == PARQUET
        table = parquet.read_table(io.BytesIO(answer.content)).to_pydict()
        assert {name: table[name] for name in columns} == columns
        stated = client.get(address, params=dict(parse_qsl(urlsplit(address).query)) | {"format": "parquet"})
        assert (stated.headers["content-type"], stated.content) == (PARQUET, answer.content)
        assert_problem(client.get(address, params={"format": "xlsx"}), 422, "parquet")
    answer = client.get(f"/api/v1/runs/{run_id}/series", headers={"Accept": "text/html"})
    assert_problem(answer, 406, PARQUET)


def test_the_whole_list_comes_as_csv_with_its_filters(client: TestClient, engine: Engine, run_id: int) -> None:
    with transaction(engine) as session:
        ids = [make_run(session, name=f"=cmd {number}", branch="exported") for number in range(5)]
    answer = client.get("/api/v1/runs?branch=exported&page_size=2&sort=created", headers={"Accept": "text/csv"})
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [int(row["id"]) for row in rows] == ids
    assert rows[0]["name"] == "'=cmd 0"
    assert client.get("/runs.csv?branch=exported&sort=created").text == answer.text
    assert client.get("/runs.parquet?branch=exported").status_code == 200
    assert client.get("/regressions.csv").text.startswith("id,project,state")


def test_a_run_that_waits_has_empty_series_and_null_metrics(client: TestClient) -> None:
    location = upload(client, LOG).headers["location"]
    assert client.get(f"{location}/series").json() == {"columns": {}, "units": {}}
    run = client.get(location).json()
    assert run["steady_state"] is None
    assert set(run["metrics"].values()) == {None}


def test_lines_are_numbered_from_one(client: TestClient) -> None:
    location = upload(client, b"first\nsecond <b>\nthird\n" + LOG).headers["location"]
    log = client.get(f"{location}/log?from=2&to=3").json()
    assert log == {
        "line_count": 53,
        "lines": [{"line": 2, "text": "second <b>"}, {"line": 3, "text": "third"}],
    }
    text = client.get(f"{location}/log?from=2&to=3", headers={"Accept": "text/plain"})
    assert text.text == "second <b>\nthird\n"


@pytest.mark.parametrize("query", ["from=0", "from=5&to=4", "from=1&to=5001", "from=x"])
def test_lines_that_mean_nothing_are_refused(client: TestClient, query: str) -> None:
    assert_problem(client.get(f"{upload(client, LOG).headers['location']}/log?{query}"), 422)


def test_a_download_is_an_attachment_without_content_sniffing(client: TestClient) -> None:
    location = upload(client, LOG, name="über die;log.txt.gz").headers["location"]
    answer = client.get(f"{location}/files/0", headers={"Accept-Encoding": "identity"})
    assert answer.content == LOG
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BCber%20die%3Blog.txt"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-length"] == str(len(LOG))


def test_the_list_filters_sorts_and_pages(client: TestClient) -> None:
    for name in ("b", "a", "c"):
        upload(client, LOG, meta={"name": name, "branch": "main" if name < "c" else "other"})
    page = client.get("/api/v1/runs?branch=main&sort=name&page_size=1&page=2").json()
    assert [item["name"] for item in page["items"]] == ["b"]
    assert (page["total"], page["page"], page["pages"]) == (2, 2, 2)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/runs/999", 404),
        ("GET", "/api/v1/runs/999/series", 404),
        ("GET", "/api/v1/runs/999/log", 404),
        ("GET", "/api/v1/runs/999/files/0", 404),
        ("GET", "/api/v1/runs/0", 422),
        ("GET", "/api/v1/runs/99999999999999999999", 422),
        ("GET", "/api/v1/runs/%3Cscript%3E", 422),
        ("GET", "/api/v1/nothing", 404),
        ("GET", "/nothing", 404),
        ("DELETE", "/api/v1/runs", 405),
        ("GET", "/api/v1/runs?page=0", 422),
        ("GET", "/api/v1/runs?sort=password", 422),
        ("GET", "/api/v1/runs?status=%00", 422),
    ],
)
def test_every_error_is_a_problem_document(client: TestClient, method: str, path: str, status: int) -> None:
    assert_problem(client.request(method, path), status)


def test_a_file_that_a_run_does_not_have_is_not_found(client: TestClient) -> None:
    assert_problem(client.get(f"{upload(client, LOG).headers['location']}/files/7"), 404, "no file 7")


def test_a_refused_method_names_those_that_work(client: TestClient) -> None:
    assert "GET" in client.delete("/api/v1/runs/1/series").headers["allow"]


def test_openapi_describes_every_answer(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    for path, calls in document["paths"].items():
        if path.startswith("/api/"):
            for call in calls.values():
                for status, answer in call["responses"].items():
                    if status == "204":
                        continue
                    assert answer["content"], (path, status)
                    problems = "application/problem+json" in answer["content"]
                    assert problems == (int(status) >= 400), (path, status)


RUNS = 230


def _fill(session: Session, count: int) -> None:
    owner = make_project(session, "moe").id or 0
    columns = run_columns("moe", {}, 400.0)
    rows = []
    for number in range(count):
        figures: dict[str, object] = {
            "step_time_ms": None if number % 7 == 0 else 300.0 + number % 20,
            "commit_time": None if number % 7 == 0 else datetime(2026, 9, 1 + number % 20, tzinfo=UTC),
            "outcome": "completed",
        }
        if number % 50 == 0:
            figures |= {"outcome": "failed", "model": "Qwen3-30B-A3B", "verdict": "regression", "badge": "regression"}
        row = columns | figures | {"project_id": owner, "content_key": f"{number:064}", "name": f"run {number % 9}"}
        rows.append(row)
    insert_runs(session, rows)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated_file: Path
) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("paging")
    shutil.copy(migrated_file, folder)
    settings = Settings(data_dir=folder)
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("migrated_template")
        settings = Settings(data_dir=folder, database_url=server.url(server.new_database(template)))
    engine = make_engine(settings)
    with transaction(engine) as session:
        _fill(session, RUNS)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("sort", [sign + name for name in SORTS for sign in ("", "-")])
def test_cursors_lead_through_all_runs_and_back(filled: Engine, sort: str) -> None:
    with read_session(filled) as session:
        whole = [
            run.id for page in (1, 2) for run in find_runs(session, RunQuery(sort=sort, page=page, page_size=150)).items
        ]
        page, forwards = find_runs(session, RunQuery(sort=sort, page_size=40)), []
        while True:
            forwards.append([run.id for run in page.items])
            if not page.after:
                break
            page = find_runs(session, RunQuery(sort=sort, page_size=40, after=page.after))
        backwards = [forwards[-1]]
        while page.before:
            page = find_runs(session, RunQuery(sort=sort, page_size=40, before=page.before))
            backwards.insert(0, [run.id for run in page.items])
    assert len(whole) == len({*whole}) == RUNS
    assert [run for part in forwards for run in part] == whole
    assert backwards == forwards


def test_runs_without_the_figure_come_last_in_both_directions(filled: Engine) -> None:
    without = sum(number % 7 == 0 for number in range(RUNS))
    for sort in ("step_time_ms", "-step_time_ms"):
        with read_session(filled) as session:
            runs = [
                run
                for page in (1, 2)
                for run in find_runs(session, RunQuery(sort=sort, page=page, page_size=200)).items
            ]
            times = {row.id: row.step_time_ms for row in session.execute(text("SELECT id, step_time_ms FROM run"))}
        assert [times[run.id] is None for run in runs] == [False] * (RUNS - without) + [True] * without


def test_a_searched_word_is_counted_further_with_an_index(filled: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_MOST_READ", 100)
    with read_session(filled) as session:
        page = find_runs(session, RunQuery(q="run", page_size=60))
        last = find_runs(session, RunQuery(q="run", page_size=60, page=(RUNS - 1) // 60 + 1))
    reads_runs = filled.dialect.name == "postgresql"
    assert (page.total, page.is_exact) == (100 if reads_runs else RUNS, not reads_runs)
    assert len(page.items) == 60
    assert last.items, "pages beyond the counted ones are reached"


def test_pages_too_deep_for_a_number_are_refused(filled: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "MOST_COUNTED", 100)
    monkeypatch.setattr(queries, "MOST_SKIPPED", 100)
    with read_session(filled) as session:
        page = find_runs(session, RunQuery(page=2))
        assert (page.total, page.is_exact, len(page.items)) == (100, False, 50)
        with pytest.raises(InvalidQuery, match="Invalid filter"):
            find_runs(session, RunQuery(page=3))
        assert len(find_runs(session, RunQuery(page=3, after=page.after)).items) == 50


def _plans(connection: Connection, statements: list[tuple[str, object]]) -> list[str]:
    explain = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
    return [
        "\n".join(str(row) for row in connection.exec_driver_sql(explain + statement, values))
        for statement, values in statements
    ]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"after": "200"},
        {"before": "20"},
        {"sort": "step_time_ms"},
        {"sort": "-tflops_per_gpu"},
        {"sort": "-commit_time"},
        {"outcome": "failed"},
        {"project": "moe"},
        {"model": "Qwen3-30B-A3B"},
        {"model": "Qwen3-30B-A3B", "verdict": "regression"},
    ],
    ids=str,
)
def test_pages_are_read_in_the_order_of_an_index(filled: Engine, query: dict[str, str]) -> None:
    statements: list[tuple[str, object]] = []

    def note(_c: object, _cursor: object, statement: str, values: object, *_: object) -> None:
        if "LIMIT" in statement and "count" not in statement:
            statements.append((statement, values))

    with filled.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET enable_seqscan = off"))  # a table of 230 rows is read faster whole
            connection.execute(text("SET enable_sort = off"))
        with Session(connection) as session:
            event.listen(filled, "before_cursor_execute", note)
            find_runs(session, RunQuery(page_size=20, **query))
            event.remove(filled, "before_cursor_execute", note)
            plans = _plans(connection, statements)
    assert plans
    for plan in plans:
        assert "TEMP B-TREE" not in plan, plan
        assert "Sort" not in plan, plan
        assert "Seq Scan" not in plan, plan
        if filled.dialect.name == "sqlite" and "verdict" in query:
            assert "ix_run_badge" in plan, plan


def test_the_api_names_the_cursors(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        _fill(session, 7)
    first = client.get("/api/v1/runs?page_size=3").json()
    assert (first["total"], first["is_exact"], first["before"]) == (7, True, "")
    second = client.get("/api/v1/runs", params={"page_size": 3, "page": 2, "after": first["after"]}).json()
    assert [run["id"] for run in second["items"]] == [4, 3, 2]
    again = client.get("/api/v1/runs", params={"page_size": 3, "before": second["before"]}).json()
    assert again["items"] == first["items"]
    assert client.get("/api/v1/runs?after=x").status_code == 422
    assert client.get("/api/v1/runs?after=5,x&sort=mfu_pct").status_code == 422
    assert client.get("/api/v1/runs?after=5,x&sort=commit_time").status_code == 422


def listed(client: TestClient, **filters: str) -> list[str]:
    answer = client.get("/api/v1/runs", params=filters)
    assert answer.status_code == 200, answer.text
    return sorted(item["name"] for item in answer.json()["items"])


def test_runs_are_found_by_label_time_and_contract_field(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        for name, cluster, columns in (
            ("a", "eos", {"tags": ["nightly", "fp8"], "commit": "abc123", "uploaded_by": "mia"}),
            ("b", "selene", {"tags": ["nightly"], "commit": "abd999", "job": "train / h100"}),
        ):
            fields: dict[str, Any] = {"cluster": cluster, "container": f"nvcr.io/nvidia/nemo:{name}"}
            make_stack(session, [100.0], fields=fields, name=name, **columns)
        row = session.get_one(RunRow, 2)
        row.created_at = utc_now() - timedelta(days=30)
    describe_configurations(engine)
    for filters, expected in (
        ({"tag": "nightly"}, ["a", "b"]),
        ({"tag": "fp8"}, ["a"]),
        ({"commit": "ab"}, ["a", "b"]),
        ({"commit": "abd"}, ["b"]),
        ({"job": "train / h100"}, ["b"]),
        ({"user": "mia"}, ["a"]),
        ({"cluster": "EOS"}, ["a"]),
        ({"container": "nemo:b"}, ["b"]),
        ({"container": "nvcr.io/nvidia/nemo:b"}, ["b"]),
        ({"container": "nvidia/nemo:b"}, []),
        ({"q": "nemo:b"}, ["b"]),
        ({"q": "emo:b"}, []),
        ({"since": "7d"}, ["a"]),
        ({"until": "7d"}, ["b"]),
        ({"q": "tag:nightly cluster:selene"}, ["b"]),
        ({"q": 'job:"train / h100"'}, ["b"]),
        ({"q": "tp:1 ep:16"}, ["a", "b"]),
        ({"q": "tp:2"}, []),
    ):
        assert listed(client, **filters) == expected, filters
    with transaction(engine) as session:
        session.get_one(RunRow, 1).tags = ["other"]
    assert listed(client, tag="fp8") == []
    assert listed(client, tag="other") == ["a"]
    assert client.get("/runs?tag=other").status_code == 200


@pytest.mark.parametrize(
    ("address", "nearest"),
    [
        ("/api/v1/runs?clustr=eos", "cluster"),
        ("/runs?taggs=x", "tag"),
        ("/api/v1/runs?q=clustre:eos", "cluster"),
        ("/api/v1/runs?since=yesterday", "7d"),
    ],
)
def test_an_unknown_filter_is_refused_with_the_nearest(client: TestClient, address: str, nearest: str) -> None:
    answer = client.get(address, headers={"Accept": "application/json"})
    assert answer.status_code == 422
    assert nearest in answer.text


def test_searches_are_completed(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_stack(session, [100.0], fields={"cluster": "eos"}, tags=["nightly"])
    describe_configurations(engine)
    for typed, expected in (
        ("abc clu", "cluster:"),
        ("tag:ni", "tag:nightly"),
        ("cluster:", "cluster:eos"),
        ("verdict:reg", "verdict:regression"),
        ("gpu:h", "gpu:H100"),
    ):
        assert expected in client.get("/api/v1/run-filters", params={"q": typed}).json()["items"], typed


def test_views_are_saved_for_a_user_or_the_project(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        make_project(session, "moe-lab")
    address = "/api/v1/projects/moe-lab/views"
    for name, body in (("slow", {"query": "verdict=regression", "default": True}), ("new", {"query": "since=7d"})):
        assert client.put(f"{address}/{name}", json=body | {"author": "mia", "shared": True}).status_code == 200
    assert client.put(f"{address}/new", json={"query": "since=1d", "author": "mia", "shared": True}).status_code == 200
    assert [(view["name"], view["default"]) for view in client.get(address).json()["items"]] == [
        ("new", False),
        ("slow", True),
    ]
    answer = client.get("/runs?project=moe-lab&view=default", follow_redirects=False)
    assert answer.headers["location"] == "/runs?project=moe-lab&verdict=regression"
    assert client.put(f"{address}/bad", json={"query": "verdct=x", "author": "mia"}).status_code == 422
    assert client.delete(f"{address}/new?shared=true&author=mia").status_code == 204
    assert client.get("/runs?project=moe-lab&view=new").status_code == 404


# --- The memory bar of a run that ran out of memory.

NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 3 has a total capacity of 79.11 GiB "
    "of which 1.02 GiB is free. Including non-PyTorch memory, this process has 78.08 GiB memory in use. Of the "
    "allocated memory 74.61 GiB is allocated by PyTorch, and 1.57 GiB is reserved by PyTorch but unallocated."
)
OLD = (
    "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 79.15 GiB total capacity; 77.00 GiB "
    "already allocated; 256.00 MiB free; 78.00 GiB reserved in total by PyTorch)"
)


def test_the_line_of_a_failed_allocation_has_its_figures() -> None:
    assert failed_allocation(NEW) == FailedAllocation(1.5, 79.11, 1.02, 74.61, 1.57)
    assert failed_allocation(OLD) == FailedAllocation(0.5, 79.15, 0.25, 77.0)
    assert failed_allocation("CUDA out of memory. Tried to allocate 1.50 GiB.") is None


@pytest.mark.parametrize("line", [NEW, OLD])
def test_the_memory_bar_adds_up_to_the_error_line(line: str) -> None:
    bar = memory_bar({"outcome": "out_of_memory", "evidence": line, "peak_allocated_gib": 12.0}, 80)
    failed = failed_allocation(line)
    assert bar is not None
    assert failed is not None
    sizes = [size for _, _, size in bar.parts]
    assert bar.size == failed.total
    assert bar.label == f"capacity by the log {failed.total:g} GiB"
    assert sum(sizes[:4]) == pytest.approx(failed.total)
    assert sizes[3:] == pytest.approx([failed.free, failed.requested - failed.free])
    assert sum(segment.ms for segment in bar.segments) == pytest.approx(failed.total + failed.requested - failed.free)


def test_a_line_without_figures_leaves_the_peak_of_the_log() -> None:
    bar = memory_bar({"outcome": "out_of_memory", "evidence": "CUDA error", "peak_allocated_gib": 70.0}, 80)
    assert bar is not None
    assert [size for _, _, size in bar.parts] == [70.0, 0.0, 10.0]
    assert bar.label == "GPU memory 80 GiB"
    assert memory_bar({"outcome": "completed", "peak_allocated_gib": 70.0}, 80) is None


# --- The nodes of a run: from an uploaded list, and slow nodes, in the API and on the page.


def test_an_uploaded_list_states_the_nodes(client: TestClient) -> None:
    parts = [("log", ("train.log", LOG)), ("config", ("hostfile", b"gb-nvl-002 slots=4\ngb-nvl-001 slots=4\n"))]
    run = client.post("/api/v1/runs", files=parts).json()["id"]
    process_run(run)
    assert client.get(f"/api/v1/runs/{run}").json()["contract"]["nodes"]["value"] == "gb-nvl-[001-002]"
    answer = client.get(f"/api/v1/runs/{run}/nodes").json()
    assert answer == {"run": run, "nodes": ["gb-nvl-001", "gb-nvl-002"], "suspects": []}
    assert client.get("/api/v1/runs/999/nodes").status_code == 404


def test_a_slow_node_is_named(engine: Engine, settings: Settings, client: TestClient) -> None:
    runs = [
        arrive(engine, time * (1.08 if number % 4 == 0 else 1.0), number, "abc1234")
        for number, time in enumerate(steady(1000, 24))
    ]
    with transaction(engine) as session:
        for number, run in enumerate(runs):
            row = session.get_one(RunResultRow, run)
            nodes = f"n[{number % 3 + 1}],n9" if number % 4 == 0 else f"n[{number % 3 + 1}]"
            stated = {"value": nodes, "source": "metadata", "detail": "node list"}
            row.contract = {**row.contract, "nodes": stated}
            session.add(row)
    judge_all(engine, settings)
    answer = client.get(f"/api/v1/runs/{runs[20]}/nodes").json()
    assert answer["nodes"] == ["n3", "n9"]
    (slow,) = answer["suspects"]
    assert (slow["node"], slow["runs"]) == ("n9", runs[::4])
    assert 6 < slow["delta_pct"] < 10
    assert "<code>n9</code>" in client.get(f"/runs/{runs[20]}?tab=why").text
    assert client.get(f"/api/v1/runs/{runs[21]}/nodes").json()["suspects"] == []
