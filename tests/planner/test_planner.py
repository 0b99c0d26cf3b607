"""The planner through the public interface: a page to share, the same as JSON, errors with advice, and a run's link."""

import html
import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.domain.planning.hardware import in_gib
from app.domain.planning.plan import make_plan
from app.domain.planning.request import read_request
from app.domain.run import Value
from app.pipeline.rank import rebuild_all
from app.planner.pages import EXAMPLES
from app.planner.queries import short_reason
from app.planner.views import ROWS
from app.storage.database import transaction
from tests.builders import FIRST_PLACE, make_run, make_stack
from tests.experiments.planned import add_runs, make_baseline, make_history, plan, read
from tests.runs.uploading import assert_problem

DEEPSEEK = {
    "model": "dsv3", "mtp": "1", "gpu": "H100", "gpus": "256", "seq_len": "4096", "gbs": "8192", "precision": "fp8_sc",
}  # fmt: skip
WRONG = {
    "model": "Qwen3-30B-A3B",
    "gpu": "H100",
    "gpus": "24",
    "seq_len": "4096",
    "tp": "2",
    "pp": "2",
    "cp": "1",
    "ep": "8",
}


def planned(client: TestClient, **query: str) -> dict[str, Any]:
    answer = client.get("/api/v1/plan", params=query)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def page(client: TestClient, query: dict[str, str]) -> str:
    answer = client.get("/plan", params=query, headers={"Accept": "text/html"})
    assert answer.status_code == 200
    return html.unescape(answer.text)


def test_the_api_offers_layouts_best_first_with_their_flags(client: TestClient) -> None:
    document = planned(client, **DEEPSEEK)
    first = document["offers"][0]
    assert [first[name] for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "edp")] == [1, 8, 2, 1, 32, 1, 32, 1]
    assert first["pp_layout"] == "Et*4|(tttt|)*14tmL"
    prediction = first["prediction"]
    assert prediction["fits"]
    assert prediction["step_time_low_s"] < prediction["step_time_s"] < prediction["step_time_high_s"]
    assert sum(prediction["memory_parts_gb"].values()) == pytest.approx(prediction["peak_gb"], abs=0.05)
    assert sum(prediction["step_time_parts_s"].values()) == pytest.approx(prediction["step_time_s"], rel=1e-3)
    assert "--grad-reduce-in-bf16" in first["megatron_lm"]
    assert document["calibration"]["step_time_records"] > 0
    assert "--expert-model-parallel-size 32" in first["megatron_lm"]
    assert "model.expert_model_parallel_size=32" in first["megatron_bridge"]
    assert (document["given"], document["closest"], document["first_cp"]) == (None, [], 1)
    assert len(document["offers"]) == 50
    assert sum(rejection["alone"] for rejection in document["rejected"]) <= document["tried"] - document["feasible"]
    nearest = document["nearby"][0]
    assert (nearest["layout"]["gpus"], nearest["layout"]["gpu"]) == (256, "H100")


def test_an_offer_is_judged_the_same_at_its_own_address(client: TestClient) -> None:
    first = planned(client, **DEEPSEEK)["offers"][0]
    answer = client.get("/api/v1" + first["url"].removeprefix("http://testserver"))
    given = answer.json()["given"]
    assert given == first | {"other_vpp": given["other_vpp"]}
    assert given["violations"] == []


def test_a_broken_layout_has_each_constraint_named(client: TestClient) -> None:
    given = planned(client, **WRONG)["given"]
    assert [violation["constraint"] for violation in given["violations"]] == ["scale-world-identity"]
    assert "ETP x EP x PP = 1 x 8 x 2 = 16" in given["violations"][0]["text"]
    text = page(client, WRONG)
    assert "violates 1 constraint" in text
    assert "divisible by both meshes" in text


