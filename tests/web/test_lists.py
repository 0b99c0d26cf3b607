"""Lists: the query in the address, CSV without formulas, forms shown again."""

import csv
import io

import pytest
from starlette.datastructures import FormData
from starlette.testclient import TestClient

from app.errors import FieldError, InvalidChange, InvalidQuery
from app.regressions.queries import RegressionQuery
from app.runs.queries import RunQuery
from app.storage.database import ListPage
from app.web.forms import PREFIX, ContractForm, Form
from app.web.lists import csv_text


def test_an_address_with_defaults_only_has_no_query() -> None:
    query = RunQuery.from_params({"q": " ", "sort": "-created", "page": "1"})
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


FORMULAS = ("=1+1", "+1", "-1", "@SUM(1)", "\t=1", "\r=1", "\n=1", "＝1+1", "＋1", "－1", "＠SUM(1)")
HARMLESS = ("", "a=1", "1-2", " =1", "run 7", "two\r=lines")


def test_spreadsheet_formulas_are_escaped_with_an_apostrophe() -> None:
    written = csv_text([[*FORMULAS, *HARMLESS, -1.5, None]])
    (read,) = csv.reader(io.StringIO(written, newline=""))
    assert read == [*(f"'{text}".replace("\r", "\n") for text in FORMULAS), *HARMLESS[:-1], "two\n=lines", "-1.5", ""]


class NoteForm(Form):
    inputs = ("author", "note")
    hidden = ("seen",)
    several = ("rows",)
    longest = 5


class FieldsForm(ContractForm):
    inputs = ("author", "another", "another_value")


def test_a_form_reads_its_own_inputs_only() -> None:
    form = NoteForm.read(
        FormData([("author", " Ada "), ("note", "a\r\nbcdef"), ("seen", "7"), ("rows", "1"), ("rows", "2"), ("x", "y")])
    )
    assert form.values == {"author": "Ada", "note": "a\nbcd", "seen": "7"}
    assert form.chosen == {"rows": ("1", "2")}


def test_an_error_is_shown_at_its_input_else_above_the_form() -> None:
    typed = NoteForm({"note": "x"})
    placed = typed.refused(InvalidChange("No.", (FieldError("note", "is short"), FieldError("note", "is rude"))))
    assert (placed.value("note"), placed.error("note"), placed.problem) == ("x", "is short; is rude", "")
    above = typed.refused(InvalidChange("Reload the page.", (FieldError("seen", "is stale"),)))
    assert (above.errors, above.problem) == ({}, "Reload the page.")


def test_an_error_of_a_contract_field_is_shown_at_its_input() -> None:
    typed = FieldsForm({"another": "ep", "another_value": "x"})
    errors = (FieldError("fields.gpus", "must be a number"), FieldError("fields.ep", "must be a number"))
    refused = typed.refused(InvalidChange("No.", errors))
    assert set(refused.errors) == {f"{PREFIX}gpus", "another_value"}


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/references", "/api/v1/experiments"])
@pytest.mark.parametrize("name", ["limit", "per_page", "page_sise"])
def test_an_unknown_parameter_names_the_one_that_is_meant(client: TestClient, path: str, name: str) -> None:
    answer = client.get(path, params={name: "3"})
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["field"], "(did you mean page_size?)" in error["message"]) == (name, True)
