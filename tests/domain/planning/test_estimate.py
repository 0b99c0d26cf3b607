"""Predicted memory and step time: known peaks, what each measure saves, calibration by records, and other layouts."""

from dataclasses import replace
from typing import Any

import pytest

from app.domain.performance.flops import flops_per_token
from app.domain.performance.known_shapes import known_shape, known_values
from app.domain.planning.costs import model_costs
from app.domain.planning.estimate import SPREAD_AMD, Estimator, Record, degrees_of, estimator_of, residuals
from app.domain.planning.forecast import LayoutForecaster, predict_change
from app.domain.planning.layout import Layout
from app.domain.planning.memory import MemoryOptions
from app.domain.rules.engine import Forecast, evaluate
from app.domain.rules.load import built_in_rules
from app.domain.run import Stated
from bench.planner_published import NEAR_ENOUGH, PEAKS, peak_gb
from tests.cases import every_case
from tests.domain.planning.asked import DEEPSEEK, QWEN_30B, plan, published_records, request

BILLIONS = {
    "DeepSeek-V3": 671.0, "Kimi-K2": 1026.4, "Qwen3-30B-A3B": 30.5, "Qwen3-235B-A22B": 235.1, "GPT-OSS-120B": 116.8,
    "Qwen3-Next-80B-A3B": 79.7, "Nemotron-3-Super-120B-A12B": 120.7, "DeepSeek-V2": 235.7, "Mixtral-8x7B": 46.7,
}  # fmt: skip
GFLOPS = {
    ("DeepSeek-V3", 4096, 1): 259.993, ("DeepSeek-V3", 4096, 0): 249.812, ("Qwen3-30B-A3B", 4096, 0): 23.006,
    ("Qwen3-235B-A22B", 4096, 0): 148.035, ("GPT-OSS-120B", 4096, 0): 32.630, ("Kimi-K2", 4096, 0): 204.477,
    ("Nemotron-3-Nano-30B-A3B", 8192, 0): 22.278, ("Nemotron-3-Super-120B-A12B", 8192, 2): 84.727,
}  # fmt: skip
WORST_PEAK = 0.12


def estimator(**fields: object) -> Estimator:
    estimate = estimator_of(request(DEEPSEEK, **fields))
    assert estimate is not None
    return estimate


def test_known_shapes_have_their_published_parameters_and_flops() -> None:
    with every_case() as case:
        for model, billions in BILLIONS.items():
            with case(model):
                shape, values = known_shape(model), known_values(model)
                assert shape is not None
                costs = model_costs(shape, int(str(values["num_experts"])), 4096, qk_norm=False)
                assert costs.parameters / 1e9 == pytest.approx(billions, abs=0.06)
        for (model, length, mtp), gflops in GFLOPS.items():
            with case(f"{model} {length} {mtp}"):
                shape = known_shape(model, mtp=mtp)
                assert shape is not None
                assert flops_per_token(shape, length, discount_window=True) / 1e9 == pytest.approx(gflops, abs=6e-4)


def test_published_peaks_are_predicted() -> None:
    errors = [abs(peak_gb(values, recipe) / peak - 1) for _, values, recipe, peak in PEAKS]
    assert max(errors) < WORST_PEAK
    assert sum(error <= NEAR_ENOUGH for error in errors) >= 9


@pytest.mark.parametrize(
    ("recipe", "part"),
    [
        (MemoryOptions(gradients_bf16=True), "weights"),
        (MemoryOptions(moments_bf16=True), "optimizer"),
        (MemoryOptions(offload=1.0), "optimizer"),
        (MemoryOptions(recompute=frozenset({"moe_act"})), "activations"),
        (MemoryOptions(recompute=frozenset({"mla_up_proj"})), "activations"),
        (MemoryOptions(recompute=frozenset({"layernorm"})), "activations"),
        (MemoryOptions(precision="fp8_mx"), "activations"),
    ],
)
def test_each_measure_saves_in_its_own_part(recipe: MemoryOptions, part: str) -> None:
    deepseek = estimator(gbs=8192)
    degrees = degrees_of(deepseek.request, Layout(1, 1, 8, 32, 1, 4))
    assert degrees is not None
    plain, less = deepseek.memory(degrees, MemoryOptions()), deepseek.memory(degrees, recipe)
    assert getattr(less, part)[0] < getattr(plain, part)[0]
    for other in {"weights", "optimizer", "activations", "logits"} - {part}:
        assert getattr(less, other)[0] == getattr(plain, other)[0]


