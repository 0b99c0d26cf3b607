"""A column comes back bit for bit, and small."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.storage.readings import pack_series, unpack_series


@given(st.lists(st.floats(width=64, allow_nan=True, allow_infinity=True)))
def test_a_column_comes_back_as_it_was(values: list[float]) -> None:
    column = np.asarray(values, dtype=np.float64)
    assert np.array_equal(unpack_series(pack_series(column)), column, equal_nan=True)


def test_step_times_take_less_than_half_their_size() -> None:
    rng = np.random.default_rng(0)
    step_times_ms = np.round(412 + rng.normal(0, 2, 1000), 1)
    assert len(pack_series(step_times_ms)) < step_times_ms.nbytes / 2


@pytest.mark.parametrize("strided", [np.arange(20.0)[::2], np.arange(20.0).reshape(10, 2)[:, 0]])
def test_a_view_is_packed_like_its_copy(strided: np.ndarray) -> None:
    assert np.array_equal(unpack_series(pack_series(strided)), strided)
