"""The planner's page. All of a plan is in its address, so that it can be shared."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlencode

from fastapi import APIRouter, Request
from sqlmodel import Session
from starlette.responses import HTMLResponse

from app.domain.access.principal import Action
from app.domain.contract.fields import FIELDS
from app.domain.numbers import grouped
from app.domain.performance.model_shape import known_values
from app.domain.planning.estimate import Record
from app.domain.planning.hardware import in_gib
from app.domain.planning.layout import SOURCE, SOURCE_URL, Layout, degrees_text
from app.domain.planning.plan import REASONS, LayoutFlags, Offer, Plan, host_gib_per_node, offer_flags
from app.domain.planning.records import LAYOUT, UsedLayout
from app.domain.planning.request import DEGREES, INPUTS, PATH, SHAPE, named_models
from app.domain.rules.load import built_in_rules
from app.domain.rules.rule import Source
from app.errors import InvalidQuery
from app.planner import queries
from app.planner.charts import HEIGHT, is_drawable, layout_chart
from app.planner.queries import asked, is_asked, planned
from app.planner.views import LayoutQuery, LayoutRow, layout_rows
from app.storage.database import ListPage
from app.storage.rules import RulesInForce
from app.web.access_rule import requires
from app.web.dependencies import ReadSession, Rules
from app.web.forms import Form
from app.web.templating import render

# --- The planner's page: the form as filled in, and the plan if there is one.

GPUS = ("H100", "H200", "B200", "B300", "GB200", "GB300", "VR200", "A100")
_CUT = ("vpp", "pp_layout", "pp_account")
EXAMPLES = (
    ("DeepSeek-V3 on 256 H100", "model=DeepSeek-V3&mtp=1&gpu=H100&gpus=256&seq_len=4096&gbs=8192&precision=fp8_sc"),
    ("Qwen3-30B-A3B on 16 H100", "model=Qwen3-30B-A3B&gpu=H100&gpus=16&seq_len=4096&gbs=1024"),
    ("Qwen3-235B-A22B on 128 GB200, 128k tokens", "model=Qwen3-235B-A22B&gpu=GB200&gpus=128&seq_len=131072&gbs=256"),
)


LABELS: Mapping[str, str] = {
    "model": "Model",
    "gpu": "GPU",
    "gpus": "GPUs",
    "seq_len": "Sequence length",
    "gbs": "Global batch",
    "mbs": "Micro batch",
    "precision": "Precision",
    "mtp": "MTP layers",
    "pp_layout": "PP layout",
    "pp_account": "Counted as layers",
    "host_memory_gib": "Host GiB per node",
    "num_layers": "Layers",
    "num_attention_heads": "Attention heads",
    "num_query_groups": "Key and value heads",
    "num_experts": "Experts",
    "hidden_size": "Hidden size",
} | {name: name.upper() for name in DEGREES}


_SHAPE_TEXTS = {
    "num_layers": "{} layers", "hidden_size": "hidden size {}", "num_attention_heads": "{} heads",
    "num_query_groups": "{} key and value heads", "num_experts": "{} experts", "topk": "top {}",
    "moe_ffn_hidden_size": "expert width {}", "vocab_size": "vocabulary {}",
}  # fmt: skip


class LayoutForm(Form):
    """Texts by input, with their errors."""

    def label(self, name: str) -> str:
        return LABELS[name]

    def error(self, name: str) -> str:
        """Return the error of an input as a sentence."""
        return f"{LABELS[name]} {self.errors[name]}." if name in self.errors else ""

    def any(self, names: tuple[str, ...]) -> bool:
        """Return whether one of the inputs is filled in or wrong."""
        return any(self.values.get(name) or name in self.errors for name in names)


@dataclass(frozen=True, slots=True)
class Used:
    """A used layout, the fields in which its setting differs, and the planner's address with its degrees."""

    layout: UsedLayout
    differs: tuple[str, ...]
    href: str