def test_what_cannot_be_understood_is_refused_by_field(client: TestClient) -> None:
    assert_problem(client.get("/api/v1/plan?gpu=H100&gpus=many&seq_len=4096&model=mine"), 422, field="gpus")
    assert_problem(client.get("/api/v1/plan?gpu=H100&gpus=8&seq_len=4096&model=mine"), 422, field="num_layers")
    assert_problem(client.get("/api/v1/plan"), 422, field="model")
    assert_problem(client.get("/api/v1/plan?speed=9"), 422, field="speed")
    answer = client.get("/plan?model=<b>mine&gpus=many&speed=9", headers={"Accept": "text/html"})
    assert answer.status_code == 422
    assert "<b>mine" not in answer.text
    for message in ("Correct the marked fields", "must be a whole number from 1 to 131,072", "<code>speed</code>"):
        assert message in answer.text
    shown = re.findall(r'<p class="error" id="d-gpus">.*?</svg>\s*(.*?)</p>', answer.text, re.DOTALL)
    assert shown == ["GPUs must be a whole number from 1 to 131,072."]
    large = client.get("/api/v1/plan", params=DEEPSEEK | {"mtp": "101", "tp": "0"}).json()["errors"]
    ranges = {error["field"]: re.findall(r"[\d,]+", error["message"]) for error in large}
    assert ranges == {"mtp": ["0", "100"], "tp": ["1", "131,072"]}
    assert '<a href="/plan" aria-current="page">Planner</a>' in answer.text


def test_the_page_begins_with_the_newest_run_else_with_an_example(client: TestClient, engine: Engine) -> None:
    text = page(client, {})
    assert 'id="flags"' in text
    assert re.search(r'name="model"\s+value="DeepSeek-V3"', text)
    examples = [re.search(rf'href="(/plan\?[^"]+)">{re.escape(label)}<', text) for label, _ in EXAMPLES]
    assert all(link and 'id="flags"' in client.get(link[1]).text for link in examples)
    with transaction(engine) as session:
        make_run(session, name="older", gpus=32)
        make_run(session, name="newest")
    text = page(client, {})
    assert '<div class="plan-request">' in text, "the form is open"
    assert re.search(r'name="model"\s+value="Qwen3-30B-A3B"', text)
    assert 'id="given"' not in text, "its work is planned anew, its layout is not fixed"


def test_where_nothing_is_feasible_the_closest_layouts_say_why(client: TestClient) -> None:
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "30", "seq_len": "4096", "gbs": "7", "pp": "7"}
    assert planned(client, **query)["offers"] == []
    text = page(client, query)
    assert "Closest layouts" in text
    assert "None of" in text


def test_where_a_fixed_degree_rules_out_all_it_is_named_with_the_reason_and_freed_first(client: TestClient) -> None:
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "gbs": "1024"}
    document = planned(client, **query, tp="3")
    assert "with TP 3 is feasible" in document["answer"]
    violations = {item["constraint"]: item["text"] for item in document["closest"][0]["violations"]}
    everywhere = {row["constraint"] for row in document["rejected"] if row["count"] == document["tried"]}
    assert "plan-heads-tp" in everywhere
    assert all((text in document["answer"]) == (name in everywhere) for name, text in violations.items())
    text = page(client, query | {"tp": "3"})
    top = text.partition("page-head")[2].partition('id="closest"')[0]
    primary = re.findall(r'<(?:a|button) class="button primary"(?:\s+href="(/plan[^"]+)")?', top)
    assert [dict(parse_qsl(html.unescape(address).removeprefix("/plan?"))) for address in primary] == [query]


def test_a_missing_batch_is_named_where_no_step_time_is_predicted(client: TestClient) -> None:
    query = {"model": "DeepSeek-V3", "gpu": "GB300", "gpus": "256", "seq_len": "4096"}
    missing = "Without a global batch size no step time is predicted."
    assert (missing in planned(client, **query)["answer"], missing in page(client, query)) == (True, True)
    assert missing not in planned(client, **query, gbs="4096")["answer"]


def test_where_memory_is_short_the_answer_states_it_and_the_gpus_that_are_enough(client: TestClient) -> None:
    query = {"model": "DeepSeek-V3", "gpu": "H100", "gpus": "8", "seq_len": "4096", "gbs": "512"}
    document = planned(client, **query)
    least, enough = in_gib(document["closest"][0]["prediction"]["peak_gb"]), document["enough_gpus"]
    assert document["answer"].startswith(f"Needs {least:,.0f} GiB per GPU, 69 usable; {enough} GPUs fit, offloading ")
    for asked in (query, query | dict(zip(("tp", "pp", "cp", "ep"), "1118", strict=True))):
        (primary,) = re.findall(r'<a class="button primary"\s+href="(/plan[^"]+)"', page(client, asked))
        assert dict(parse_qsl(html.unescape(primary).removeprefix("/plan?"))) == query | {"gpus": str(enough)}
        assert 'id="flags"' in page(client, query | {"gpus": str(enough)})


