"""Pages of the playbook: HTTP in, template out."""

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from app.domain.rules.rule import CONFIDENCES, KINDS, PHASES, WALLS
from app.playbook.filters import ORDERS, ORIGINS, STANDINGS, RuleFilters, page_number
from app.playbook.list import find_rules, page_of, projects, told
from app.playbook.rule_page import RulePageOf
from app.playbook.thresholds import thresholds
from app.storage.rule_firings import waiting
from app.web.dependencies import ReadSession, Rules
from app.web.templating import render

router = APIRouter(include_in_schema=False)

OPTIONS = {
    "phases": PHASES,
    "walls": WALLS,
    "kinds": KINDS,
    "confidences": CONFIDENCES,
    "origins": ORIGINS,
    "standings": STANDINGS,
    "orders": ORDERS,
}


@router.get("/playbook")
def list_rules(request: Request, session: ReadSession, rules: Rules) -> HTMLResponse:
    filters, number = RuleFilters.from_params(request.query_params), page_number(request.query_params)
    found = find_rules(session, rules, filters)
    query = filters.query(number)
    return render(
        request,
        "playbook/list.html",
        block="rule_table",
        address=f"/playbook?{query}" if query else "/playbook",
        page=page_of(found, number),
        answer=told(found, rules),
        filters=filters,
        options=OPTIONS,
        projects=projects(session),
        left_out=rules.team.mistakes,
        files=rules.team.files_left_out,
        folder=rules.folder,
        waiting=waiting(session, rules.version),
        thresholds=thresholds(rules),
    )


@router.get("/playbook/{rule}")
def show_rule(request: Request, session: ReadSession, rules: Rules, rule: str, project: str = "") -> HTMLResponse:
    return render(request, "playbook/rule.html", p=RulePageOf(session, rules, rule, project[:300]), origins=ORIGINS)
