"""A form that is shown again: what was typed, and what is wrong with it at the input that it belongs to."""

from starlette.datastructures import FormData

from app.errors import FieldError, InvalidChange
from app.web.forms import PREFIX, ContractForm, Form


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


def test_an_error_stands_at_its_input_else_above_the_form() -> None:
    typed = NoteForm({"note": "x"})
    placed = typed.refused(InvalidChange("No.", (FieldError("note", "is short"), FieldError("note", "is rude"))))
    assert (placed.value("note"), placed.error("note"), placed.problem) == ("x", "is short; is rude", "")
    above = typed.refused(InvalidChange("Reload the page.", (FieldError("seen", "is stale"),)))
    assert (above.errors, above.problem) == ({}, "Reload the page.")


def test_an_error_of_a_contract_field_stands_at_its_input() -> None:
    typed = FieldsForm({"another": "ep", "another_value": "x"})
    errors = (FieldError("fields.gpus", "must be a number"), FieldError("fields.ep", "must be a number"))
    refused = typed.refused(InvalidChange("No.", errors))
    assert set(refused.errors) == {f"{PREFIX}gpus", "another_value"}
