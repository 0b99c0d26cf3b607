"""The query of a list: what an address may say, and the address of what is shown."""

import pytest
from starlette.testclient import TestClient

from app.errors import InvalidQuery
from app.regressions.queries import RegressionQuery
from app.runs.queries import RunQuery
from app.storage.database import ListPage


def test_an_address_with_defaults_only_has_no_query() -> None:
    query = RunQuery.from_params({"q": " ", "sort": "-created", "page": "1", "unrelated": "x"})
    assert (query.address("/runs"), query.active) == ("/runs", {})


def test_order_and_page_come_last_in_an_address() -> None:
    query = RunQuery.from_params({"page": "3", "sort": "name", "gpu": " H100 ", "q": "moe"})
    assert query.address("/runs") == "/runs?q=moe&gpu=H100&sort=name&page=3"
    assert query.query(sort=query.sorted_by("name", descending_first=False)) == "q=moe&gpu=H100&sort=-name"
    assert query.without("q") == "gpu=H100&sort=name"
    assert query.active == {"q": "moe", "gpu": "H100"}


def test_a_page_may_mean_another_default_than_the_api() -> None:
    assert RegressionQuery().state == "any"
    page = RegressionQuery.from_params({"state": " "})
    assert (page.state, page.query(), page.query(state="any")) == ("active", "", "state=any")


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({"status": "lost", "verdict": "good"}, ["status", "verdict"]),
        ({"q": "x" * 301}, ["q"]),
        ({"branch": "a\x00b"}, ["branch"]),
        ({"page": "0"}, ["page"]),
        ({"page": "²"}, ["page"]),
    ],
)
def test_each_bad_field_of_an_address_is_named(params: dict[str, str], fields: list[str]) -> None:
    with pytest.raises(InvalidQuery) as refused:
        RunQuery.from_params(params)
    assert [error.field for error in refused.value.errors] == fields


def test_the_api_refuses_a_filter_as_its_page_does(client: TestClient) -> None:
    answer = client.get("/api/v1/runs", params={"status": "lost", "page_size": "1"})
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == ["status"]


def test_a_page_past_the_end_has_the_true_total() -> None:
    page = ListPage.cut("abcde", 2, 3)
    assert (page.items, page.first, page.last, page.pages) == (("d", "e"), 4, 5, 2)
    past = ListPage.cut("abcde", 9, 3)
    assert (past.items, past.first, past.last, past.total) == ((), 0, 0, 5)
