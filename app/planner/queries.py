"""Layouts that were used for a model: published figures, and runs of this service on the same hardware."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from sqlalchemy import Row
from sqlmodel import Session, col

from app.domain.contract.fields import FIELDS
from app.domain.contract.values import GB_PER_GIB, canonical_model, known_model
from app.domain.experiments.plan import turned
from app.domain.numbers import grouped, plural, share_text
from app.domain.planning.estimate import NEAR, Prediction, Record, recipe_words, residuals
from app.domain.planning.hardware import AMD, gpu_memory_gb, in_gib
from app.domain.planning.layout import REPLICATED, SHARD_CEILING, SHARD_FLOOR, SHARED, degrees_text
from app.domain.planning.plan import DecidedChange, Offer, Plan, host_gib_per_node, make_plan
from app.domain.planning.records import UsedLayout, decided_change, fastest_dispatcher, nearest_layouts, records_of
from app.domain.planning.request import (
    DEGREES,
    INPUTS,
    RECIPE,
    REQUIRED,
    WORK,
    InvalidPlan,
    PlanRequest,
    input_text,
    named_models,
    plan_address,
    planned_model,
    read_request,
)
from app.domain.ranking.runs import family_of
from app.domain.run import Value
from app.domain.text import capitalized
from app.errors import FieldError, InvalidQuery
from app.storage.experiments import knobs_of
from app.storage.json_text import frozen
from app.storage.references import references
from app.storage.runs import stored_contract
from app.storage.standings import pooled_times
from app.storage.tables import ExperimentRow, ProjectRow, RunResultRow, RunRow, select_any

_RUNS = 40
"""Newest runs that are checked: a contract has 15 KB of JSON."""
_EXPERIMENTS = 40


@dataclass(frozen=True, slots=True)
class _Experiments:
    """Decided experiments on a model and GPU. `rejected`: stack and configuration of those that were rejected."""

    changes: tuple[DecidedChange, ...]
    rejected: frozenset[tuple[str, str]]


def _decided(session: Session, request: PlanRequest) -> _Experiments:
    """Return the decisions, newest first; the newest on a configuration decides whether it is rejected."""
    rows = session.execute(
        select_any(
            ExperimentRow.id, ExperimentRow.state, ExperimentRow.stack_key, ExperimentRow.candidate_key,
            ExperimentRow.knobs, RunResultRow.contract,
        )
        .join(RunRow, col(RunRow.id) == ExperimentRow.baseline_run_id)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.model) == request.model.name,
            col(RunRow.gpu) == request.gpu,
            col(ExperimentRow.state).in_(("accepted", "rejected")),
        )
        .order_by(col(ExperimentRow.id).desc())
        .limit(_EXPERIMENTS)
    ).all()  # fmt: skip
    changes = []
    states: dict[tuple[str, str], str] = {}
    for row in rows:
        states.setdefault((row.stack_key, row.candidate_key), row.state)
        before = stored_contract(row.contract)
        sides = (before, turned(before, knobs_of(row.knobs)))
        values = ({name: stated.value for name, stated in side.items()} for side in sides)
        change = decided_change(row.id, *values, is_rejected=row.state == "rejected")
        if change is not None:
            changes.append(change)
    rejected = frozenset(key for key, state in states.items() if state == "rejected" and key[1])
    return _Experiments(tuple(changes), rejected)


def used_layouts(session: Session, request: PlanRequest, rejected: frozenset[tuple[str, str]]) -> list[UsedLayout]:
    """Return published layouts and those of our own runs. `rejected`: stack and key of rejected configurations."""
    return [*_published(session, request), *_runs(session, request, rejected)]


def _published(session: Session, request: PlanRequest) -> Iterable[UsedLayout]:
    family = family_of(request.model.name)
    for reference in references(session):
        point = reference.point
        if point.family == family:
            yield UsedLayout(
                title=f"{point.contract['gpus']:,} × {point.contract['gpu']}, {point.contract['precision']}",
                href=f"/references/{reference.id}",
                whose=f"{point.measured_by}: {point.source}, {point.date}",
                values=point.contract,
                figure=f"{point.tflops_per_gpu:.0f} TFLOP/s/GPU" if point.tflops_per_gpu else "",
                step_time_s=point.step_time_ms / 1000 if point.step_time_ms else None,
                tokens_per_s_per_gpu=point.tokens_per_s_per_gpu,
                tflops_per_gpu=point.tflops_per_gpu,
                by=point.measured_by,
            )


def _runs(session: Session, request: PlanRequest, rejected: frozenset[tuple[str, str]]) -> Iterable[UsedLayout]:
    """Yield the layouts of every project's configurations, newest first, with the figures of their ranking.

    An unranked configuration has the medians of its runs. A run without figures does not prove that its layout works.
    """
    columns = (
        RunRow.id, RunRow.name, RunRow.project_id, RunRow.stack_key, RunRow.config_key, RunResultRow.contract,
        RunRow.tflops_per_gpu, RunRow.step_time_ms, RunRow.peak_memory_gib, ProjectRow.generated,
    )  # fmt: skip
    rows = session.execute(
        select_any(*columns)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .join(ProjectRow, col(ProjectRow.id) == RunRow.project_id)
        .where(
            col(RunRow.model) == request.model.name,
            col(RunRow.gpu) == request.gpu,
            col(RunRow.status) == "ready",
            col(RunRow.quarantine) == "",
        )
        .order_by(col(RunRow.id).desc())
        .limit(_RUNS)
    ).all()
    configurations: dict[tuple[str, str], list[Row[Any]]] = {}
    for row in rows:
        configurations.setdefault((row.stack_key, row.config_key), []).append(row)
    ranked = pooled_times(session, {(row.project_id, row.stack_key) for row in rows})
    for key, runs in configurations.items():
        newest, pooled = runs[0], ranked.get(key)
        times = [row.step_time_ms for row in runs if row.step_time_ms]
        step_time_ms = pooled.step_time_ms if pooled else median(times) if times else None
        tflops = [row.tflops_per_gpu for row in runs if row.tflops_per_gpu]
        yield UsedLayout(
            title=f"run #{newest.id} {newest.name[:60]}",
            href=f"/runs/{newest.id}",
            whose="this service (generated)" if newest.generated else "this service",
            values={name: frozen(entry["value"]) for name, entry in (newest.contract or {}).items()},
            figure=f"{median(tflops):.0f} TFLOP/s/GPU" if tflops else "",
            step_time_s=step_time_ms / 1000 if step_time_ms else None,
            peak_gb=max((row.peak_memory_gib * GB_PER_GIB for row in runs if row.peak_memory_gib), default=None),
            runs=pooled.runs if pooled else max(1, len(times)),
            stack=key[0],
            rank=pooled.rank if pooled else math.inf,
            is_rejected=key in rejected,
            is_generated=newest.generated,
        )


def newest_work(session: Session, models: Sequence[str] = named_models()) -> tuple[int, dict[str, str]] | None:
    """Return the newest run of one of these models, and its work as inputs; None without such a run."""
    row = session.execute(
        select_any(RunRow.id, RunResultRow.contract)
        .join(RunResultRow, col(RunResultRow.run_id) == RunRow.id)
        .where(
            col(RunRow.model).in_(models),
            col(RunRow.gpu).is_not(None),
            col(RunRow.status) == "ready",
            col(RunRow.quarantine) == "",
        )
        .order_by(col(RunRow.id).desc())
        .limit(1)
    ).first()
    if row is None:
        return None
    values = {name: frozen(entry["value"]) for name, entry in (row.contract or {}).items()}
    if not all(values.get(name) for name in REQUIRED):
        return None
    address = plan_address(values, free=(*DEGREES, "pp_layout", "pp_account", *RECIPE))
    return row.id, dict(parse_qsl(urlsplit(address).query))


@dataclass(frozen=True, slots=True)
class AssumedWork:
    """Inputs that a request for a model leaves open, as its record or run has them. `source`: which one, `href`: its
    page; both are empty for defaults."""

    values: Mapping[str, str]
    source: str
    href: str


def assumed_work(session: Session, stated: Mapping[str, str]) -> AssumedWork | None:
    """Return the open inputs by the published record that agrees most with the stated ones, the newest first.

    Without a record they are those of the newest run, else defaults. None if nothing required is open, and for an
    unknown model. Batch and precision suit the other inputs, so they are taken only from a source that differs in none.
    """
    model = canonical_model(stated.get("model", ""))
    if all(stated.get(name) for name in REQUIRED) or known_model(model) is None:
        return None
    rows = [row for row in references(session) if row.point.contract.get("model") == model]
    sources = [
        AssumedWork(_work_texts(row.point.contract), f"{row.point.measured_by}'s record", f"/references/{row.id}")
        for row in sorted(rows, key=lambda row: row.point.date, reverse=True)
    ]
    if (newest := newest_work(session, (model,))) is not None:
        sources.append(AssumedWork(newest[1], f"run #{newest[0]}", f"/runs/{newest[0]}"))
    complete = [source for source in sources if all(source.values.get(name) for name in REQUIRED)]
    if not complete:
        return AssumedWork(_default_work({**stated, "model": model}), "", "")
    given = {name: stated[name] for name in WORK if stated.get(name)} | {"model": model}
    best = max(complete, key=lambda source: sum(source.values.get(name) == text for name, text in given.items()))
    agrees = all(best.values.get(name, text) == text for name, text in given.items())
    names = WORK if agrees else REQUIRED
    taken = {name: best.values[name] for name in names if name in best.values and not stated.get(name)}
    return replace(best, values=taken)


_DEFAULT_GPU, _DEFAULT_LENGTH, _SEQUENCES = "H100", 4096, 8
"""The default batch has 8 sequences for each GPU, as the planner assumes where the batch is undecided."""


def _default_work(stated: dict[str, str]) -> dict[str, str]:
    """Return defaults of what is not stated. The GPUs are the first power of two, from 8, with twice the static
    memory."""
    gpu = stated.get("gpu") or _DEFAULT_GPU
    model, _ = planned_model({"model": stated["model"]})
    memory, billions = gpu_memory_gb(gpu), model.total_billions if model else None
    needed = 2 * (REPLICATED + SHARED) * billions / memory if memory and billions else 8.0
    gpus = str(1 << max(3, math.ceil(math.log2(needed))))
    work = {"gpu": gpu, "gpus": gpus, "seq_len": str(_DEFAULT_LENGTH)}
    count = stated.get("gpus") or gpus
    work |= {"gbs": str(_SEQUENCES * int(count))} if count.isdecimal() else {}
    return {name: text for name, text in work.items() if not stated.get(name)}


def _work_texts(contract: Mapping[str, Value]) -> dict[str, str]:
    """Return the stated work as inputs. An FP8 recipe that is not stated is left open."""
    texts = {name: input_text(contract[name]) for name in WORK if contract.get(name) is not None}
    return {name: text for name, text in texts.items() if name != "precision" or text in FIELDS[name].choices}


# --- A plan from query parameters, shared by page and API.

_REFUSED = "This request cannot be planned. Correct the listed fields."


def asked(params: Mapping[str, str]) -> dict[str, str]:
    """Return the planner's inputs of a query string; `plan_of` refuses anything else."""
    return {name: text.strip() for name, text in params.items()}


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and the layouts used for the same model, nearest first, with the fields in which each differs."""

    plan: Plan
    nearby: tuple[tuple[UsedLayout, tuple[str, ...]], ...]


def planned(session: Session, values: Mapping[str, str], headroom: float) -> Planned:
    """Return the plan of a query, corrected by measured layouts. Raises InvalidQuery with a sentence for each field.

    `headroom`: the threshold `T_headroom`.
    """
    try:
        request = replace(read_request(values), headroom=headroom)
        decided = _decided(session, request)
        used = used_layouts(session, request, decided.rejected)
        request = replace(request, fastest_dispatcher=fastest_dispatcher(request, used))
        return Planned(make_plan(request, records_of(used), decided.changes), nearest_layouts(request, used))
    except InvalidPlan as error:
        errors = tuple(FieldError(name, why) for name, why in error.fields.items())
        raise InvalidQuery(_REFUSED, errors) from None


def is_asked(values: Mapping[str, str]) -> bool:
    """Return whether the form has a value."""
    return any(values.get(name) for name in INPUTS) or any(name not in INPUTS for name in values)


# --- Sentences of a plan, for its page and for the API.

NOT_ESTIMATED = (
    "Uneven routing: the prediction assumes balanced routing, like published benchmarks. An overloaded rank needs more "
    "memory and time.",
    "Separate figures for fragmentation, NCCL buffers and the CUDA context: a share of memory is left free for all of "
    "them.",
    "Data loading, checkpoints and evaluation. Compare the first few layouts in a matched A/B.",
)
"""The limits of a plan."""


def answer(plan: Plan) -> list[str]:
    """Return the answer as sentences, the most important one first."""
    reasons = []
    given, first = plan.given, next(iter(plan.offers), None)
    if given is not None and given.violations:
        name = degrees_text(given.layout, experts=plan.request.model.experts is not None)
        reasons.append(f"{name} violates {plural(len(given.violations), 'constraint')}.")
    elif given is not None:
        rejected = f", but experiment #{given.rejected_in} rejected it" if given.rejected_in else ""
        reasons += [_layout_words(plan, given), f"It satisfies every constraint{rejected}."]
    if first is None:
        reasons += _short_of_memory(plan)
        fixed = "" if plan.given else _fixed_words(plan.request)
        reasons.append(f"None of {plural(plan.tried, 'combination')} {fixed or 'of degrees'} is feasible.")
        return [*reasons, *(_broken_by_all(plan) if fixed else ())]
    if given is None:
        reasons += [*filter(None, [against_fastest(plan)]), _layout_words(plan, first)]
    elif given.layout != first.layout:
        reasons.append(f"Preferred: {_layout_words(plan, first)}")
    if first.rejected_in is not None:
        reasons.append("Experiments rejected every feasible layout.")
    if timed := measured_time(given or first, plan.request):
        origin = timed.origin if timed.is_of_offer else f"nearest record: {timed.time}, {timed.origin}"
        reasons.append(f"{capitalized(origin)}.")
    if plan.request.gbs is None and first.prediction is not None:
        reasons.append("Without a global batch size no step time is predicted.")
    return reasons


AT_FLOOR = "Other predictions hit their floor; speed cannot order them."
"""Said where layouts are predicted to be faster than the best record makes plausible."""


def faster_offer(plan: Plan) -> Offer | None:
    """Return the fastest offer if it is clearly faster than the first; None without step times for both."""
    first = plan.offers[0]
    times = [(time, offer) for offer in plan.offers if (time := offer_seconds(offer, plan.request)) is not None]
    if not times or times[0][1] is not first:
        return None
    seconds, fastest = min(times, key=lambda item: item[0])
    is_close = seconds >= (1 - _SAME) * times[0][0]
    return None if is_close or first.prediction is None or fastest.prediction is None else fastest


def untested_offer(plan: Plan) -> Offer | None:
    """Return the faster offer that no record shows and whose prediction can order it: the one that the lead names."""
    fastest = faster_offer(plan) if plan.offers and plan.given is None else None
    is_named = fastest is not None and fastest.prediction is not None and not fastest.prediction.is_capped
    return fastest if fastest and is_named and measured_time(fastest, plan.request) is None else None


def against_fastest(plan: Plan) -> str:
    """Return the time of the first layout next to that of a faster one; "" where none is clearly faster.

    `Proven: 61.76 s (published). Fastest predicted: 55.4 s (46.2 to 66.5 s), untested, within the error.`
    """
    first, fastest = plan.offers[0], faster_offer(plan)
    if fastest is None or first.prediction is None or fastest.prediction is None:
        return ""
    timed, other = measured_time(first, plan.request), measured_time(fastest, plan.request)
    if timed is not None and timed.is_of_offer:
        own = f"Proven: {timed.time}{'' if timed.kind == 'measured' else f' ({timed.kind})'}"
    else:
        own = f"{'Near a record' if timed else 'Preferred'}: {step_time(first.prediction)}"
    if other is not None and other.is_of_offer:
        return f"{own}. Fastest: {other.time} {other.kind}."
    if fastest.prediction.is_capped:
        return f"{own}. {AT_FLOOR}"
    basis, seconds = "scaled" if other else "untested", offer_seconds(first, plan.request)
    error = ", within the error" if seconds and (fastest.prediction.high_s or 0.0) >= seconds else ""
    return f"{own}. Fastest predicted: {step_time(fastest.prediction)}, {basis}{error}."


def offer_seconds(offer: Offer, request: PlanRequest) -> float | None:
    """Return the step time of an offer as a record of exactly this measured it, else as predicted."""
    timed = measured_time(offer, request)
    if timed is not None and timed.is_of_offer:
        return timed.seconds
    return offer.prediction.step_time_s if offer.prediction else None


def _layout_words(plan: Plan, offer: Offer) -> str:
    """Return `TP1 PP2 VPP8 CP1 EP8 ETP1, recompute: 7.9 s (5.3 to 11.9 s), 65 GiB predicted.`"""
    recipe = offer.prediction.recipe if offer.prediction else None
    settings = ", recompute" if recipe and recipe.recompute else ""
    settings += ", offload" if recipe and recipe.offload else ""
    name = degrees_text(offer.layout, experts=plan.request.model.experts is not None)
    return f"{name}{settings}{_promise(offer, plan.request)}."


def _fixed_words(request: PlanRequest) -> str:
    """Return the fixed degrees: `with TP 3`; "" if all are free."""
    sizes = {name: request.fix(name) for name in DEGREES}
    fixed = [f"{name.upper()} {size}" for name, size in sizes.items() if size is not None]
    return f"with {', '.join(fixed)}" if fixed else ""


def _broken_by_all(plan: Plan) -> list[str]:
    """Return which constraints every combination breaks, with the numbers of the closest layout."""
    everywhere = {row.constraint.id for row in plan.rejected if row.count == plan.tried}
    return [broken.text for broken in plan.closest[0].violations if broken.constraint.id in everywhere]


def _short_of_memory(plan: Plan) -> list[str]:
    """Return how much memory the smallest layout needs, and with what more GPUs fit; empty if more than it is short.

    `Needs 314 GiB per GPU, 69 usable; 64 GPUs fit, offloading 937 GiB per node.`
    """
    needed, prediction = plan.closest[0].needed_gb, plan.closest[0].prediction
    if needed is None or plan.gpu_memory_gb is None:
        return []
    there = f"{in_gib(prediction.usable_gb):.0f} usable" if prediction else f"{in_gib(plan.gpu_memory_gb):.0f} there"
    sizes = f"Needs {in_gib(needed):,.0f} GiB per GPU, {there}"
    if plan.enough_gpus is None:
        return [f"{sizes}."]
    fit, offer = f"{grouped(plan.enough_gpus)} GPUs fit", plan.enough_offer
    if offer is None or offer.prediction is None:
        return [f"{sizes}; {fit}."]
    per_node = host_gib_per_node(replace(plan.request, gpus=plan.enough_gpus), offer.prediction)
    host = f", offloading {per_node:,.0f} GiB per node" if per_node else ""
    return [f"{sizes}; {fit}{host}.", f"{fit} with {recipe_words(offer.prediction.recipe)}."]


def _promise(offer: Offer, request: PlanRequest) -> str:
    timed, prediction = measured_time(offer, request), offer.prediction
    if timed is not None and offer.run is not None and offer.run.peak_gb is not None:
        return f": {timed.time}, {in_gib(offer.run.peak_gb):.0f} GiB {_kind(offer.run)}"
    parts = []
    if timed is not None and timed.is_of_offer:
        parts.append(f"{timed.time} {timed.kind}")
    elif prediction is not None and prediction.step_time_s is not None:
        parts.append(step_time(prediction))
    if prediction is not None:
        parts.append(f"{in_gib(prediction.peak_gb):.0f} GiB predicted")
    return f": {', '.join(parts)}" if parts else ""


def step_time(prediction: Prediction) -> str:
    """Format the predicted step time with its range: `13.8 s (9.2 to 20.7 s)`; "" when the batch is undecided.

    A capped one has no range: `at least 76.1 s`.
    """
    if prediction.step_time_s is None or prediction.low_s is None or prediction.high_s is None:
        return ""
    if prediction.is_capped:
        return middle_time(prediction)
    return f"{middle_time(prediction)} ({_seconds(prediction.low_s)} to {_seconds(prediction.high_s)}\u202fs)"


def middle_time(prediction: Prediction) -> str:
    """Format the predicted step time without its range."""
    if prediction.step_time_s is None:
        return ""
    return f"{'at least ' * prediction.is_capped}{seconds_text(prediction.step_time_s)}"


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def seconds_text(value: float) -> str:
    """Format seconds with their unit: `13.8 s`."""
    return f"{_seconds(value)}\u202fs"


_PARTS = {
    "gemm": "GEMMs", "attention": "attention scores", "memory": "memory traffic", "dispatch": "dispatch",
    "tensor_parallel": "tensor and context parallelism", "launches": "launches", "recompute": "recomputation",
    "head": "logits on the last stage", "bubble": "pipeline bubbles", "pipeline": "sends between stages",
    "gradients": "gradient traffic", "optimizer": "optimizer",
}  # fmt: skip
MEMORY_PARTS = {
    "weights": "weights and gradients", "optimizer": "optimizer states", "activations": "activations",
    "logits": "logits", "buffers": "buffers",
}  # fmt: skip


def recipe(prediction: Prediction) -> str:
    """Return what the prediction assumes in addition to the degrees."""
    dispatcher = f", {prediction.recipe.dispatcher}" if prediction.recipe.dispatcher else ""
    overlap = ", overlapped expert communication" if prediction.recipe.overlap else ""
    return f"{recipe_words(prediction.recipe)}{dispatcher}{overlap}"


def why(offer: Offer, best: Offer, request: PlanRequest) -> str:
    """Return the reason for the rank of an offer: its records, its loss against the first one, its time budget."""
    prediction = offer.prediction
    if prediction is None or prediction.step_time_s is None:
        return ""
    gemms = prediction.parts_s["gemm"] / sum(prediction.parts_s.values())
    shares = [f"{name} {share_text(share)}" for name, share in costs(prediction)[:3]]
    sentences = [_measured(offer, request), short_reason(offer, best, request)]
    sentences.append(f"GEMMs take {share_text(gemms)} of the step, {', '.join(shares)}.")
    return " ".join(filter(None, sentences))


def costs(prediction: Prediction) -> list[tuple[str, float]]:
    """Return what takes time next to GEMMs, as shares of the step, the largest first."""
    total = sum(prediction.parts_s.values())
    others = [(_PARTS[name], seconds / total) for name, seconds in prediction.parts_s.items() if name != "gemm"]
    return sorted(others, key=lambda part: -part[1])


def short_reason(offer: Offer, best: Offer, request: PlanRequest) -> str:
    """Return why an offer ranks where it does; "" for the best one, and where nothing is predicted."""
    if offer is best:
        return ""
    prediction, first = offer.prediction, best.prediction
    if prediction is None or prediction.step_time_s is None or first is None or first is prediction:
        return ""
    timed, best_timed = measured_time(offer, request), measured_time(best, request)
    if best_timed is not None and best_timed.is_of_offer:
        if timed is not None and timed.is_of_offer:
            return f"{_change(timed.seconds / best_timed.seconds)}, by records."
        ratio = prediction.step_time_s / best_timed.seconds
        limit, error = ("At most " * prediction.is_capped, ", within the error") if ratio < 1 else ("", "")
        return f"{limit}{_change(ratio)}{error}."
    behind = _behind(offer, best)
    return f"{_difference(prediction, first)}{f'; {behind}' if behind else ''}."


def _change(ratio: float) -> str:
    """Return `8 % slower` for a ratio of step times."""
    return f"{100 * abs(ratio - 1):.0f}\u202f% {'slower' if ratio > 1 else 'faster'}"


def _behind(offer: Offer, best: Offer) -> str:
    """Return what ranks an offer behind one that is not faster, as a phrase; "" where its step time does."""
    times = [item.prediction.step_time_s for item in (offer, best) if item.prediction and item.prediction.step_time_s]
    if len(times) < 2 or times[0] / times[1] - 1 >= _SAME:
        return ""
    here, there = offer.layout, best.layout
    reasons = (
        (here.etp > there.etp, "splits experts by ETP"),
        (here.expert_group > there.expert_group and times[0] < times[1], "larger expert group"),
        (bool(best.measured) and not offer.measured, "not measured"),
        (here.tp > there.tp, "larger TP"),
        (_has_odd_shards(offer) and not _has_odd_shards(best), "unusual number of tokens per CP rank"),
    )
    return next((text for holds, text in reasons if holds), "")


def _has_odd_shards(offer: Offer) -> bool:
    shards = (offer.tokens_per_cp_shard, offer.tokens_per_cp_tp_shard)
    return not any(SHARD_FLOOR <= tokens <= SHARD_CEILING for tokens in shards)


@dataclass(frozen=True, slots=True)
class LayoutTime:
    """The step time of the requested work by a record. `source`: `by run #12` or `from NVIDIA's 61.8 s at ...`.

    `recipe`: what the record had on that the offer has not: `deepep`. `is_other_work`: the record had another batch,
    for example, so it is scaled by tokens alone, as if the bubble were the same.
    """

    kind: Literal["measured", "generated", "published", "scaled"]
    source: str
    recipe: str
    href: str
    seconds: float
    time: str
    is_other_work: bool

    @property
    def is_of_offer(self) -> bool:
        """Return whether the record ran the offer itself; otherwise the prediction tells more about it."""
        return not (self.is_other_work or self.recipe)

    @property
    def origin(self) -> str:
        verb = "measured" if self.kind == "generated" else self.kind
        return f"{verb} {self.source}{f' with {self.recipe}' if self.recipe else ''}"

    @property
    def is_scaled(self) -> bool:
        return self.kind == "scaled"


def measured_time(offer: Offer, request: PlanRequest) -> LayoutTime | None:
    """Return the step time by its run, else its nearest record, scaled where its work differs; None without one."""
    record = offer.run or next(iter(offer.measured), None)
    if record is None or record.gpu_seconds is None or request.gbs is None:
        return None
    seconds = record.gpu_seconds * request.gbs * request.seq_len / request.gpus
    differs, is_itself = record.differs(request), offer.prediction is None or record is offer.run
    recipe = "" if is_itself or offer.prediction is None else ", ".join(record.other_recipe(offer.prediction.recipe))
    if differs or record.tflops_per_gpu is not None:
        source, time = f"from {_scaled_from(record, differs)}", seconds_text(seconds)
        return LayoutTime("scaled", source, recipe, record.href, seconds, time, bool(differs))
    source = f"by {record.by or _source(record)}"
    return LayoutTime(_kind(record), source, recipe, record.href, seconds, f"{seconds:.4g}\u202fs", False)


def _kind(record: Record) -> Literal["measured", "generated", "published"]:
    return "published" if record.by else "generated" if record.is_generated else "measured"


def _scaled_from(record: Record, differs: tuple[str, ...]) -> str:
    """Return what a time is scaled from: `NVIDIA's 61.8 s at GBS 16,384`."""
    work, seconds = record.request, record.step_time_s
    source = _source(record)
    words = {
        "gpus": f"{plural(work.gpus, 'GPU')}", "seq_len": f"seq {grouped(work.seq_len)}",
        "gbs": f"GBS {grouped(work.gbs or 0)}", "mbs": f"MBS {work.mbs}", "precision": work.precision,
        "mtp": f"MTP {work.model.mtp}", "num_layers": plural(work.model.layers, "layer"),
    }  # fmt: skip
    if record.tflops_per_gpu is not None:
        figure = f"{record.tflops_per_gpu:g} TFLOP/s/GPU"
    elif seconds is None:
        figure = f"{grouped(round(1 / (record.gpu_seconds or math.inf)))} tokens/s/GPU"
    else:
        figure = seconds_text(seconds)
    at = ", ".join(words[name] for name in differs if getattr(work, name, 0) is not None)
    return f"{source}'s {figure}{f' at {at}' if at else ''}"


def _source(record: Record) -> str:
    """Return who measured a record: `NVIDIA`, `run #12`, or `4 runs, newest #12`."""
    noun, number = "generated run" if record.is_generated else "run", record.href.removeprefix("/runs/")
    return record.by or (f"{noun} #{number}" if record.runs == 1 else f"{record.runs} {noun}s, newest #{number}")


def peak_words(offer: Offer, gpu_memory_gb: float | None) -> str:
    """Format the peak: `67 of 80 GiB measured, 69 predicted`, or `69 of 80 GiB, at the usable limit`."""
    if offer.prediction is None:
        return ""
    of = f" of {in_gib(gpu_memory_gb):.0f} GiB" if gpu_memory_gb else " GiB"
    predicted = in_gib(offer.prediction.peak_gb)
    if offer.run is not None and offer.run.peak_gb is not None:
        measured = in_gib(offer.run.peak_gb)
        differs = f", {predicted:.0f} predicted" if round(predicted) != round(measured) else ""
        above = ", above the usable limit" if measured > in_gib(offer.prediction.usable_gb) else ""
        how = "(generated)" if offer.run.is_generated else "measured"
        return f"{measured:.0f}{of} {how}{differs}{above}"
    limit = ", at the usable limit" if round(predicted) >= round(in_gib(offer.prediction.usable_gb)) else ""
    return f"{predicted:.0f}{of}{limit}"


def run_words(offer: Offer) -> str:
    """Return what the run that used the layout had on, next to its degrees; "" without such a run."""
    if offer.run is None or offer.prediction is None:
        return ""
    names = [name for name in _SHOWN_KNOBS if offer.run.knobs.get(name) is True]
    parts = [offer.prediction.recipe.dispatcher, *names]
    modules = sorted(offer.prediction.recipe.recompute)
    return ", ".join(filter(None, [*parts, f"recompute {'+'.join(modules)}" if modules else ""]))


def saved_words(offer: Offer) -> str:
    """Return what saves memory on the GPUs next to offloading: `BF16 gradients, recompute mla_up_proj`; "" if nothing
    does."""
    if offer.prediction is None:
        return ""
    recipe = offer.prediction.recipe
    return ", ".join(
        [
            *(["BF16 gradients"] if recipe.gradients_bf16 else []),
            *([f"recompute {'+'.join(sorted(recipe.recompute))}"] if recipe.recompute else []),
        ]
    )


_SHOWN_KNOBS = ("ep_overlap", "delay_wgrad", "shared_overlap", "permute_fusion", "router_fusion")


def _measured(offer: Offer, request: PlanRequest) -> str:
    """Return the time by the layout's nearest record; "" without one."""
    timed = measured_time(offer, request)
    if timed is None:
        return ""
    return (
        f"{timed.time}: {timed.origin}. Layouts with a record come before predictions that are less than "
        f"{share_text(NEAR - 1)} faster."
    )


