"""`/api/v1/compare`: the page's comparison as JSON."""

from collections.abc import Iterable
from typing import Annotated, Literal

from fastapi import Query, Request
from pydantic import BaseModel, Field

from app.compare.queries import ComparedRun, ComparedSides, Side, SideSelection, pair_suggestions
from app.domain.access.principal import Action
from app.domain.contract.fields import Role
from app.domain.rules.engine import Suggestion
from app.domain.rules.rule import Kind as RuleKind
from app.domain.run import Source, Value
from app.domain.verdict.comparability import Axis, Kind
from app.domain.verdict.comparison import MetricOutcome, Within
from app.errors import FieldError, InvalidQuery
from app.web.access_rule import requires
from app.web.dependencies import ApiValue, ReadSession, Rules, api_router
from app.web.errors import documented
from app.web.templating import public_address

# --- Types of the API's comparison; `docs/api.md` describes them. Fields may be added but not changed.


class ValueOut(ApiValue):
    value: Value
    source: Source
    detail: str = ""


class ContractDifferenceOut(ApiValue):
    field: str
    role: Role = Field(
        description="stack: must be equal for runs to be ranked together. config: a knob. info: not part of a key."
    )
    follows: str | None = Field(description="The field that this difference results from; both count as one.")
    a: ValueOut | None = Field(description="null: unknown, so it may differ.")
    b: ValueOut | None


class ComparedRunOut(ApiValue):
    id: int
    name: str
    url: str = Field(description="Page of the run.")
    commit: str
    left_out: str | None = Field(description="Why it is excluded from the figures of its side; null when it counts.")


class SideOut(BaseModel):
    """The runs, oldest first. `differ_in`: why they are not reruns of one job; empty when they are."""

    runs: list[ComparedRunOut]
    reruns: bool
    differ_in: list[str]


class LossOut(ApiValue):
    """Medians over the last iterations that all runs share. Other runs may share other iterations."""

    first_iteration: int
    last_iteration: int
    baseline: float | None
    candidate: float | None
    delta_pct: float | None
    decision: Literal["worse", "no_worse", "not_finite", "not_judged"]


class DistributionOut(BaseModel):
    """Step times in ms in the steady window of one run."""

    run: int
    side: Literal["a", "b"]
    n: int
    p05: float
    p25: float
    p50: float
    p75: float
    p95: float
    mean: float
    spike_share: float = Field(description="0 to 1.")


class TestOut(BaseModel):
    """The inputs of the test. Run-to-run variation and the smallest shift are in percent of step time."""

    baseline_runs: list[int]
    candidate_runs: list[int]
    run_to_run_pct: float | None
    learned_from: int = Field(
        description="Number of other configurations that the variation is estimated from; 0: default."
    )
    smallest_callable_pct: float | None
    need_runs: int | None = Field(description="Further runs of B that would decide an inconclusive comparison.")


class RuleSaysOut(ApiValue):
    rule: str
    kind: RuleKind
    title: str
    why: str
    change: str = Field(description="What to do.")
    url: str = Field(description="Page of the rule in the playbook.")


class CompareOut(ApiValue):
    url: str = Field(description="Page of the comparison.")
    kind: Kind
    attributed_to: str | None = Field(description="The only field that can explain a difference; null without one.")
    winner: Literal["a", "b"] | None = Field(
        description="null if neither side is better, or if there can be no winner."
    )
    no_winner_because: list[str]
    not_measured_because: str | None
    differs: str = Field(description="The differences, in a sentence.")
    result: str = Field(description="The result, in one to three sentences.")
    rule: str = Field(description="The rule for comparing two such sides.")
    notes: list[str]
    provisional: bool = Field(description="It depends on unknown fields, listed in `unknown`.")
    directional: bool = Field(description="Too few iterations: the result shows only a direction.")
    fewest_iterations: tuple[int, int] | None = Field(
        description="Iterations of A and of B, when they are the reason for `directional`."
    )
    a: SideOut
    b: SideOut
    differences: dict[Axis, list[ContractDifferenceOut]]
    same: list[str]
    unknown: list[str] = Field(description="Fields to state; `env` stands for all variables of the environment.")
    metrics: dict[str, MetricOutcome | None]
    loss: LossOut | None
    distributions: list[DistributionOut]
    test: TestOut | None
    rules: list[RuleSaysOut] = Field(description="Results of the rules that compare b with a.")


