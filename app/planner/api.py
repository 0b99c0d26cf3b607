"""`/api/v1/plan`: feasible layouts as JSON. Only GET: a plan changes nothing, and its address can be shared."""

from typing import Annotated, Self

from fastapi import Query, Request
from pydantic import BaseModel, Field

from app.domain.access.principal import Action
from app.domain.planning.constraints import Violation
from app.domain.planning.estimate import Prediction
from app.domain.planning.plan import Note, Offer, Plan, offer_flags
from app.domain.planning.records import UsedLayout
from app.domain.planning.request import PlanRequest
from app.domain.run import Value
from app.planner import queries
from app.planner.pages import layout_values, with_degrees
from app.planner.queries import planned
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, ReadSession, Rules, api_router
from app.web.errors import documented
from app.web.templating import public_address

# --- Types of the API's plan; `docs/api.md` describes them. Fields may be added but not changed.


class PlanQuery(BaseModel, extra="forbid"):
    """Contract fields of a plan, as text; empty means undecided."""

    model: str = Field("", description="A known name, or any name with a shape.")
    gpu: str = Field("", description="For example H100. Required.")
    gpus: str = Field("", description="Required.")
    seq_len: str = Field("", description="Required.")
    gbs: str = ""
    mbs: str = Field("", description="Default: 1.")
    precision: str = Field("", description="Default: bf16.")
    tp: str = Field("", description="A fixed degree, as are the following.")
    pp: str = ""
    vpp: str = Field("", description="1: no virtual pipeline.")
    cp: str = ""
    ep: str = ""
    etp: str = ""
    pp_layout: str = Field("", description="For example `Et*3|(tt|)*29m|L`.")
    pp_account: str = Field("", description="`embedding,loss`, one of them, or `none`.")
    mtp: str = ""
    host_memory_gib: str = ""
    num_layers: str = Field("", description="With the next four: the shape of a model without a known name.")
    num_attention_heads: str = ""
    num_query_groups: str = ""
    num_experts: str = Field("", description="`none`: a dense model.")
    hidden_size: str = ""
    topk: str = Field("", description="With the following: all widths, for a prediction of memory and step time.")
    moe_ffn_hidden_size: str = ""
    moe_shared_expert_intermediate_size: str = ""
    ffn_hidden_size: str = ""
    moe_layer_freq: str = ""
    vocab_size: str = ""
    kv_channels: str = ""
    swiglu: str = ""
    multi_latent_attention: str = ""
    q_lora_rank: str = ""
    kv_lora_rank: str = ""
    qk_head_dim: str = ""
    qk_pos_emb_head_dim: str = ""
    v_head_dim: str = ""
    recompute_granularity: str = Field("", description="Empty: the least recomputation that fits is chosen.")
    recompute_modules: str = ""
    opt_offload_fraction: str = Field("", description="Share of the optimizer states in host memory.")
    dispatcher: str = ""
    ep_overlap: str = ""
    dist_opt: str = Field("", description="Default: true.")
    graph_impl: str = ""

    @property
    def values(self) -> dict[str, str]:
        return {name: text for name, text in self.model_dump().items() if text}


class ViolationOut(ApiValue):
    """A constraint that a layout violates. `constraint` is the id of the rule, where one exists."""

    constraint: str
    text: str
    todo: str
    sources: list[str]

    @classmethod
    def of(cls, violation: Violation) -> Self:
        return cls.from_values(violation, violation.constraint, constraint=violation.constraint.id)