_SAME = 0.02
"""Predicted differences below this are not worth a sentence."""


def _difference(prediction: Prediction, first: Prediction) -> str:
    """Return the difference between two predictions, and the part of the step where the layout loses most."""
    lost = {name: prediction.parts_s[name] - first.parts_s[name] for name in prediction.parts_s}
    name = max(lost, key=lambda part: lost[part])
    slower = (prediction.step_time_s or 0.0) / (first.step_time_s or 1.0) - 1
    if prediction.is_capped and first.is_capped:
        return "At the same limit"
    if slower < -_SAME:
        return f"{-100 * slower:.0f}\u202f% faster, within the error"
    if lost[name] <= 0 or slower < _SAME:
        equal = f"{100 * slower:.1f}" in ("0.0", "-0.0")
        change = f"{100 * abs(slower):.1f}\u202f% {'slower' if slower > 0 else 'faster'}, within the error"
        return "Predicted as fast" if equal else change
    return f"{100 * slower:.0f}\u202f% slower: {_PARTS[name]}"


def calibration(plan: Plan) -> str:
    """Return what corrected the predictions, with the residuals."""
    used = plan.request.calibration
    if plan.offers and plan.offers[0].prediction is None:
        return "Nothing is predicted: the widths of the model or the figures of this GPU are unknown."
    if not used.time_records and not used.memory_records:
        alone = "No record of this model on this GPU corrects the predictions: formulas and general efficiencies alone"
        if plan.request.gpu in AMD:
            return (
                f"{alone}. No step time on an AMD GPU was published with its layout, so the range is a factor of "
                f"{used.spread:g}. One run of this model on this GPU narrows it."
            )
        return f"{alone}; published step times lie within a factor of {used.spread:g} in most cases."
    parts = []
    if used.time_records:
        layouts = f"{plural(used.time_records, 'layout')} of this model on this GPU: "
        times = plural(used.time_records, "its step time is", "their step times are", number=False)
        text = f"{layouts}{times} {used.time:.2f} times the formula's"
        if used.measured_spread is not None:
            text += f", and differ from that by at most a factor of {used.measured_spread:.2f}"
        if used.measured_spread is None or used.measured_spread < NEAR:
            text += f"; the range assumes a factor of {NEAR:.2f}"
        parts.append(text)
    if used.memory_records:
        parts.append(
            f"{plural(used.memory_records, 'measured peak')}: memory other than weights and optimizer is "
            f"{used.memory:.2f} times the formula's"
        )
    generated = any(record.is_generated for record in plan.records)
    examples = " Some of these are generated examples, not measurements." if generated else ""
    return f"Corrected by {'; and by '.join(parts)}.{examples}"