class PlanPage:
    """The data of the template. Without a plan: a refused form. `start`: what is planned without a request.

    `order`: of the table of layouts. `assumed`: inputs that were not stated, by a record or run of the model, or by
    default.
    """

    def __init__(
        self,
        form: LayoutForm,
        order: LayoutQuery,
        plan: Plan | None = None,
        used: tuple[Used, ...] = (),
        *,
        start: str = "",
        assumed: queries.AssumedWork | None = None,
    ) -> None:
        self.form = form
        self.order = order
        self.plan = plan
        self.used = used
        self.start = start
        self.assumed = assumed
        self.inputs = {name: FIELDS[name].meaning for name in INPUTS}
        self.models = named_models()
        self.gpus = tuple(dict.fromkeys([*GPUS, *filter(None, [form.value("gpu")])]))
        self.precisions = FIELDS["precision"].choices
        self.degree_names, self.shape_names = DEGREES, SHAPE
        self.reasons, self.examples, self.not_estimated = REASONS, EXAMPLES, queries.NOT_ESTIMATED
        self.memory_source, self.memory_url = SOURCE, SOURCE_URL
        self.architecture = known_values(form.value("model"))

    @property
    def sentences(self) -> list[str]:
        return queries.answer(self.plan) if self.plan else []

    @property
    def is_compared(self) -> bool:
        """Return whether the lead compares two layouts, so that the next sentence repeats the card of the first."""
        return bool(self.plan and not self.plan.given and self.plan.offers and queries.against_fastest(self.plan))

    @property
    def flags_of(self) -> str:
        """Return the part of the page with the flags of the chosen layout; "" if it is not feasible."""
        return "flags" if self.chosen is not None and not self.chosen.violations else ""

    @cached_property
    def untested(self) -> Offer | None:
        """Return the layout that the lead predicts to be faster than the first, without a record; None without one."""
        return queries.untested_offer(self.plan) if self.plan else None

    @property
    def frees_first(self) -> bool:
        """Return whether the next step is to free the degrees, because what they fix is not feasible."""
        fixed = self.plan is not None and bool(self.plan.request.fixed or self.plan.request.pp_layout)
        return fixed and not self.flags_of and not self.enough

    @property
    def sizing(self) -> list[tuple[str, str]]:
        return queries.sizing(self.plan) if self.plan else []

    @property
    def published_shape(self) -> str:
        """Return the published architecture of the model: `32 layers, hidden size 4,096`; "" for an unknown name."""
        shape = {name: value for name, value in self.architecture.items() if isinstance(value, int)}
        return ", ".join(text.format(grouped(shape[name])) for name, text in _SHAPE_TEXTS.items() if name in shape)

    @property
    def chosen(self) -> Offer | None:
        """Return the layout that the request states, else the first feasible one; None without either."""
        if self.plan is None:
            return None
        return self.plan.given or next(iter(self.plan.offers), None)

    @cached_property
    def rows(self) -> list[LayoutRow]:
        return layout_rows(self.plan) if self.plan else []

    @property
    def shown(self) -> ListPage[LayoutRow]:
        """Return the shown page of the table."""
        return ListPage.cut(self.order.sorted_rows(self.rows), self.order.page, self.order.page_size)

    @property
    def has_etp(self) -> bool:
        return any(row.offer.layout.etp > 1 for row in self.rows)

    @property
    def chart_height(self) -> int:
        """Return the height of the picture with its axis; 0 without one."""
        return HEIGHT + 48 if is_drawable(self.rows) else 0

    def chart(self) -> dict[str, Any]:
        return layout_chart(self.rows, lambda row: self.fixed(row.offer.layout))

    def listed(self, page: int = 1, **changes: str) -> str:
        """Return the query of this plan with its table in another order, or another page of it."""
        return "&".join(filter(None, [self.query, self.order.query(page, **changes)]))

    @property
    def published(self) -> tuple[Record, str] | None:
        """Return the nearest published record in this number format, with its tokens/s/GPU as text.

        None without one, and beside a measured first layout.
        """
        chosen = self.chosen
        if self.plan is None or chosen is None or chosen.prediction is None or chosen.measured:
            return None
        speeds = {record.href: record for record in self.plan.records if record.by and record.gpu_seconds}
        record = next((speeds[row.layout.href] for row in self.used if row.layout.href in speeds), None)
        if record is None or record.gpu_seconds is None:
            return None
        tokens = 1 / record.gpu_seconds
        if record.tflops_per_gpu is not None:
            return record, f"about {_three_digits(tokens)} tokens/s/GPU (from {record.tflops_per_gpu:g} TFLOP/s/GPU)"
        return record, f"{grouped(round(tokens))} tokens/s/GPU"

    def tokens_per_gpu(self, offer: Offer) -> str:
        """Format the predicted tokens/s/GPU; "" without a predicted step time or a batch."""
        prediction, request = offer.prediction, self.plan.request if self.plan else None
        if request is None or request.gbs is None or prediction is None or prediction.step_time_s is None:
            return ""
        tokens = _three_digits(request.gbs * request.seq_len / request.gpus / prediction.step_time_s)
        return f"{'at most' if prediction.is_capped else 'about'} {tokens}"

    @property
    def calibration(self) -> str:
        return queries.calibration(self.plan) if self.plan else ""

    @property
    def residuals(self) -> list[queries.Residual]:
        return queries.residual_rows(self.plan) if self.plan else []

    def why(self, offer: Offer) -> str:
        if not self.plan or not self.plan.offers:
            return ""
        best = self.plan.offers[0]
        return queries.why(best if offer.layout == best.layout else offer, best, self.plan.request)

    def short_step_time(self, offer: Offer) -> str:
        """Format the predicted step time without its range."""
        return queries.middle_time(offer.prediction) if offer.prediction else ""

    def step_time(self, offer: Offer) -> str:
        return queries.step_time(offer.prediction) if offer.prediction else ""

    def recipe(self, offer: Offer) -> str:
        return queries.recipe(offer.prediction) if offer.prediction else ""

    def peak(self, offer: Offer) -> str:
        """Format the predicted peak: `61 GiB`."""
        return f"{in_gib(offer.prediction.peak_gb):.0f} GiB" if offer.prediction else ""

    @property
    def gpu_memory(self) -> str:
        return f"{in_gib(self.plan.gpu_memory_gb):.0f} GiB" if self.plan and self.plan.gpu_memory_gb else ""

    def limit(self, offer: Offer) -> float:
        """Return the end of the memory that tensors may use on the bar, of 1000."""
        memory = self.plan.gpu_memory_gb if self.plan else None
        return round(1000 * offer.prediction.usable_gb / memory, 1) if offer.prediction and memory else 1000.0

    def usable(self, offer: Offer) -> str:
        """Format the memory that tensors may use, in GiB."""
        return f"{in_gib(offer.prediction.usable_gb):.0f}" if offer.prediction else ""

    def measured_time(self, offer: Offer) -> queries.LayoutTime | None:
        return queries.measured_time(offer, self.plan.request) if self.plan else None

    def is_fitted(self, offer: Offer) -> bool:
        """Return whether the prediction is corrected by the layout's own record alone, so that it proves nothing."""
        return self.plan is not None and self.plan.request.calibration.time_records == 1 and bool(offer.measured)

    def peak_words(self, offer: Offer) -> str:
        return queries.peak_words(offer, self.plan.gpu_memory_gb) if self.plan else ""

    def run_words(self, offer: Offer) -> str:
        return queries.run_words(offer)

    def saved_words(self, offer: Offer) -> str:
        return queries.saved_words(offer)

    @property
    def title(self) -> str:
        if self.plan is None:
            return "Plan a layout"
        request = self.plan.request
        return f"Plan {request.model.name} on {grouped(request.gpus)} × {request.gpu}"

    @property
    def work(self) -> str:
        """Return the work of a step: `seq 4,096 · GBS 2,048 · bf16`."""
        if self.plan is None:
            return ""
        request = self.plan.request
        batch = f"GBS {grouped(request.gbs)}" if request.gbs is not None else ""
        mtp = f"MTP {request.model.mtp}" if request.model.mtp else ""
        return " · ".join(filter(None, [f"seq {grouped(request.seq_len)}", batch, request.precision, mtp]))

    def host_memory(self, offer: Offer) -> str:
        """Format the optimizer states of a node in host memory: ` (416 GiB per node)`; empty if unknown."""
        if self.plan is None or offer.prediction is None:
            return ""
        gib = host_gib_per_node(self.plan.request, offer.prediction)
        return "" if gib is None else f" ({gib:,.0f} GiB per node)"

    def memory_parts(self, offer: Offer) -> list[tuple[queries.MemoryPart, int]]:
        """Return the parts of the predicted peak in whole GiB that add up to it."""
        return queries.whole_gib(self.memory_bar(offer), offer.prediction.peak_gb) if offer.prediction else []

    def memory_bar(self, offer: Offer) -> list[queries.MemoryPart]:
        if self.plan is None or self.plan.gpu_memory_gb is None or offer.prediction is None:
            return []
        return queries.memory_bar(offer.prediction, self.plan.gpu_memory_gb)

    @property
    def has_experts(self) -> bool:
        return self.plan is not None and self.plan.request.model.experts is not None

    @property
    def query(self) -> str:
        return urlencode({name: text for name, text in self.form.values.items() if text})

    def degrees(self, layout: Layout) -> str:
        return degrees_text(layout, experts=self.has_experts)

    def memory(self, offer: Offer) -> str:
        return queries.static_memory(offer, self.plan) if self.plan else ""

    def layout_flags(self, offer: Offer) -> LayoutFlags:
        assert self.plan is not None  # noqa: S101  # offers come from a plan
        return offer_flags(self.plan, offer)

    def sources(self, keys: tuple[str, ...]) -> list[Source]:
        sources = built_in_rules().sources
        return [sources[key] for key in keys if key in sources]

    def fixed(self, layout: Layout) -> str:
        """Return the planner's address for this layout and the same work."""
        return with_degrees(self.form.values, layout_values(layout))

    @property
    def enough(self) -> str:
        """Return the planner's address for this work on the fewest doubled GPUs that fit; "" when none are known.

        A complete layout is freed, because another number of GPUs needs another one.
        """
        if self.plan is None or not self.plan.enough_gpus:
            return ""
        fixed = {} if self.plan.given else {name: text for name in (*DEGREES, *_CUT) if (text := self.form.value(name))}
        return with_degrees({**self.form.values, "gpus": str(self.plan.enough_gpus)}, fixed)

    @property
    def free(self) -> str:
        """Return the planner's address for the same work with nothing fixed."""
        return with_degrees(self.form.values, {})