router = api_router("compare")

Runs = Annotated[str, Query(description="Numbers of runs, separated by commas; reruns of one job count once each.")]


@router.get("/compare", responses=documented(404, 409, 422))
@requires(Action.READ)
def compare_runs(request: Request, session: ReadSession, rules: Rules, a: Runs = "", b: Runs = "") -> CompareOut:
    """Run or runs `b`, the candidate, against `a`, the baseline. 409 while one of them is not read yet."""
    selection = SideSelection.from_params({"a": a, "b": b})
    empty = [side for side in ("a", "b") if not getattr(selection, side)]
    if empty:
        errors = tuple(FieldError(side, "must name at least one run") for side in empty)
        raise InvalidQuery("A comparison has two sides: a=1,2&b=3.", errors)
    comparison = ComparedSides(session, selection)
    return _answer(comparison, pair_suggestions(session, comparison, rules), public_address(request))


def _answer(comparison: ComparedSides, suggestions: Iterable[Suggestion], base_url: str) -> CompareOut:
    sides, text = comparison.sides, comparison.text
    return CompareOut.from_values(
        sides,
        text,
        sides.comparability,
        comparison,
        url=f"{base_url}{comparison.selection.address()}",
        winner=sides.winner or None,
        no_winner_because=list(sides.no_winner) or [price for price in [sides.paid_with] if price],
        not_measured_because=sides.not_measured or None,
        fewest_iterations=sides.short if sides.directional else None,
        a=_side(comparison, comparison.a, sides.sets[0], base_url),
        b=_side(comparison, comparison.b, sides.sets[1], base_url),
        differences={
            axis: [
                ContractDifferenceOut.from_values(difference, follows=difference.follows or None)
                for difference in differences
            ]
            for axis, differences in sides.comparability.by_axis().items()
        },
        same=[value.field for value in comparison.same],
        metrics=comparison.outcomes,
        distributions=[*_distributions(comparison, "a"), *_distributions(comparison, "b")],
        test=_test(comparison),
        rules=[
            RuleSaysOut.from_values(
                suggestion,
                rule=suggestion.rule.id,
                change=suggestion.change_text,
                url=f"{base_url}/playbook/{suggestion.rule.id}",
            )
            for suggestion in suggestions
        ],
    )


def _side(comparison: ComparedSides, runs: tuple[ComparedRun, ...], inside: Within, base_url: str) -> SideOut:
    why = comparison.left_out
    return SideOut(
        runs=[
            ComparedRunOut.from_values(run, run.detail, url=f"{base_url}/runs/{run.id}", left_out=why.get(run.id))
            for run in runs
        ],
        reruns=inside.reruns,
        differ_in=list(inside.fields),
    )


def _distributions(comparison: ComparedSides, side: Side) -> list[DistributionOut]:
    distributions = []
    for run in comparison.a if side == "a" else comparison.b:
        distribution = comparison.distributions[run.id]
        if distribution is not None:
            p05, p25, p50, p75, p95 = distribution.quantiles
            distributions.append(
                DistributionOut(
                    run=run.id,
                    side=side,
                    n=distribution.n,
                    p05=p05,
                    p25=p25,
                    p50=p50,
                    p75=p75,
                    p95=p95,
                    mean=distribution.mean_ms,
                    spike_share=distribution.spike_share,
                )
            )
    return distributions


def _test(comparison: ComparedSides) -> TestOut | None:
    measured = comparison.sides.measured
    if measured is None:
        return None
    time = measured.step_time
    return TestOut(
        baseline_runs=[int(run) for run in measured.baseline_used],
        candidate_runs=[int(run) for run in measured.candidates_used],
        run_to_run_pct=None if time is None else 100 * time.run_to_run_sd,
        learned_from=measured.prior.configurations,
        smallest_callable_pct=None if time is None else time.smallest_callable_pct,
        need_runs=None if time is None else time.need_runs,
    )
