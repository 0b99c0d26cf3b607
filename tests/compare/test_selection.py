"""The address of a comparison: what it names, what it refuses, and where its links lead."""

import pytest

from app.compare.queries import Selection
from app.errors import InvalidQuery


def read(**params: str) -> Selection:
    return Selection.from_params(params)


def test_an_address_says_everything_and_nothing_twice() -> None:
    found = read(a="1, #2,2", b="3", series="lm_loss")
    assert (found.a, found.b) == ((1, 2), (3,))
    assert found.address() == "/compare?a=1,2&b=3&series=lm_loss"
    assert found.swapped() == "/compare?a=3&b=1,2&series=lm_loss"
    assert found.without("a", 1) == "/compare?a=2&b=3&series=lm_loss"
    assert found.added("b", 9) == "/compare?a=1,2&b=3,9&series=lm_loss"
    assert found.instead("b", 9) == "/compare?a=1,2&b=9&series=lm_loss"
    assert Selection().address() == "/compare"


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