def test_a_published_speed_beside_the_plan_has_the_same_number_format(client: TestClient) -> None:
    beside = page(client, DEEPSEEK | {"tp": "4"}).split('class="beside-published"')[1].split("</p>")[0]
    assert "fp8" in beside


def test_a_run_links_to_the_planner_with_its_own_facts(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session)
    text = html.unescape(client.get(f"/runs/{run}").text)
    (address,) = re.findall(r'href="(/plan\?[^"]+)">Plan layout', text)
    for fact in ("model=Qwen3-30B-A3B", "gpus=16", "ep=16", "gbs=1024"):
        assert fact in address
    edited_page = page(client, dict(parse_qsl(address.removeprefix("/plan?"))))
    assert "TP1 PP1 CP1 EP16 ETP1" in edited_page
    assert f'href="/runs/{run}"' in edited_page  # a run of this service, among the layouts that were used
    assert client.get("/api/v1" + address).json()["given"]["edp"] == 1


def test_a_quarantined_run_is_not_an_example(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session, quarantine="broken node", quarantined_by="Ada")
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096"}
    assert f'href="/runs/{run}"' not in page(client, query)


def table_rows(client: TestClient, **query: str) -> list[str]:
    """Return the rows of the table of layouts, as the browser gets it after a click on a heading."""
    answer = client.get("/plan", params=query, headers={"HX-Request": "true", "Accept": "text/html"})
    assert answer.status_code == 200
    return html.unescape(answer.text).partition("<tbody>")[2].partition("</tbody>")[0].split("<tr")[1:]


def test_the_page_shows_picture_and_chosen_layout_then_the_table_of_all(client: TestClient) -> None:
    text = page(client, DEEPSEEK)
    document = planned(client, **DEEPSEEK)
    first = document["offers"][0]["prediction"]
    (seconds,) = (float(value) for value in re.findall(r'data-seconds="([\d.]+)"', text))
    assert seconds == pytest.approx(first["step_time_s"], rel=1e-4)
    card = text[text.index('id="best"') : text.index("</article>")]
    assert ("optimizer states in host memory" in card) is (first["optimizer_offload"] > 0)
    assert text.index('class="answer"') < text.index('id="layout-chart"') < text.index('id="layout-table"')
    assert "GEMMs take" in text[text.index('id="details"') :]
    rows = table_rows(client, **DEEPSEEK)
    assert len(rows) == ROWS
    assert f"of {len(document['offers']) + len(document['too_large'])}" in text
    title = re.sub(r"\s+", " ", text.partition('id="layouts-title">')[2].partition("</h2>")[0]).strip()
    fitting = len(document["offers"])
    listed = fitting + len(document["too_large"])
    assert title == f"{listed} of {document['feasible']:,} layouts; {fitting} fit", "as many as the pages have"
    assert [row.count('aria-current="true"') for row in rows] == [1] + [0] * (ROWS - 1)
    for offer, row in zip(document["offers"], rows, strict=False):
        assert f"{in_gib(offer['prediction']['peak_gb']):.0f} GiB" in row
        (address,) = re.findall(r'href="(/plan\?[^"]+)"', row)
        assert dict(parse_qsl(urlsplit(address).query)) == dict(parse_qsl(urlsplit(offer["url"]).query))