class PredictionOut(ApiValue):
    """Predicted memory (GB of 1e9 bytes, allocated, worst rank) and step time, with the recipe that they assume."""

    step_time_s: float | None = Field(description="null: the batch is undecided.")
    is_capped: bool = Field(description="The step time is the shortest predicted: 15 % faster than the best record.")
    step_time_low_s: float | None
    step_time_high_s: float | None
    step_time_parts_s: dict[str, float]
    peak_gb: float
    usable_gb: float = Field(description="GPU memory that tensors may use.")
    memory_parts_gb: dict[str, float]
    fits: bool
    recompute: list[str] = Field(description="Modules; `full`: whole layers.")
    gradients_bf16: bool
    optimizer_offload: float
    host_gb: float
    dispatcher: str
    ep_overlap: bool

    @classmethod
    def of(cls, prediction: Prediction) -> Self:
        recipe = prediction.recipe
        return cls.from_values(
            prediction,
            recipe,
            step_time_s=_rounded(prediction.step_time_s),
            step_time_low_s=_rounded(prediction.low_s),
            step_time_high_s=_rounded(prediction.high_s),
            step_time_parts_s={name: round(seconds, 4) for name, seconds in prediction.parts_s.items()},
            peak_gb=round(prediction.peak_gb, 2),
            usable_gb=round(prediction.usable_gb, 2),
            memory_parts_gb={name: round(size, 2) for name, size in prediction.memory.items()},
            recompute=sorted(recipe.recompute),
            optimizer_offload=recipe.offload,
            host_gb=round(prediction.host_gb, 2),
            ep_overlap=recipe.overlap,
        )


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


class MeasurementOut(ApiValue):
    """The nearest record of a layout, as the step time of the requested work."""

    url: str = Field(description="The run or the published figure.")
    origin: str = Field(description="Who measured it, or what it is scaled from.")
    step_time_s: float
    is_scaled: bool = Field(description="The record did other work, for example with another batch.")
    peak_gb: float | None = Field(description="Measured by a run with exactly this work and these flags; else null.")

    @classmethod
    def of(cls, offer: Offer, request: PlanRequest, base: str) -> Self | None:
        timed = queries.measured_time(offer, request)
        if timed is None:
            return None
        peak = round(offer.run.peak_gb, 2) if offer.run and offer.run.peak_gb else None
        return cls.from_values(timed, url=base + timed.href, step_time_s=round(timed.seconds, 4), peak_gb=peak)


class OfferOut(ApiValue):
    """A layout. null: not a whole number, or unknown."""

    url: str = Field(description="The planner's page with this layout.")
    tp: int
    pp: int
    vpp: int | None = Field(description="null: no virtual pipeline.")
    cp: int
    ep: int
    etp: int
    pp_layout: str | None
    pp_account: list[str]
    dp: int | None
    edp: int | None
    ga: int | None = Field(description="Micro-batches per step.")
    min_gpus: int
    local_experts: int | None
    tokens_per_cp_shard: int
    tokens_per_cp_tp_shard: int
    static_gb: float | None = Field(description="Weights, gradients and optimizer states per GPU, in 1e9 bytes.")
    prediction: PredictionOut | None = Field(
        description="null: the widths of the model or the figures of the GPU are unknown."
    )
    measured: MeasurementOut | None = Field(description="null: no record of these degrees on this GPU.")
    rejected_in: int | None = Field(
        description="Id of the experiment that rejected this layout, or a setting of it, for the same work."
    )
    other_vpp: list[int]
    placement: str
    notes: list[Note]
    violations: list[ViolationOut]
    megatron_lm: str
    megatron_bridge: str
    megatron_lm_without: list[str] = Field(description="Flags that the command must not contain.")

    @classmethod
    def of(cls, offer: Offer, plan: Plan, typed: dict[str, str], base: str) -> Self:
        layout, text = offer.layout, offer_flags(plan, offer)
        return cls.from_values(
            offer,
            layout,
            url=base + with_degrees(typed, layout_values(layout)),
            vpp=layout.vpp if layout.vpp > 1 else None,
            pp_account=layout.account,
            prediction=PredictionOut.of(offer.prediction) if offer.prediction else None,
            measured=MeasurementOut.of(offer, plan.request, base),
            violations=[ViolationOut.of(violation) for violation in offer.violations],
            megatron_lm=text.megatron_lm,
            megatron_bridge=text.bridge,
            megatron_lm_without=text.without,
        )