def test_the_up_projections_of_latent_attention_are_a_quarter_of_what_deepseek_keeps() -> None:
    """The paper attributes 30.4 GB to them; per layer: 128 heads x (2 x 192 + 128) elements of 2 bytes a token."""
    deepseek = estimator(gbs=8192)
    degrees = degrees_of(deepseek.request, Layout(1, 1, 1, 256, 1))
    assert degrees is not None
    saved = (
        deepseek.memory(degrees, MemoryOptions()).activations
        - deepseek.memory(degrees, MemoryOptions(recompute=frozenset({"mla_up_proj"}))).activations
    )
    assert saved[0] == pytest.approx(4096 * 62 * 128 * (2 * 192 + 128) * 2 / 1e9)


def test_a_dispatched_token_costs_more_over_the_network_than_inside_nvlink() -> None:
    qwen = estimator_of(request(QWEN_30B, gbs=1024))
    assert qwen is not None
    wide, narrow = (degrees_of(qwen.request, Layout(1, 1, 1, ep)) for ep in (16, 8))
    assert wide is not None
    assert narrow is not None
    flex = MemoryOptions(dispatcher="hybridep")
    inside, across = qwen.time(narrow, flex).dispatch[0], qwen.time(wide, flex).dispatch[0]
    assert across > 1.5 * inside
    assert qwen.time(wide, MemoryOptions()).dispatch[0] > across  # alltoall sends a copy for each expert


def test_bubbles_shrink_with_vpp_and_the_last_stage_waits_for_its_logits() -> None:
    qwen = estimator_of(request(QWEN_30B, gbs=1024))
    assert qwen is not None
    plain, virtual = (
        qwen.time(degrees, MemoryOptions())
        for vpp in (1, 4)
        if (degrees := degrees_of(qwen.request, Layout(1, 1, 4, 4, 1, vpp))) is not None
    )
    assert virtual.bubble[0] == pytest.approx(plain.bubble[0] / 4, rel=0.01)
    assert plain.head[0] > 0


def test_records_correct_the_prediction_and_bound_it() -> None:
    alone, calibrated = plan(QWEN_30B, gbs=1024), plan(QWEN_30B, gbs=1024, records=published_records("Qwen3-30B-A3B"))
    assert (alone.request.calibration.time, alone.request.calibration.time_records) == (1.0, 0)
    used = calibrated.request.calibration
    assert used.time_records >= 1
    first = calibrated.offers[0].prediction
    assert first is not None
    assert first.step_time_s == pytest.approx(20.15, rel=0.16)  # the published record, bounded by 15 %


def test_an_own_peak_corrects_activations_and_never_the_static_part() -> None:
    plan_request = request(QWEN_30B, gbs=1024, recompute_granularity="none", dispatcher="alltoall", ep_overlap="false")
    layout = Layout(1, 1, 1, 16)
    estimate, degrees = estimator_of(plan_request), degrees_of(plan_request, layout)
    assert estimate is not None
    assert degrees is not None
    predicted = estimate.memory(degrees, estimate.ladder[0])
    rest = float(predicted.total[0] - predicted.static[0])
    record = Record(layout, plan_request, None, "own", peak_gb=float(predicted.static[0]) + 1.25 * rest)
    assert residuals(record) == (None, pytest.approx(1.25))
    corrected = estimator_of(plan(QWEN_30B, gbs=1024, records=(record,)).request)
    assert corrected is not None
    after = corrected.memory(degrees, estimate.ladder[0])
    assert after.static[0] == predicted.static[0]
    assert after.total[0] == pytest.approx(record.peak_gb)


