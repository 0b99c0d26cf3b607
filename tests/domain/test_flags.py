"""The table of names: every row is a contract field, and every name is read."""

from app.domain.contract.fields import FIELDS
from app.domain.documents.bridge_config import settings_at
from app.domain.flags import FLAGS
from app.domain.logs.arguments import contract_fields
from app.domain.logs.settings import Setting
from tests.cases import every_case


def test_every_row_is_a_contract_field_or_one_of_its_words() -> None:
    with every_case() as case:
        for name, row in FLAGS.items():
            with case(name):
                assert set(row.words) <= set(FIELDS[name].choices)


def test_a_field_has_one_flag_unless_code_writes_it() -> None:
    several = {name for name, row in FLAGS.items() if len(row.flags) > 1 and not row.together}
    assert several == set()


def test_every_argument_states_its_field() -> None:
    with every_case() as case:
        for name, row in FLAGS.items():
            for argument in () if row.together else row.arguments:
                with case((name, argument)):
                    stated, refused = contract_fields({argument: Setting(argument, None, "arguments")})
                    assert name in stated or refused


def test_every_path_is_read() -> None:
    with every_case() as case:
        for name, row in FLAGS.items():
            for path in row.all_paths:
                with case((name, path)):
                    assert settings_at({path: True}, "arguments") or path == "mixed_precision"
