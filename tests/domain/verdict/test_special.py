"""Quantiles and the two gamma functions against published tables (t: any textbook) and SciPy 1.17's digits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.verdict.special import digamma, t_quantile, t_two_sided_p, trigamma

T_TABLE = [
    # df, 0.95, 0.995, 0.998, 0.9995
    (1, 6.313751514675037, 63.656741162871526, 159.15284869128055, 636.6192487687897),
    (2, 2.9199855803537242, 9.924843200918287, 15.76391455203966, 31.599054576445365),
    (4, 2.1318467863266495, 4.604094871349992, 5.951372849088097, 8.610301581379522),
    (7.5, 1.8757474792112878, 3.421422688124044, 4.089650944941526, 5.20772565580064),
    (12, 1.782287555649319, 3.0545395893929013, 3.5495437045318887, 4.3177912836062475),
    (30, 1.697260886593957, 2.7499956535672254, 3.117681771071494, 3.6459586350420627),
]
EULER = 0.5772156649015329


@pytest.mark.parametrize(
    ("p", "df", "t"),
    [(p, row[0], t) for row in T_TABLE for p, t in zip((0.95, 0.995, 0.998, 0.9995), row[1:], strict=True)],
)
def test_t_quantile(p: float, df: float, t: float) -> None:
    assert t_quantile(p, df) == pytest.approx(t, rel=1e-10)
    assert t_quantile(1 - p, df) == pytest.approx(-t, rel=1e-9)


@pytest.mark.parametrize(
    ("t", "df", "p"),
    [
        (0, 5, 1.0),
        (1, 1, 0.5),
        (2.5, 7.5, 0.03882025827362553),
        (-3, 4, 0.03994196807171883),
        (4, 30, 0.0003818456360837564),
        (10, 12, 3.5813236876723737e-07),
    ],
)
def test_t_two_sided_p(t: float, df: float, p: float) -> None:
    assert t_two_sided_p(t, df) == pytest.approx(p, rel=1e-10)


@pytest.mark.parametrize(
    ("x", "psi", "psi_prime"),
    [
        (0.5, -EULER - 2 * math.log(2), math.pi**2 / 2),
        (1, -EULER, math.pi**2 / 6),
        (2, 1 - EULER, math.pi**2 / 6 - 1),
        (3.7, 1.1671535393615113, 0.31003785767003833),
        (10, 2.251752589066721, 0.10516633568168576),
        (25, 3.198742512851974, 0.04081066325722558),
    ],
)
def test_digamma_and_trigamma(x: float, psi: float, psi_prime: float) -> None:
    assert digamma(x) == pytest.approx(psi, rel=1e-12)
    assert trigamma(x) == pytest.approx(psi_prime, rel=1e-12)


@given(st.floats(0.5001, 0.99999), st.floats(1, 60))
def test_the_quantile_undoes_the_probability(p: float, df: float) -> None:
    assert t_two_sided_p(t_quantile(p, df), df) == pytest.approx(2 * (1 - p), rel=1e-8)


@pytest.mark.parametrize(("p", "df"), [(0, 5), (1, 5), (1.2, 5), (0.9, 0), (0.9, -1), (0.9, math.inf)])
def test_impossible_arguments_are_refused(p: float, df: float) -> None:
    with pytest.raises(ValueError, match="needed"):
        t_quantile(p, df)


@pytest.mark.parametrize("function", [digamma, trigamma])
def test_gamma_functions_refuse_what_is_not_positive(function: object) -> None:
    with pytest.raises(ValueError, match="positive"):
        function(0.0)  # type: ignore[operator]