def sizing(plan: Plan) -> list[tuple[str, str]]:
    """Return what follows from the work alone: title and sentence."""
    request = plan.request
    parts = [
        (
            "Context parallelism",
            f"Start with CP {plan.first_cp}: one rank per {grouped(SHARD_FLOOR)} of {grouped(request.seq_len)} tokens. "
            f"Lower it while a rank has at most {grouped(SHARD_CEILING)} tokens and the run fits.",
        )
    ]
    if request.gbs is not None:
        parts.append(("Tokens per step", f"GBS × sequence length = {grouped(request.gbs * request.seq_len)}."))
    else:
        parts.append(("Batch", "No global batch size is given, so DP is not checked. MBS x DP must divide it."))
    if plan.gpu_memory_gb is not None and request.model.total_billions is not None:
        parts.append(
            (
                "Parameters",
                f"{request.model.total_billions:g} billion without multi-token prediction; one {request.gpu} has "
                f"{in_gib(plan.gpu_memory_gb):.0f} GiB.",
            )
        )
    return parts


def static_memory(offer: Offer, plan: Plan) -> str:
    """Format the static memory: `60 of 80 GiB`, or "" when unknown."""
    if offer.static_gb is None:
        return ""
    of = f" of {in_gib(plan.gpu_memory_gb):.0f}" if plan.gpu_memory_gb is not None else ""
    return f"{in_gib(offer.static_gb):.0f}{of} GiB"


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """A part of the predicted peak, in GiB, and its place on a bar of 1000 units for the memory of the GPU."""

    name: str
    label: str
    gib: float
    x: float
    width: float