@pytest.mark.parametrize(("sort", "is_reversed"), [("memory", False), ("-memory", True), ("time", False)])
def test_the_table_of_layouts_is_sorted_by_its_address(client: TestClient, sort: str, is_reversed: bool) -> None:
    document = planned(client, **DEEPSEEK)
    predictions = [offer["prediction"] for offer in document["offers"] + document["too_large"]]
    name = "step_time_s" if sort == "time" else "peak_gb"
    wanted = sorted((prediction[name] for prediction in predictions), reverse=is_reversed)[:ROWS]
    figures = [
        re.search(r"([\d.]+)\s(GiB|s)" if sort != "time" else r"([\d.]+)\u202f(s)", row)
        for row in table_rows(client, **DEEPSEEK, sort=sort)
    ]
    shown = [float(figure[1]) for figure in figures if figure]
    assert shown == pytest.approx([value if sort == "time" else in_gib(value) for value in wanted], abs=0.6)
    assert client.get("/plan", params=DEEPSEEK | {"sort": "speed"}).status_code == 422


def test_the_picture_has_a_mark_for_each_layout_and_the_limit_of_the_memory(client: TestClient) -> None:
    document = planned(client, **DEEPSEEK)
    answer = client.get("/plan/chart", params=DEEPSEEK, headers={"HX-Request": "true"})
    data = json.loads(answer.text.partition('application/json">')[2].partition("</script>")[0])["datasets"]
    offers, too_large = document["offers"], document["too_large"]
    assert len(data["points"]) == len(offers) + len(too_large)
    usable = in_gib(offers[0]["prediction"]["usable_gb"])
    assert data["limit"][0]["gib"] == pytest.approx(usable, rel=1e-3)
    assert [point["kind"] for point in data["points"]] == ["fits"] * len(offers) + ["too large"] * len(too_large)
    assert all((point["gib"] > usable) == (point["kind"] == "too large") for point in data["points"])
    (chosen,) = data["chosen"]
    assert dict(parse_qsl(urlsplit(chosen["href"]).query)) == dict(parse_qsl(urlsplit(offers[0]["url"]).query))
    assert {violation["constraint"] for offer in too_large for violation in offer["violations"]} == {"plan-fits"}


def test_a_chosen_model_shows_its_published_shape(client: TestClient) -> None:
    shape = client.get("/plan/model", params={"model": "mixtral-8x7b"}, headers={"HX-Request": "true"}).text
    placeholders = dict(re.findall(r'name="(\w+)"[^>]*placeholder="(\d+)"', shape))
    assert placeholders == {
        "num_layers": "32", "num_attention_heads": "32", "num_query_groups": "8", "num_experts": "8",
        "hidden_size": "4096",
    }  # fmt: skip
    other = client.get("/plan/model", params={"model": "mine"}, headers={"HX-Request": "true"}).text
    assert re.findall(r'placeholder="(\d+)"', other) == []


def test_own_runs_correct_the_plan_and_their_residuals_are_shown(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session)
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "gbs": "1024"}
    residuals = page(client, query).split('id="residuals"')[1]
    assert f'href="/runs/{run}"' in residuals
    used = planned(client, **query)["calibration"]
    assert used["step_time_records"] >= 1
    assert used["memory_records"] >= 1


def test_a_model_without_widths_is_planned_without_prediction(client: TestClient) -> None:
    query = {
        "model": "ours", "num_layers": "32", "num_attention_heads": "32", "num_experts": "64", "gpu": "H100",
        "gpus": "16", "seq_len": "4096",
    }  # fmt: skip
    assert planned(client, **query)["offers"][0]["prediction"] is None
    text = page(client, query)
    assert 'id="best"' not in text
    assert "Nothing is predicted" in text


def chosen_card(client: TestClient, query: dict[str, str]) -> str:
    """Return the card of the chosen layout as words."""
    text = page(client, query)
    card = text[text.index('id="best"') : text.index("</article>")]
    return " ".join(re.sub(r"<[^>]+>", " ", card).split())


def lead_of(client: TestClient, query: dict[str, str]) -> str:
    lead = re.search(r'<p class="answer">(.*?)</p>', page(client, query), re.DOTALL)
    assert lead is not None
    return html.unescape(lead[1])


def test_a_layout_leads_with_its_time_range_and_memory(client: TestClient) -> None:
    query = {"model": "Mixtral-8x7B", "gpu": "H100", "gpus": "32", "seq_len": "4096", "gbs": "256"}
    first, second, *_ = planned(client, **query)["offers"]
    for layout, asked in ((first, query), (second, dict(parse_qsl(urlsplit(second["url"]).query)))):
        prediction, lead = layout["prediction"], lead_of(client, asked)
        low, high = (f"{prediction[name]:.1f}" for name in ("step_time_low_s", "step_time_high_s"))
        assert f" {prediction['step_time_s']:.1f}\u202fs ({low} to {high}\u202fs)" in lead
        assert f"{in_gib(prediction['peak_gb']):.0f} GiB predicted" in lead


