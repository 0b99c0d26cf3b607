"""`GET /api/v1/upgrade`: the upgrade report as JSON."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse

from app.domain.access.principal import Action
from app.domain.report.values import comparability_json, difference_json, storable
from app.domain.verdict.upgrade import NearPair, Pair
from app.upgrade.pages import UpgradePage, UpgradeQuery, upgrade_page
from app.upgrade.queries import MeasuredUpgrade
from app.upgrade.views import titles_of
from app.web.access_rule import requires
from app.web.dependencies import ReadSession
from app.web.errors import documented

router = APIRouter(prefix="/api/v1", tags=["regressions"])

SCHEMA = "threewalls.upgrade/1"


@router.get("/upgrade", response_class=JSONResponse, responses=documented(404, 422))
@requires(Action.READ)
def read_upgrade(
    session: ReadSession,
    project: Annotated[str, Query(max_length=100, description="Optional when there is only one project.")] = "",
    field: Annotated[str, Query(max_length=50, description="container, cluster, driver or a version.")] = "container",
    from_: Annotated[str, Query(alias="from", max_length=500, description="The old value.")] = "",
    to: Annotated[str, Query(max_length=500, description="The new value.")] = "",
) -> JSONResponse:
    """Compare one value of a field with another over all stacks.

    Without both, `values` and `offers` list the choices.
    """
    params = {"project": project, "field": field, "from": from_, "to": to}
    page = upgrade_page(session, UpgradeQuery.from_params(params))
    return JSONResponse(storable(_document(page)))


def _document(page: UpgradePage) -> dict[str, Any]:
    query = page.query
    return {
        "schema": SCHEMA,
        "project": query.project,
        "field": query.field,
        "from": query.old or None,
        "to": query.new or None,
        "summary": page.answer,
        **(_measured(page.measured) if page.measured else {"stacks": []}),
        "values": [
            {
                "value": value.value,
                "runs": value.runs,
                "since": value.since and value.since.isoformat(),
                "newest_run": value.newest_run,
            }
            for value in page.values
        ],
        "offers": [{"from": offer.old, "to": offer.new, "stacks": offer.stacks} for offer in page.offers],
    }


def _measured(measured: MeasuredUpgrade) -> dict[str, Any]:
    report = measured.report
    titles = titles_of([pair.new for pair in report.pairs], report.field)
    return {
        "gpu_hours_per_day": measured.gpu_hours_per_day,
        "stacks": [_pair(pair, title, measured) for pair, title in zip(report.pairs, titles, strict=True)],
        "differ_in_more": [_near(run) for run in report.near],
        "only_from": [{"run": run.run, "stack_key": run.stack_key} for run in report.only_old],
        "only_to": [{"run": run.run, "stack_key": run.stack_key} for run in report.only_new],
        "regressions": measured.regressions,
    }


def _pair(pair: Pair, title: str, measured: MeasuredUpgrade) -> dict[str, Any]:
    verdict = pair.measured
    return {
        "title": title,
        "stack_key": pair.new.stack_key,
        "from_stack_key": pair.old.stack_key,
        "decision": pair.word,
        "step_time": verdict.step_time,
        "memory": verdict.memory,
        "from_runs": verdict.baseline_used,
        "to_runs": verdict.candidates_used,
        "gpu_hours_per_day": measured.costs.get(pair.new.run),
        "shares_commits": pair.shares_commits,
        "comparability": comparability_json(pair.comparability),
    }


def _near(near: NearPair) -> dict[str, Any]:
    return {
        "from_run": near.old.run,
        "to_run": near.new.run,
        "differences": [difference_json(difference) for difference in near.differences],
    }