def _three_digits(value: float) -> str:
    """Format a figure that is no measurement: `1,150`."""
    return grouped(round(float(f"{value:.3g}")))


def layout_values(layout: Layout) -> dict[str, str]:
    """Return the inputs that state the layout."""
    degrees = {"tp": layout.tp, "pp": layout.pp, "cp": layout.cp, "ep": layout.ep, "etp": layout.etp}
    values = {name: str(size) for name, size in degrees.items()}
    if layout.pp_layout is not None:
        return values | {"pp_layout": layout.pp_layout}
    return values | {"vpp": str(layout.vpp), "pp_account": ",".join(layout.account) or "none"}


def with_degrees(typed: Mapping[str, str], degrees: Mapping[str, str]) -> str:
    """Return the planner's address for the typed work with these degrees."""
    work = {name: text for name, text in typed.items() if text and name not in (*DEGREES, *_CUT)}
    return f"{PATH}?{urlencode(work | dict(degrees))}"


router = APIRouter(include_in_schema=False)


@router.get("/plan")
@requires(Action.READ)
def show_plan(request: Request, session: ReadSession, rules: Rules) -> HTMLResponse:
    """Show a plan: the requested one, else that for the work of the newest run."""
    order = LayoutQuery.from_params(request.query_params)
    values = {name: text for name, text in asked(request.query_params).items() if name not in ("sort", "page")}
    if not is_asked(values):
        return _render(request, _first_plan(session, rules, order), block="layout_table")
    assumed = queries.assumed_work(session, values)
    values |= assumed.values if assumed else {}
    try:
        page = _page(session, rules, values, order, assumed=assumed)
    except InvalidQuery as error:
        errors = {field_error.field: field_error.message for field_error in error.errors}
        return _render(request, PlanPage(LayoutForm(values, errors), order), status=422)
    return _render(request, page, block="layout_table")