def test_the_nearest_record_of_a_layout_has_its_dispatcher(client: TestClient, engine: Engine) -> None:
    """The run with the requested dispatcher is slower than the published record."""
    layout = {"tp": "1", "pp": "1", "cp": "1", "ep": "16", "etp": "1"}
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "gbs": "2048", "mbs": "2"}
    with transaction(engine) as session:
        (run,) = make_stack(session, [30_000.0], judged=False, fields={"dispatcher": "deepep"})
    nearest = {
        name: planned(client, **query, **layout, dispatcher=name)["given"]["measured"]["url"].endswith(f"/runs/{run}")
        for name in ("alltoall", "deepep")
    }
    assert nearest == {"alltoall": False, "deepep": True}


def test_a_published_figure_of_another_batch_is_called_scaled_and_names_what_was_measured(client: TestClient) -> None:
    query = {"model": "DeepSeek-V3", "gpu": "H100", "gpus": "1024", "seq_len": "4096", "gbs": "8192"}
    document = planned(client, **query)
    scaled = "scaled from NVIDIA's 61.8\u202fs at GBS 16,384"
    predicted = document["offers"][0]["prediction"]["step_time_s"]
    assert f" {predicted:.3g}\u202fs (" in document["answer"]
    assert "Nearest record: 30.9\u202fs, scaled" in document["answer"]
    measured = document["offers"][0]["measured"]
    assert measured["url"].endswith("/references/deepseek-v3-1024xh100-6623e072")
    assert (measured["origin"], measured["is_scaled"], measured["peak_gb"]) == (scaled, True, None)
    assert measured["step_time_s"] == pytest.approx(61.756 / 2, rel=1e-3)
    text = page(client, query)
    assert "<h1>Plan DeepSeek-V3 on 1,024 × H100</h1>" in text
    assert "seq 4,096 · GBS 8,192 · bf16" in text
    card = chosen_card(client, query)
    assert re.search(rf"{predicted:.3g}\ss \(.*\) predicted ; 30.9\ss scaled", card)
    assert "measured" not in card
    same = planned(client, **(query | {"gbs": "16384"}))
    fastest = min(same["offers"], key=lambda offer: offer["prediction"]["step_time_s"])["prediction"]
    assert fastest["step_time_s"] < 61.7, "a faster layout is predicted, so the lead has both times"
    lead = lead_of(client, query | {"gbs": "16384"})
    assert "61.76\u202fs" in lead
    for name in ("step_time_s", "step_time_low_s", "step_time_high_s"):
        assert f"{fastest[name]:.1f}" in lead
    assert "Published by NVIDIA." in same["answer"]
    assert not same["offers"][0]["measured"]["is_scaled"]
    assert "61.76 s published" in chosen_card(client, query | {"gbs": "16384"})
    for row in table_rows(client, **(query | {"gbs": "16384"}))[1:]:
        seconds, pct, word = re.search(r'title="(?:[^"]* )?(\d+).% (faster|slower)[^>]*>(?:≥ )?([\d.]+)', row).group(
            3, 1, 2
        )
        signed = int(pct) if word == "slower" else -int(pct)
        assert 100 * (float(seconds) / 61.76 - 1) == pytest.approx(signed, abs=0.6), "against the time that is shown"


