"""A layout is suggested only if the planner predicts that it fits and ranks it above the current one."""

from typing import Any

import pytest

from app.domain.planning.forecast import LayoutForecaster
from app.domain.rules.engine import Forecast, evaluate
from app.domain.rules.load import built_in_rules
from app.domain.run import Stated

RUN: dict[str, Any] = {
    "model": "Qwen3-30B-A3B",
    "gpu": "H100",
    "gpus": 16,
    "seq_len": 4096,
    "gbs": 1024,
    "mbs": 1,
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "ep": 16,
    "etp": 1,
}


def forecast(peak_gb: float | None, settings: dict[str, Any], **changed: Any) -> Forecast:
    contract = {name: Stated(value, "metadata") for name, value in (RUN | changed).items()}
    return LayoutForecaster(contract, peak_gb, headroom=0.1)(settings)


@pytest.mark.parametrize(
    ("peak_gb", "settings", "changed", "fits", "why"),
    [
        (40.0, {"pp": 2, "vpp": 2, "ep": 8}, {}, False, "does not rank"),
        (40.0, {"tp": 1, "sp": False}, {"tp": 2, "sp": True}, True, ""),
        (78.0, {"ep": 8}, {}, False, "predicts"),
        (None, {"ep": 8}, {}, None, "cannot tell"),
        (60.0, {"ep": 12}, {}, False, "rules this layout out"),
        (60.0, {"ep": 8}, {"model": "a model of ours"}, None, "cannot evaluate"),
    ],
)
def test_the_planner_decides(
    peak_gb: float | None, settings: dict[str, Any], changed: dict[str, Any], fits: bool | None, why: str
) -> None:
    answer = forecast(peak_gb, settings, **changed)
    assert (answer.fits, why in answer.why) == (fits, True)


def test_a_layout_that_the_planner_refuses_is_deferred_with_its_reason() -> None:
    facts = {"gpus": 64, "gpu": "H100", "tp": 1, "pp": 1, "ep": 64, "etp": 1, "num_layers": 48, "fits": True}
    refused = evaluate(facts, built_in_rules(), forecast=lambda _: Forecast(False, "It needs 90 of 80 GB."))
    assert {item.rule.id: item.withheld for item in refused.withheld}["scale-pp-multinode"] == "It needs 90 of 80 GB."
    fits = evaluate(facts, built_in_rules(), forecast=lambda _: Forecast(True, "", 4.0))
    offered = fits.find("scale-pp-multinode")
    assert offered is not None
    assert (offered.withheld, offered.place.forecast_gain_pct) == ("", 4.0)