def memory_bar(prediction: Prediction, memory_gb: float) -> list[MemoryPart]:
    """Return the parts of the predicted peak from left to right; what exceeds the memory is cut off."""
    parts, x = [], 0.0
    for name, label in MEMORY_PARTS.items():
        gb = prediction.memory[name]
        width = min(1000 * gb / memory_gb, 1000 - x)
        parts.append(MemoryPart(name, label, in_gib(gb), round(x, 1), round(width, 1)))
        x += width
    return parts


def whole_gib(parts: Sequence[MemoryPart], peak_gb: float) -> list[tuple[MemoryPart, int]]:
    """Round the parts to whole GiB that add up to the rounded peak: the largest remainders are rounded up."""
    rounded = {part.name: math.floor(part.gib) for part in parts}
    by_remainder = sorted(parts, key=lambda part: rounded[part.name] - part.gib)
    for part in by_remainder[: max(0, round(in_gib(peak_gb)) - sum(rounded.values()))]:
        rounded[part.name] += 1
    return [(part, rounded[part.name]) for part in parts]


@dataclass(frozen=True, slots=True)
class Residual:
    """A record that corrected a plan: measured over predicted, as texts; "" where not measured."""

    title: str
    href: str
    layout: str
    time: str
    memory: str


def residual_rows(plan: Plan) -> list[Residual]:
    """Return the records that corrected a plan, with their residuals."""
    rows = []
    for record in plan.records:
        time, memory = residuals(record)
        if time is None and memory is None:
            continue
        rows.append(
            Residual(
                record.title,
                record.href,
                degrees_text(record.layout, experts=plan.request.model.experts is not None),
                "" if time is None else f"{time:.2f}",
                "" if memory is None else f"{memory:.2f}",
            )
        )
    return rows