def test_the_untested_layout_of_the_lead_is_the_second_action_within_the_error(client: TestClient) -> None:
    query = {"model": "DeepSeek-V3", "gpu": "H100", "gpus": "1024", "seq_len": "4096", "gbs": "8192"}
    shown = page(client, query)
    lead = shown.partition('class="answer">')[2].partition("</p>")[0]
    predicted = re.search(r": ([\d.]+).*Fastest predicted: ([\d.]+)\s*s \([\d.]+ to ([\d.]+)", lead)
    assert predicted is not None
    assert ("within the error" in lead) is (float(predicted[3]) >= float(predicted[1]))
    actions = shown.partition('class="page-head"')[2].partition('class="answer"')[0]
    assert re.findall(r'class="button primary"\s+href="([^"]*)"', actions) == ["#flags"]
    (address,) = re.findall(r'class="button" href="(/plan[^"]*)"', actions)
    body = planned(client, **{name: values[0] for name, values in parse_qs(address.partition("?")[2]).items()})
    assert body["given"]["prediction"]["step_time_s"] == pytest.approx(float(predicted[2]), abs=0.06)
    heading = shown.partition('id="layouts-title">')[2].partition("</h2>")[0]
    assert f" of {planned(client, **query)['feasible']:,} layouts" in heading
    order = shown.partition('href="#order"')[2].partition("</a>")[0]
    assert order.endswith(">Measured first"), "why another row leads"


def test_a_measured_layout_shows_time_memory_and_flags_of_its_run(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session)
    layout = {"tp": "1", "pp": "1", "cp": "1", "ep": "16", "etp": "1"}
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "gbs": "1024", "mbs": "2"}
    given = planned(client, **query, **layout)["given"]
    assert (given["measured"]["origin"], given["measured"]["is_scaled"]) == (f"measured by run #{run}", False)
    assert given["measured"]["step_time_s"] == pytest.approx(31.31, rel=0.01)
    assert given["measured"]["peak_gb"] > 0
    assert given["prediction"]["dispatcher"] == "alltoall"
    assert given["prediction"]["recompute"] == ["layernorm", "moe_act"]
    assert "--moe-token-dispatcher-type alltoall" in given["megatron_lm"]
    assert "hybridep" not in given["megatron_lm"]
    assert "GiB measured" in page(client, query | layout)
    other = planned(client, **(query | layout | {"gbs": "2048"}))["given"]["measured"]
    assert other["is_scaled"]
    assert other["peak_gb"] is None
    own = planned(client, **(query | layout | {"dispatcher": "hybridep"}))["given"]["measured"]
    assert own["peak_gb"] is None


def test_a_measured_time_is_that_of_the_leading_configuration_over_its_runs(client: TestClient, engine: Engine) -> None:
    """The fastest single run had another setting, whose gain is undecided: its time is not the layout's."""
    with transaction(engine) as session:
        runs = make_stack(session, [20_000.0, 20_300.0, 20_100.0, 20_200.0], judged=False)
        fields: dict[str, Value] = {"permute_fusion": True}
        make_stack(session, [19_900.0, 20_250.0], judged=False, fields=fields, started=FIRST_PLACE + timedelta(hours=1))
    assert list(rebuild_all(engine))
    layout = {"tp": "1", "pp": "1", "cp": "1", "ep": "16", "etp": "1"}
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "gbs": "1024", "mbs": "2"}
    given = planned(client, **query, **layout)["given"]
    assert given["measured"]["origin"] == f"measured by 4 runs, newest #{runs[-1]}"
    assert given["measured"]["step_time_s"] == pytest.approx(20.15, abs=0.05)
    assert "--moe-permute-fusion" not in given["megatron_lm"]


def test_the_answer_names_recomputation_and_offload_after_at_most_16_words(client: TestClient) -> None:
    works = (
        {"model": "DeepSeek-V3", "gpu": "H100", "gpus": "256", "gbs": "8192", "precision": "fp8_sc", "mtp": "1"},
        {"model": "DeepSeek-V3", "gpu": "GB200", "gpus": "64", "gbs": "2048"},
        {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "gbs": "1024"},
    )
    seen = set()
    for work in works:
        document = planned(client, seq_len="4096", **work)
        flags = str(document["offers"][0]["megatron_lm"])
        needs = ("--recompute-granularity" in flags, "--optimizer-cpu-offload" in flags)
        answer = document["answer"]
        assert (", recompute" in answer, ", offload" in answer) == needs
        assert len(re.findall(r"(?:\S|\u202f)+", lead_of(client, work | {"seq_len": "4096"}))) <= 16
        seen.add(needs)
    assert len(seen) > 1


