"""`/api/v1/compare`: the page's comparison as JSON."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.compare.api_models import (
    ComparedRunOut,
    CompareOut,
    DifferenceOut,
    DistributionOut,
    LossOut,
    MetricOut,
    SideOut,
    TestOut,
    ValueOut,
)
from app.compare.comparison import Comparison
from app.compare.queries import ComparedRun
from app.compare.selection import Selection, Side
from app.domain.comparison import Within
from app.domain.comparison.winner import paid_with
from app.domain.matching import Axis, Difference
from app.domain.run import Stated
from app.errors import FieldError, InvalidQuery
from app.web.dependencies import ReadSession
from app.web.problems import documented
from app.web.templating import public_address

router = APIRouter(prefix="/api/v1", tags=["compare"])

Runs = Annotated[str, Query(description="Numbers of runs, separated by commas; reruns of one job count once each.")]


@router.get("/compare", responses=documented(404, 409, 422))
def compare_runs(request: Request, session: ReadSession, a: Runs = "", b: Runs = "") -> CompareOut:
    """Run or runs `b`, the candidate, against `a`, the baseline. 409 while one of them is not read yet."""
    selection = Selection.from_params({"a": a, "b": b})
    empty = [side for side in ("a", "b") if not getattr(selection, side)]
    if empty:
        errors = tuple(FieldError(side, "must name at least one run") for side in empty)
        raise InvalidQuery("A comparison has two sides: a=1,2&b=3.", errors)
    return _answer(Comparison(session, selection), public_address(request))


def _answer(comparison: Comparison, base_url: str) -> CompareOut:
    sides, told = comparison.sides, comparison.told
    return CompareOut(
        url=f"{base_url}{comparison.selection.address()}",
        kind=sides.kind,
        attributed_to=sides.attributed_to,
        winner=sides.winner or None,
        no_winner_because=list(sides.no_winner) or [price for price in [paid_with(sides.measured)] if price],
        not_measured_because=sides.not_measured or None,
        differs=told.differs,
        result=told.result,
        rule=told.rule,
        notes=list(told.notes),
        provisional=sides.comparability.provisional,
        directional=sides.directional,
        fewest_iterations=sides.short if sides.directional else None,
        a=_side(comparison, comparison.a, sides.sets[0], base_url),
        b=_side(comparison, comparison.b, sides.sets[1], base_url),
        differences=_differences(sides.comparability.by_axis()),
        same=[one.field for one in comparison.same],
        unknown=list(sides.comparability.unknown),
        metrics={
            name: None if found is None else MetricOut.model_validate(found)
            for name, found in comparison.outcomes.items()
        },
        loss=None if comparison.loss is None else LossOut.model_validate(comparison.loss),
        distributions=[*_distributions(comparison, "a"), *_distributions(comparison, "b")],
        test=_test(comparison),
    )


def _side(comparison: Comparison, runs: tuple[ComparedRun, ...], inside: Within, base_url: str) -> SideOut:
    why = comparison.left_out
    return SideOut(
        runs=[
            ComparedRunOut(
                id=run.id,
                name=run.detail.name,
                url=f"{base_url}/runs/{run.id}",
                commit=run.detail.commit,
                left_out=why.get(run.id),
            )
            for run in runs
        ],
        reruns=inside.reruns,
        differ_in=list(inside.fields),
    )


def _differences(found: Mapping[Axis, tuple[Difference, ...]]) -> dict[Axis, list[DifferenceOut]]:
    return {
        axis: [
            DifferenceOut(field=one.field, role=one.role, follows=one.follows or None, a=_value(one.a), b=_value(one.b))
            for one in differences
        ]
        for axis, differences in found.items()
    }


def _value(stated: Stated | None) -> ValueOut | None:
    return None if stated is None else ValueOut.model_validate(stated)


def _distributions(comparison: Comparison, side: Side) -> list[DistributionOut]:
    found = []
    for run in comparison.a if side == "a" else comparison.b:
        one = comparison.distributions[run.id]
        if one is not None:
            p05, p25, p50, p75, p95 = one.quantiles
            found.append(
                DistributionOut(
                    run=run.id,
                    side=side,
                    n=one.n,
                    p05=p05,
                    p25=p25,
                    p50=p50,
                    p75=p75,
                    p95=p95,
                    mean=one.mean_ms,
                    spike_share=one.spike_share,
                )
            )
    return found


def _test(comparison: Comparison) -> TestOut | None:
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