def test_a_model_without_a_name_is_predicted_from_its_widths() -> None:
    _, values, _, _ = next(item for item in PEAKS if item[0].startswith("Moonlight"))
    offers = plan({**values, "tp": "", "pp": "", "cp": "", "ep": "", "etp": ""}).offers
    assert all(offer.prediction is not None for offer in offers)
    narrow = {name: text for name, text in values.items() if name != "kv_lora_rank"}
    assert plan({**narrow, "tp": "", "pp": "", "cp": "", "ep": "", "etp": ""}).offers[0].prediction is None


# --- Another layout of a run.

RUN: dict[str, Any] = {
    "model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": 16, "seq_len": 4096, "gbs": 1024, "mbs": 1, "tp": 1, "pp": 1,
    "cp": 1, "ep": 16, "etp": 1,
}  # fmt: skip


def test_amd_is_predicted_within_a_wide_range_until_a_record_narrows_it() -> None:
    with every_case() as case:
        for gpu, memory_gb in (("MI300X", 192.0), ("MI325X", 256.0), ("MI355X", 288.0)):
            with case(gpu):
                offer = plan(QWEN_30B, gpu=gpu, gpus=8, gbs=512, precision="bf16").offers[0]
                prediction = offer.prediction
                assert prediction is not None
                assert (prediction.fits, prediction.usable_gb < memory_gb) == (True, True)
                assert prediction.recipe.dispatcher == "alltoall"
                assert prediction.spread == SPREAD_AMD
                assert offer.layout.expert_group <= 8


def forecast(peak: float | None, settings: dict[str, Any], **changed: Any) -> Forecast:
    contract = {name: Stated(value, "metadata") for name, value in (RUN | changed).items()}
    return LayoutForecaster(contract, {"mem_alloc_peak_gb": peak}, headroom=0.1)(settings)


@pytest.mark.parametrize(
    ("peak", "settings", "changed", "fits", "why"),
    [
        (60.0, {"tp": 2, "sp": True}, {}, True, "does not rank"),
        (50.0, {"tp": 1, "sp": False}, {"tp": 2, "sp": True}, True, ""),
        (78.0, {"ep": 8}, {}, False, "predicts"),
        (None, {"ep": 8}, {"gpu": "MI250X"}, None, "cannot tell"),
        (None, {"ep": 8}, {"gpu": "MI300X"}, True, ""),
        (60.0, {"ep": 12}, {}, False, "rules this layout out"),
        (None, {"ep": 8}, {"model": "a model of ours"}, None, "cannot evaluate"),
        (60.0, {"ep": 8}, {"model": "a model of ours"}, None, "may need 120 GB"),
        (30.0, {"ep": 8}, {"model": "a model of ours"}, True, ""),
        (30.0, {"ep": 12}, {"model": "a model of ours"}, False, "do not divide"),
        (60.0, {"ep": 8}, {"fsdp": "megatron_fsdp"}, None, "uses FSDP"),
    ],
)
def test_the_planner_decides(
    peak: float | None, settings: dict[str, Any], changed: dict[str, Any], fits: bool | None, why: str
) -> None:
    answer = forecast(peak, settings, **changed)
    assert (answer.fits, why in answer.why) == (fits, True), answer


def test_a_change_of_layout_has_a_gain_with_its_range_and_the_runs_own_peak_in_it() -> None:
    now = request(QWEN_30B, gbs=1024, tp=1, pp=1, cp=1, ep=16, etp=1, dispatcher="alltoall", ep_overlap="false")
    then = replace(now, fixed=dict(now.fixed or {}) | {"ep": 8})
    same, change = predict_change(now, now, peak_gb=61.4), predict_change(now, then, peak_gb=61.4)
    assert same is not None
    assert change is not None
    assert (same.ratio, same.peak_gb) == (pytest.approx(1.0), pytest.approx(61.4))
    assert same.residual_gb is not None
    assert abs(same.residual_gb) < 3
    assert change.gain_range_pct[0] < change.gain_pct < change.gain_range_pct[1]
    assert change.peak_gb > same.peak_gb  # twice the experts on each rank