def test_the_card_of_a_layout_names_what_saves_memory(client: TestClient) -> None:
    query = {"model": "DeepSeek-V3", "gpu": "H100", "gpus": "1024", "seq_len": "4096", "gbs": "8192"}
    prediction = planned(client, **query)["offers"][0]["prediction"]
    assert prediction["gradients_bf16"]
    assert f"BF16 gradients, recompute {'+'.join(prediction['recompute'])}" in chosen_card(client, query)


def test_the_column_of_predicted_step_times_has_the_factor_of_their_range(client: TestClient) -> None:
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "gbs": "1024"}
    document = planned(client, **query)
    prediction, spread = document["offers"][0]["prediction"], document["calibration"]["step_time_spread"]
    assert prediction["step_time_high_s"] == pytest.approx(prediction["step_time_s"] * spread, rel=0.01)
    assert f"×/÷{spread:.3g}" in page(client, query)


@pytest.mark.parametrize("gpu", ["H100", "GB200"])
def test_a_layout_at_the_usable_limit_says_so(client: TestClient, gpu: str) -> None:
    """The page says it of exactly those layouts whose rounded peak is the rounded limit."""
    query = {"model": "Qwen3-235B-A22B", "gpu": gpu, "gpus": "64", "seq_len": "4096", "gbs": "1024"}
    prediction = planned(client, **query)["offers"][0]["prediction"]
    is_full = round(in_gib(prediction["peak_gb"])) >= round(in_gib(prediction["usable_gb"]))
    assert ("at the usable limit" in chosen_card(client, query)) is is_full


