"""Rank of published recipes among the planner's layouts, and predicted against published step time and memory.

First `make setup`; then `.venv/bin/python -m bench.planner_published --corpus DIR`, where DIR holds
`published/bridge-performance-archive.csv` and `dgxc/moe-recipe-configs.csv`. `--rows` prints every recipe. `--fit` fits
the constant of the time model again, on all models and with each model left out.

Ranks are computed twice: "alone" without records of the model, and "others" with published records of the same model
for other work (GPUs, batch, sequence, precision), as on the planner's page.
"""

import csv
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from app.domain.contract.values import GB_PER_GIB
from app.domain.planning.candidates import candidates
from app.domain.planning.estimate import NEAR, Record, calibrate, comparable, degrees_of, estimator_of
from app.domain.planning.layout import Layout, stage_shares
from app.domain.planning.memory import MemoryOptions
from app.domain.planning.plan import best_first, given_layout
from app.domain.planning.records import UsedLayout, records_of
from app.domain.planning.request import PlanRequest, read_request
from app.domain.planning.step_time import STACK, format_of
from app.domain.references.point import published
from bench.options import parser

_MODELS = {
    "DeepSeekV3": "DeepSeek-V3", "DeepSeek-V3": "DeepSeek-V3", "Qwen3_30B_a3B": "Qwen3-30B-A3B",
    "Qwen3_235B_a22B": "Qwen3-235B-A22B", "GPT OSS 120B": "GPT-OSS-120B", "GPT-OSS": "GPT-OSS-120B",
    "Kimi_K2": "Kimi-K2", "Kimi-K2": "Kimi-K2", "Nemotron_3_Nano": "Nemotron-3-Nano-30B-A3B",
    "Nemotron_3_Super": "Nemotron-3-Super-120B-A12B",
}  # fmt: skip
_BY_LAYERS = {
    "48": "Qwen3-30B-A3B", "94": "Qwen3-235B-A22B", "52": "Nemotron-3-Nano-30B-A3B", "88": "Nemotron-3-Super-120B-A12B",
}  # fmt: skip
_MTP = {"DeepSeek-V3": 1, "Nemotron-3-Super-120B-A12B": 2}
_PRECISIONS = {"BF16": "bf16", "MXFP8": "fp8_mx", "FP8-MX": "fp8_mx", "NVFP4": "nvfp4"}
_HOPPER_FP8 = "fp8_cs"
_WORK = ("model", "gpu", "gpus", "seq_len", "gbs", "mbs")
_DEGREES = ("tp", "pp", "cp", "ep")
FIRST, SHORT = 5, 3
_UNEVEN = 1.5
"""If the largest stage of our split has more than this multiple of the mean, the recipe used another split."""


@dataclass(frozen=True, slots=True)
class Published:
    """A published recipe: its work and its layout.

    `seconds`: the best published step time; None without one. `rows`: number of table rows that state it.
    """

    request: PlanRequest
    layout: Layout
    seconds: float | None
    rows: int = 1

    @property
    def name(self) -> str:
        r, a = self.request, self.layout
        return (
            f"{r.model.name[:16]:16} {r.gpus:4} {r.gpu:5} {r.precision:6} gbs {r.gbs:5} mbs {r.mbs} "
            f"TP{a.tp} PP{a.pp} CP{a.cp} EP{a.ep}"
        )


# --- Recipes: rows of both tables, one per layout and work.


def recipes(corpus: Path) -> list[Published]:
    """Return the distinct recipes of known models with a complete layout."""
    published: dict[tuple[object, ...], Published] = {}
    for row, seconds in (*_released(corpus), *_configured(corpus)):
        recipe = _recipe(row, seconds)
        if recipe is None:
            continue
        r = recipe.request
        key = (r.model.name, r.gpu, r.gpus, r.seq_len, r.gbs, r.mbs, recipe.layout)
        other = published.get(key)
        faster = other is None or (recipe.seconds or math.inf) < (other.seconds or math.inf)
        best = recipe if faster or other is None else other
        published[key] = replace(best, rows=1 + (other.rows if other is not None else 0))
    return list(published.values())


