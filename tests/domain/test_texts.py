"""Texts that are shortened for a place."""

import pytest

from app.domain.text import shortened


@pytest.mark.parametrize(
    ("text", "most", "expected"),
    [
        ("seq 4096 · GBS 1024", 22, "seq 4096 · GBS 1024"),
        ("mcore_te_tp2_pp1_8experts_overlap dgx_h100", 21, "mcore_te_t…p dgx_h100"),
        ("abcdef", 5, "ab…ef"),
        ("abcdef", 6, "abcdef"),
    ],
)
def test_start_and_end_of_a_name_stay(text: str, most: int, expected: str) -> None:
    assert shortened(text, most) == expected


@pytest.mark.parametrize("most", range(3, 60))
def test_a_shortened_name_never_exceeds_its_place(most: int) -> None:
    name = "moe_mcore_te_tp4_ep2_etp2_pp2_scoped_cudagraph dgx_gb200"
    short = shortened(name, most)
    assert len(short) <= most
    assert name.startswith(short.partition("…")[0])
    assert name.endswith(short.partition("…")[2])