class RejectedOut(ApiValue):
    """`count`: combinations that break it; `alone`: those that break no other constraint."""

    constraint: str
    title: str
    count: int
    alone: int


class UsedOut(ApiValue):
    """A layout used for the same model. `differs`: fields in which its setting differs."""

    title: str
    url: str
    whose: str
    figure: str
    layout: dict[str, Value]
    differs: list[str]


class CalibrationOut(BaseModel):
    """How measured layouts of the same model on the same GPU corrected the predictions."""

    text: str
    step_time_ratio: float = Field(description="Measured over predicted step time; 1 without records.")
    step_time_spread: float = Field(
        description="The factor that encloses the step time: 1.2 or more, which one record alone only assumes."
    )
    step_time_records: int
    memory_ratio: float = Field(description="The same for memory other than weights, gradients and optimizer states.")
    memory_records: int

    @classmethod
    def of(cls, plan: Plan) -> Self:
        used = plan.request.calibration
        return cls(
            text=queries.calibration(plan),
            step_time_ratio=used.time,
            step_time_spread=used.spread,
            step_time_records=used.time_records,
            memory_ratio=used.memory,
            memory_records=used.memory_records,
        )


class LayoutPlanOut(ApiValue):
    url: str
    answer: str
    tried: int
    feasible: int
    calibration: CalibrationOut
    first_cp: int = Field(description="The first guess of CP for this sequence length.")
    gpu_memory_gb: float | None
    given: OfferOut | None = Field(description="The layout that the query states, judged; null without one.")
    offers: list[OfferOut] = Field(description="Feasible layouts, best first; at most 50.")
    closest: list[OfferOut] = Field(
        description="When nothing is feasible: the layouts that violate the fewest constraints, smallest memory first."
    )
    too_large: list[OfferOut] = Field(
        description="Layouts that violate nothing but the usable memory, smallest peak first; at most 12."
    )
    enough_gpus: int | None = Field(
        description="When only memory is short: the first doubling of the GPUs with a feasible layout."
    )
    rejected: list[RejectedOut]
    nearby: list[UsedOut]
    not_estimated: list[str]

    @classmethod
    def of(
        cls, plan: Plan, typed: dict[str, str], used: tuple[tuple[UsedLayout, tuple[str, ...]], ...], base: str
    ) -> Self:
        def out(offer: Offer) -> OfferOut:
            return OfferOut.of(offer, plan, typed, base)

        return cls.from_values(
            plan,
            url=base + with_degrees(typed, typed),
            answer=" ".join(queries.answer(plan)),
            calibration=CalibrationOut.of(plan),
            given=out(plan.given) if plan.given else None,
            offers=[out(offer) for offer in plan.offers],
            closest=[out(offer) for offer in plan.closest],
            too_large=[out(offer) for offer in plan.too_large],
            rejected=[
                RejectedOut.from_values(row, row.constraint, constraint=row.constraint.id) for row in plan.rejected
            ],
            nearby=[_used(layout, differs, base) for layout, differs in used],
            not_estimated=list(queries.NOT_ESTIMATED),
        )


def _used(used: UsedLayout, differs: tuple[str, ...], base: str) -> UsedOut:
    names = ("tp", "pp", "vpp", "cp", "ep", "etp", "pp_layout", "mtp", "gpu", "gpus", "seq_len", "precision")
    layout = {name: used.values[name] for name in names if name in used.values}
    return UsedOut.from_values(used, url=base + used.href, layout=layout, differs=differs)


router = api_router("plan")


@router.get("/plan", responses=documented(422))
@requires(Action.READ)
def read_plan(
    request: Request, session: ReadSession, rules: Rules, query: Annotated[PlanQuery, Query()]
) -> LayoutPlanOut:
    """Return feasible layouts of a model over GPUs, best first; judge a complete layout.

    422 names each invalid field.
    """
    values = query.values
    offered = planned(session, values, rules.thresholds["T_headroom"])
    return LayoutPlanOut.of(offered.plan, values, offered.nearby, public_address(request))