def _released(corpus: Path) -> Iterator[tuple[dict[str, str], float | None]]:
    for row in _rows(corpus / "published" / "bridge-performance-archive.csv"):
        if row["moe"] != "1" or row["model"] not in _MODELS or not row["precision"]:
            continue
        tokens = float(row["tokens_per_sec_per_gpu"])
        seconds = int(row["gbs"]) * int(row["seq_len"]) / (tokens * int(row["gpus"]))
        yield {**row, "model": _MODELS[row["model"]]}, seconds


def _configured(corpus: Path) -> Iterator[tuple[dict[str, str], float | None]]:
    for row in _rows(corpus / "dgxc" / "moe-recipe-configs.csv"):
        model = _MODELS.get(row["workload"]) or _BY_LAYERS.get(row["layers"])
        if model is None or row["workload"] in ("Grok-1", "Llama4") or row["framework"] == "torchtitan":
            continue
        gpus = row["gpus"].split("-")[0]
        gbs = row["gbs"].replace("GPUs\\*20", str(20 * int(gpus))).replace("GPUs*20", str(20 * int(gpus)))
        yield {**row, "model": model, "gpus": gpus, "gbs": gbs, "precision": row["precision"].split("/")[0]}, None


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _recipe(row: Mapping[str, str], seconds: float | None) -> Published | None:
    if not all(row[name].isdigit() for name in ("gpus", "seq_len", "gbs", "mbs", *_DEGREES)) or not row["gpu"]:
        return None
    precision = _PRECISIONS.get(row["precision"], _HOPPER_FP8 if row["gpu"] == "H100" else "fp8_mx")
    values = {name: row[name] for name in _WORK} | {"precision": precision, "mtp": str(_MTP.get(row["model"], 0))}
    request = read_request(values)
    vpp = row.get("vp", "")
    tp, pp, cp, ep = (int(row[name]) for name in _DEGREES)
    etp = int(row["etp"]) if row.get("etp", "").isdigit() else 1
    layout = Layout(tp, cp, pp, ep, etp, int(vpp) if vpp.isdigit() and pp > 1 else 1)
    return Published(request, layout, seconds) if layout.dp(request) and layout.edp(request) else None


@cache
def _records() -> tuple[Record, ...]:
    return records_of(
        UsedLayout(
            title=point.source,
            href="",
            whose=point.measured_by,
            values=dict(point.contract) | {"mtp": _MTP.get(str(point.contract["model"]), 0)},
            step_time_s=point.step_time_ms / 1000 if point.step_time_ms else None,
            tokens_per_s_per_gpu=point.tokens_per_s_per_gpu,
            tflops_per_gpu=point.tflops_per_gpu,
            by=point.measured_by,
        )
        for point in published()
    )


# --- Ranks.


def place(recipe: Published, records: Iterable[Record]) -> tuple[int | None, int]:
    """Return the rank of the recipe among all feasible layouts (None if infeasible), and the number of layouts."""
    records_of_request = comparable(recipe.request, records)
    request = replace(recipe.request, calibration=calibrate(recipe.request, records_of_request))
    options = candidates(request)
    feasible = np.flatnonzero(options.broken == 0)
    ranked = best_first(request, options, feasible, records_of_request)
    a, mesh = recipe.layout, options.mesh
    same = (mesh.tp == a.tp) & (mesh.cp == a.cp) & (mesh.pp == a.pp) & (mesh.ep == a.ep) & (mesh.etp == a.etp)
    at = np.flatnonzero(same[ranked])
    return (int(at[0]) + 1 if len(at) else None), len(feasible)


def _of_other_work(recipe: Published) -> list[Record]:
    def work(request: PlanRequest) -> tuple[object, ...]:
        return request.gpus, request.seq_len, request.gbs, request.mbs, request.precision

    return [record for record in _records() if work(record.request) != work(recipe.request)]