@router.get("/plan/model")
@requires(Action.READ)
def show_model(request: Request, model: str = "") -> HTMLResponse:
    """Return the part of the form with the shape of a model, which follows the choice of a model."""
    page = PlanPage(LayoutForm({"model": model[:100]}), LayoutQuery())
    return _render(request, page, block="model_shape")


@router.get("/plan/chart")
@requires(Action.READ)
def show_chart(request: Request, session: ReadSession, rules: Rules) -> HTMLResponse:
    """Return the picture of a plan alone: it loads after the figures, so that drawing does not delay them."""
    page = _page(session, rules, asked(request.query_params), LayoutQuery())
    return _render(request, page, block="layout_chart", chart=page.chart())


def _render(
    request: Request,
    page: PlanPage,
    *,
    block: str | None = None,
    status: int = 200,
    chart: dict[str, Any] | None = None,
) -> HTMLResponse:
    unknown = tuple(name[:60] for name in page.form.errors if name not in INPUTS)
    address = f"{PATH}?{page.listed(page.order.page)}" if block == "layout_table" else None
    return render(
        request,
        "planner/plan.html",
        block=block,
        address=address,
        status=status,
        p=page,
        unknown=unknown,
        chart=chart,
    )


def _first_plan(session: Session, rules: RulesInForce, order: LayoutQuery) -> PlanPage:
    """Return the plan for the work of the newest run, else for the first example."""
    if newest := queries.newest_work(session):
        with suppress(InvalidQuery):  # the run's facts contradict each other
            return _page(session, rules, newest[1], order, start=f"#{newest[0]}")
    return _page(session, rules, dict(parse_qsl(EXAMPLES[0][1])), order, start=EXAMPLES[0][0])


def _page(
    session: Session,
    rules: RulesInForce,
    values: dict[str, str],
    order: LayoutQuery,
    *,
    start: str = "",
    assumed: queries.AssumedWork | None = None,
) -> PlanPage:
    offered = planned(session, values, rules.thresholds["T_headroom"])
    used = (Used(layout, differs, with_degrees(values, _stated(layout))) for layout, differs in offered.nearby)
    return PlanPage(LayoutForm(values), order, offered.plan, tuple(used), start=start, assumed=assumed)


def _stated(layout: UsedLayout) -> dict[str, str]:
    """Return the inputs that state its layout; a layout string contains VPP."""
    names = [name for name in LAYOUT if name != "vpp" or not layout.values.get("pp_layout")]
    return {name: str(layout.values[name]) for name in names if layout.values.get(name) is not None}