def test_what_an_experiment_rejected_is_last_until_a_newer_one_accepts_it(client: TestClient, engine: Engine) -> None:
    """The rejected side is faster and leads the ranking: the planner takes the flags of the other side."""
    make_history(engine)
    baseline = make_baseline(engine)
    first = plan(engine, baseline, runs_each=1)
    add_runs(engine, read(engine, first).tag, [25_000.0])
    assert list(rebuild_all(engine))
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "gbs": "1024", "mbs": "2"}
    overlapped = query | {"ep_overlap": "true"}

    def decide(experiment: int, state: str) -> None:
        sent = {"author": "kai", "state": state, "note": "the loss differs"}
        assert client.patch(f"/api/v1/experiments/{experiment}", json=sent).status_code == 200

    def tried(asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Return position and offer of the layout of the experiment."""
        degrees = {"tp": 1, "pp": 1, "cp": 1, "ep": 16, "etp": 1}
        offers = planned(client, **asked)["offers"]
        return next((at, offer) for at, offer in enumerate(offers) if degrees.items() <= offer.items())

    place, before = tried(query)
    assert (place, before["rejected_in"], before["prediction"]["ep_overlap"]) == (0, None, True)
    decide(first, "rejected")
    place, offer = tried(query)
    assert (offer["rejected_in"], offer["prediction"]["ep_overlap"]) == (None, False), "the baseline's flags"
    place, offer = tried(overlapped)
    offers = planned(client, **overlapped)["offers"]
    assert (place, offer["rejected_in"]) == (len(offers) - 1, first)
    assert [other["rejected_in"] for other in offers[:-1]] == [None] * (len(offers) - 1)
    assert f'href="/experiments/{first}"' in page(client, overlapped | {"page": str(place // ROWS + 1)})
    given = dict(zip(("tp", "pp", "cp", "ep", "etp"), ("1", "1", "1", "16", "1"), strict=True))
    assert f"but experiment #{first} rejected it." in planned(client, **overlapped, **given)["answer"]
    assert planned(client, **(overlapped | {"gbs": "2048"}))["offers"][0]["rejected_in"] is None, "other work"

    second = plan(engine, baseline, knobs={"ep_overlap": True}, runs_each=1)
    add_runs(engine, read(engine, second).tag, [25_100.0])
    decide(second, "accepted")
    assert tried(overlapped)[1]["rejected_in"] is None


def test_a_predicted_layout_has_one_breakdown_of_its_memory(client: TestClient) -> None:
    text = page(client, DEEPSEEK)
    assert text.count('class="memory-parts"') == 1
    assert "<dt>weights, gradients, optimizer</dt>" not in text
    assert "<dt>weights, gradients, optimizer</dt>" in page(
        client, DEEPSEEK | {"num_layers": "30", "hidden_size": "64"}
    )


@pytest.mark.parametrize(
    ("stated", "assumed"),
    [
        ({}, {"gpu", "gpus", "seq_len", "gbs", "mbs", "precision"}),
        ({"gpu": "H100", "gpus": "1024"}, {"seq_len", "gbs", "mbs", "precision"}),
        ({"gpu": "H100", "gpus": "96"}, {"seq_len"}),
    ],
)
def test_a_request_for_a_model_is_completed_from_its_record_and_says_so(
    client: TestClient, stated: dict[str, str], assumed: set[str]
) -> None:
    text = page(client, {"model": "DeepSeek-V3", **stated})
    source = text.partition('id="assumed"')[2].partition("</p>")[0]
    reference = re.search(r'href="/references/([^"]+)"', source)
    assert reference is not None
    record = client.get(f"/api/v1/references/{reference[1]}").json()["contract"]
    assert source.count(",") == len(assumed) - 1
    for name in assumed - {"precision"}:
        assert re.search(rf'name="{name}"[^>]*value="{record[name]}"|<option selected>{record[name]}<', text), name
    complete = page(client, DEEPSEEK)
    assert 'id="assumed"' not in complete


def test_a_model_without_a_record_is_planned_with_defaults_that_are_named(client: TestClient) -> None:
    text = page(client, {"model": "Mixtral-8x22B"})
    assumed = text.partition('id="assumed"')[2].partition("</p>")[0]
    assert 'href="' not in assumed
    values = dict(re.findall(r'name="(gpus|seq_len|gbs)"[^>]*value="(\d+)"', text))
    assert set(values) == {"gpus", "seq_len", "gbs"}
    assert all(f" {value}" in assumed for value in values.values())
    assert planned(client, model="Mixtral-8x22B", gpu="H100", **values)["feasible"] > 0
    stated = page(client, {"model": "Mixtral-8x22B", "gpus": "512"})
    assert re.search(r'name="gpus"[^>]*value="512"', stated)
    assert "GPUs" not in stated.partition('id="assumed"')[2].partition("</p>")[0]


def test_generated_runs_are_called_generated_not_measured(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        run = make_run(session, project="demo", generated=True)
    layout = {"tp": "1", "pp": "1", "cp": "1", "ep": "16", "etp": "1"}
    query = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "gbs": "1024", "mbs": "2"}
    assert planned(client, **query, **layout)["given"]["measured"]["origin"] == f"measured by generated run #{run}"
    text = page(client, query | layout)
    assert "GiB (generated)" in text
    assert "GiB measured" not in text


def test_layouts_that_are_predicted_equally_fast_say_what_ranks_them() -> None:
    texts = {"model": "Qwen3-235B-A22B", "gpu": "GB200", "gpus": "128", "seq_len": "4096", "gbs": "2048"}
    request = read_request(texts)
    best, *others = make_plan(request).offers
    assert short_reason(best, best, request) == ""
    reasons = [short_reason(offer, best, request) for offer in others]
    assert "0.8\u202f% slower, within the error." in reasons
    assert all("slower" in reason or "; " in reason for reason in reasons)


def test_a_layout_that_offloads_more_than_the_host_memory_of_a_node_says_so(client: TestClient) -> None:
    offers = planned(client, **DEEPSEEK, opt_offload_fraction="1")["offers"]
    needed = 8 * offers[0]["prediction"]["host_gb"] / 1.073741824
    assert needed > 8
    for gib, warned in ((int(needed) - 1, True), (int(needed) + 1, False)):
        (offer, *_) = planned(client, **DEEPSEEK, opt_offload_fraction="1", host_memory_gib=str(gib))["offers"]
        assert any(f"{gib} GiB" in note["text"] for note in offer["notes"]) is warned
    on_gpu = planned(client, **DEEPSEEK, opt_offload_fraction="0", host_memory_gib="1")["offers"]
    assert {offer["prediction"]["host_gb"] for offer in on_gpu} <= {0}
    assert "GiB per node)" in page(client, {**DEEPSEEK, "opt_offload_fraction": "1"})