def print_places(published: Sequence[Published], *, rows: bool) -> None:
    places: dict[str, list[int | None]] = {"alone": [], "others": []}
    ordered = sorted(published, key=lambda item: item.name)
    for recipe in ordered:
        alone, feasible = place(recipe, ())
        others, _ = place(recipe, _of_other_work(recipe))
        places["alone"].append(alone)
        places["others"].append(others)
        if rows:
            print(f"  {recipe.name:75} place {alone or '-':>4} alone, {others or '-':>4} with records, of {feasible}")
    for name, ranks in places.items():
        first, short = (sum(1 for rank in ranks if rank is not None and rank <= most) for most in (FIRST, SHORT))
        out = sum(1 for rank in ranks if rank is None)
        print(
            f"place, {name:7} {len(ranks)} recipes: first {FIRST}: {first}, first {SHORT}: {short}, infeasible: {out}"
        )
        weights = [recipe.rows for recipe in ordered]
        first, short = (
            sum(rows for rank, rows in zip(ranks, weights, strict=True) if rank and rank <= most)
            for most in (FIRST, SHORT)
        )
        print(f"       {name:7} {sum(weights)} table rows: first {FIRST}: {first}, first {SHORT}: {short}")
    _print_by_model(published, places["alone"], places["others"])


def _print_by_model(published: Sequence[Published], alone: Sequence[int | None], others: Sequence[int | None]) -> None:
    ordered = sorted(published, key=lambda item: item.name)
    for model in dict.fromkeys(recipe.request.model.name for recipe in ordered):
        mine = [index for index, recipe in enumerate(ordered) if recipe.request.model.name == model]
        counts = [sum(1 for index in mine if (ranks[index] or 10**9) <= FIRST) for ranks in (alone, others)]
        print(f"  {model:28} {len(mine):3} recipes, first {FIRST}: {counts[0]:3} alone, {counts[1]:3} with records")


# --- Step time.


def _timed(published: Sequence[Published]) -> list[tuple[Published, float]]:
    return [(recipe, recipe.seconds) for recipe in published if recipe.seconds]


def _predicted(recipe: Published) -> float | None:
    """Return the predicted step time (s) with the planner's split of layers, because the tables do not state theirs."""
    a, request = recipe.layout, recipe.request
    fixed = {"tp": a.tp, "cp": a.cp, "pp": a.pp, "ep": a.ep, "etp": a.etp} | ({"vpp": a.vpp} if a.vpp > 1 else {})
    layout = given_layout(replace(request, fixed=fixed))
    if stage_shares(request.model.layers, layout)[0] > _UNEVEN / a.pp:
        layout = recipe.layout
    estimator = estimator_of(request)
    prediction = estimator.predict([layout])[0] if estimator is not None else None
    return prediction.step_time_s if prediction is not None else None


def print_times(published: Sequence[Published], *, rows: bool) -> None:
    ratios: list[tuple[str, float]] = []
    for recipe, seconds in sorted(_timed(published), key=lambda item: item[0].name):
        predicted = _predicted(recipe)
        if predicted is None:
            continue
        ratios.append((recipe.request.model.name, predicted / seconds))
        if rows:
            print(
                f"  {recipe.name:75} {seconds:7.2f} s published, {predicted:7.2f} s predicted, "
                f"x {predicted / seconds:.2f}"
            )
    print(f"step time, {_errors([ratio for _, ratio in ratios])}")
    with_records = [ratio for recipe, seconds in _timed(published) if (ratio := _recorded(recipe, seconds)) is not None]
    print(f"step time with records of the same hardware in other work, {_errors(with_records)}")


def print_pairs(published: Sequence[Published]) -> None:
    """Print the error of predicted ratios between the step times of two layouts of one model, GPU and precision."""
    timed = _timed(published)
    errors: list[float] = []
    for index, (first, seconds) in enumerate(timed):
        for second, others in timed[index + 1 :]:
            a, b = first.request, second.request
            same = (a.model.name, a.gpu, a.seq_len, format_of(a.precision)) == (
                b.model.name, b.gpu, b.seq_len, format_of(b.precision),
            )  # fmt: skip
            if not same or first.layout.degrees == second.layout.degrees:
                continue
            predicted = _per_token(first, _predicted(first)) / _per_token(second, _predicted(second))
            errors.append(predicted / (_per_token(first, seconds) / _per_token(second, others)))
    within = sum(1 for error in errors if abs(math.log(error)) <= math.log(NEAR))
    print(
        f"ratio of two layouts of one model on one GPU, over all releases: {_errors(errors)}, within x {NEAR}: {within}"
    )


def _per_token(recipe: Published, seconds: float | None) -> float:
    return (seconds or math.nan) * recipe.request.gpus / ((recipe.request.gbs or 1) * recipe.request.seq_len)