def test_a_layout_that_the_planner_refuses_is_deferred_with_its_reason() -> None:
    facts = {"gpus": 64, "gpu": "H100", "tp": 1, "pp": 1, "ep": 64, "etp": 1, "num_layers": 48, "fits": True}
    refused = evaluate(facts, built_in_rules(), forecast=lambda _: Forecast(False, "It needs 90 of 80 GB."))
    assert {item.rule.id: item.withheld for item in refused.withheld}["scale-pp-multinode"] == "It needs 90 of 80 GB."
    fits = evaluate(facts, built_in_rules(), forecast=lambda _: Forecast(True, "", 4.0))
    offered = fits.find("scale-pp-multinode")
    assert offered is not None
    assert (offered.withheld, offered.place.forecast_gain_pct) == ("", 4.0)


def test_a_size_of_the_layout_is_deferred_like_a_candidate() -> None:
    facts = {"gpus": 16, "gpu": "H100", "tp": 1, "pp": 1, "cp": 2, "seq_len": 131072, "fits": True}
    sizes = evaluate(facts, built_in_rules(), forecast=lambda _: Forecast(True, "It is slower.", -2.0, is_faster=False))
    assert {item.rule.id: item.withheld for item in sizes.withheld}["scale-cp-size"] == "It is slower."


@pytest.mark.parametrize(
    ("answer", "offered"),
    [
        (Forecast(False, "It needs 90 of 80 GB."), False),
        (Forecast(True, "It is slower.", -17.0, is_faster=False), True),
        (Forecast(None, "The model is unknown."), True),
    ],
)
def test_out_of_memory_a_layout_has_to_fit_and_need_not_be_faster(answer: Forecast, offered: bool) -> None:
    facts = {"gpus": 32, "gpu": "H100", "tp": 4, "pp": 4, "steps_done": 1, "oom": True}
    evaluation = evaluate(facts, built_in_rules(), forecast=lambda _: answer)
    assert ("fit-more-tp-last" in {item.rule.id for item in evaluation.suggestions}) is offered


def test_a_job_that_ran_out_of_memory_needed_at_least_all_of_it() -> None:
    contract = {name: Stated(value, "metadata") for name, value in RUN.items()}
    wide = {"ep": 8}  # twice the experts on each rank
    facts = {"mem_alloc_peak_gb": 45.0}
    measured, ran_out = (LayoutForecaster(contract, facts | {"oom": oom}, 0.1)(wide) for oom in (False, True))
    assert (measured.fits, ran_out.fits) == (True, False)


def test_a_step_far_shorter_than_predicted_shows_that_its_dispatch_is_cheaper() -> None:
    across = RUN | {"dispatcher": "alltoall", "ep_overlap": True}
    contract = {name: Stated(value, "metadata") for name, value in across.items()}
    inside = {"pp": 2, "vpp": 2, "ep": 8}

    def gain(step_s: float) -> float:
        forecast = LayoutForecaster(contract, {"mem_alloc_peak_gb": 40.0, "step_s": step_s}, 0.1)(inside)
        assert forecast.gain_pct is not None
        return forecast.gain_pct

    predicted, fast = gain(52.0), gain(23.6)
    assert predicted > 60
    assert 0 < fast < 40


def test_arrays_and_single_layouts_agree() -> None:
    deepseek = estimator(gbs=8192)
    layouts = [Layout(1, 1, 8, 32, 1, 4), Layout(2, 1, 8, 16, 1, 2), Layout(1, 1, 16, 8)]
    for layout, together in zip(layouts, deepseek.predict(layouts), strict=True):
        (alone,) = deepseek.predict([layout])
        assert together is not None
        assert alone is not None
        assert together.recipe == alone.recipe
        assert together.peak_gb == pytest.approx(alone.peak_gb)
        assert together.step_time_s == pytest.approx(alone.step_time_s)