def _recorded(recipe: Published, seconds: float) -> float | None:
    records_of_request = comparable(recipe.request, _of_other_work(recipe))
    if not records_of_request:
        return None
    predicted = _predicted(recipe)
    return None if predicted is None else predicted * calibrate(recipe.request, records_of_request).time / seconds


def _errors(ratios: Sequence[float]) -> str:
    if not ratios:
        return "0 records"
    errors = [abs(math.log(ratio)) for ratio in ratios]
    within = sum(1 for error in errors if error <= math.log(1.5))
    middle = math.exp(statistics.median(errors)) - 1
    bias = math.exp(statistics.median(math.log(ratio) for ratio in ratios))
    return f"{len(ratios)} records: median error {middle:.0%}, within x 1.5: {within}, median ratio {bias:.2f}"


# --- The fitted constant: from all models, and for each model from all others.


def fit(published: Sequence[Published]) -> None:
    ideal = [
        (recipe.request.model.name, predicted / STACK / seconds)
        for recipe, seconds in _timed(published)
        if (predicted := _predicted(recipe)) is not None
    ]
    print(f"fitted on all models: {_stack(ideal):.2f}; the service has {STACK:g}")
    left: list[float] = []
    for model in dict.fromkeys(name for name, _ in ideal):
        constant = _stack([item for item in ideal if item[0] != model])
        ratios = [ratio * constant for name, ratio in ideal if name == model]
        left += ratios
        print(f"  {constant:.2f} without {model:28} on it: {_errors(ratios)}")
    print(f"each model predicted by the constant of the others: {_errors(left)}")


def _stack(ideal: Sequence[tuple[str, float]]) -> float:
    """Return the median ratio of measured to ideal step time. All models have equal weight."""
    by_model: dict[str, list[float]] = {}
    for name, ratio in ideal:
        by_model.setdefault(name, []).append(1 / ratio)
    return statistics.median(statistics.median(ratios) for ratios in by_model.values())


# --- Memory: peaks that were published with layout, recomputation and precision. GB are 1e9 bytes.

_QWEN = {"model": "Qwen3-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "4096", "mbs": "1"}
_MOONLIGHT = {
    "model": "Moonlight-16B", "num_layers": "27", "num_attention_heads": "16", "num_experts": "64", "topk": "6",
    "hidden_size": "2048", "moe_ffn_hidden_size": "1408", "moe_shared_expert_intermediate_size": "2816",
    "ffn_hidden_size": "11264", "moe_layer_freq": ",".join(["0", *["1"] * 26]), "vocab_size": "163840",
    "multi_latent_attention": "true", "kv_lora_rank": "512", "qk_head_dim": "128", "qk_pos_emb_head_dim": "64",
    "v_head_dim": "128", "gpu": "H100", "gpus": "8", "seq_len": "4096", "gbs": "4", "mbs": "1",
    "tp": "2", "pp": "1", "cp": "1", "ep": "8", "etp": "1",
}  # fmt: skip
_PERFORMANCE = MemoryOptions(gradients_bf16=True)
_LOW_MEMORY = MemoryOptions(gradients_bf16=True, moments_bf16=True)


def _modules(recipe: MemoryOptions, *modules: str) -> MemoryOptions:
    return replace(recipe, recompute=frozenset(modules))


PEAKS: tuple[tuple[str, dict[str, str], MemoryOptions, float], ...] = (
    (
        "Qwen3-30B-A3B EP16, alltoall, graphs",
        _QWEN | {"tp": "1", "pp": "1", "cp": "1", "ep": "16", "etp": "1"},
        replace(_PERFORMANCE, graphs=True),
        61.351,
    ),
    (
        "Qwen3-30B-A3B EP16, HybridEP, overlap, graphs",
        _QWEN | {"tp": "1", "pp": "1", "cp": "1", "ep": "16", "etp": "1"},
        replace(_PERFORMANCE, graphs=True, overlap=True, dispatcher="hybridep"),
        62.166 * GB_PER_GIB,
    ),
    (
        "Qwen3-30B-A3B TP2 PP2 EP4, moe_act",
        _QWEN | {"tp": "2", "pp": "2", "cp": "1", "ep": "4", "etp": "1"},
        _modules(MemoryOptions(moments_bf16=True), "moe_act"),
        47.2,
    ),
    (
        "the same, all optimizer states in host memory",
        _QWEN | {"tp": "2", "pp": "2", "cp": "1", "ep": "4", "etp": "1"},
        _modules(MemoryOptions(moments_bf16=True, offload=1.0), "moe_act"),
        32.0,
    ),
    ("Moonlight-16B TP2 EP8", _MOONLIGHT, _LOW_MEMORY, 36.618),
    ("Moonlight-16B TP2 EP8, mla_up_proj", _MOONLIGHT, _modules(_LOW_MEMORY, "mla_up_proj"), 35.902),
    ("Moonlight-16B TP2 EP8, moe_act", _MOONLIGHT, _modules(_LOW_MEMORY, "moe_act"), 35.941),
    (
        "Nemotron-3-Nano EP8, moe, graphs",
        {"model": "Nemotron-3-Nano-30B-A3B", "gpu": "H100", "gpus": "16", "seq_len": "8192", "mbs": "1",
         "tp": "1", "pp": "1", "cp": "1", "ep": "8", "etp": "1"},
        _modules(replace(_PERFORMANCE, graphs=True, dispatcher="hybridep"), "moe"),
        64.653,
    ),
    (
        "Nemotron-3-Super PP2 EP32, moe, layernorm",
        {"model": "Nemotron-3-Super-120B-A12B", "mtp": "2", "gpu": "H100", "gpus": "64", "seq_len": "4096",
         "mbs": "1", "gbs": "1280", "tp": "1", "pp": "2", "cp": "1", "ep": "32", "etp": "1"},
        _modules(replace(_PERFORMANCE, dispatcher="hybridep"), "moe", "moe_act", "layernorm"),
        59.0 * GB_PER_GIB,
    ),
    (
        "GPT-OSS-120B TP2 PP4 EP8, graphs",
        {"model": "GPT-OSS-120B", "gpu": "H100", "gpus": "32", "seq_len": "4096", "mbs": "1",
         "tp": "2", "pp": "4", "cp": "1", "ep": "8", "etp": "1"},
        replace(_PERFORMANCE, graphs=True),
        69.5,
    ),
    (
        "DeepSeek-V3 PP4 VPP4 EP64, without any measure",
        {"model": "DeepSeek-V3", "mtp": "1", "gpu": "GB200", "gpus": "256", "seq_len": "4096", "mbs": "1",
         "tp": "1", "pp": "4", "vpp": "4", "cp": "1", "ep": "64", "etp": "1"},
        MemoryOptions(),
        199.5,
    ),
)  # fmt: skip
"""Megatron-Bridge's guides (memory tuning, recomputation, offloading, CUDA graphs, overlap), its verification cards and
the paper that its workflow guide quotes. Precision of optimizer states as in the recipe that the source names."""
NEAR_ENOUGH = 0.10


def print_peaks() -> None:
    close = 0
    for name, values, recipe, measured in PEAKS:
        predicted = peak_gb(values, recipe)
        error = predicted / measured - 1
        close += abs(error) <= NEAR_ENOUGH
        print(f"  {name:50} {measured:6.1f} GB measured, {predicted:6.1f} GB predicted, {error:+.1%}")
    print(f"memory: {close} of {len(PEAKS)} peaks within {NEAR_ENOUGH:.0%}")


def peak_gb(values: Mapping[str, str], recipe: MemoryOptions) -> float:
    request = read_request(values)
    estimator = estimator_of(request)
    a = {name: request.fix(name) or 1 for name in ("tp", "cp", "pp", "ep", "etp", "vpp")}
    degrees = degrees_of(request, Layout(**a))
    assert estimator is not None
    assert degrees is not None
    recipe = replace(recipe, precision=request.precision)
    return float(estimator.memory(degrees, recipe).total[0])


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--corpus", type=Path, required=True, help="folder with published/ and dgxc/")
    arguments.add_argument("--rows", action="store_true", help="print every recipe")
    arguments.add_argument("--fit", action="store_true", help="fit the constant of the time model")
    options = arguments.parse_args()
    published = recipes(options.corpus)
    if options.fit:
        fit(published)
        return 0
    print_places(published, rows=options.rows)
    print_times(published, rows=options.rows)
    print_pairs(published)
    print_peaks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
