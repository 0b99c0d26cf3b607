"""Every page route with an address on the data of the demo, and the routes that are no pages.

A new route belongs into one of the two, which `test_every_page_route_is_looked_at` requires.
"""

from collections.abc import Mapping

PAGES: Mapping[str, tuple[str, ...]] = {
    "/": ("/", "/?project=demo"),
    "/runs": ("/runs", "/runs?project=demo&dispatcher=hybridep&gpu=H100"),
    "/runs/{run_id}": (
        "/runs/{slow}",
        "/runs/{good}",
        "/runs/{failed}",
        *(f"/runs/{{slow}}?tab={tab}" for tab in ("iterations", "config", "log", "record")),
    ),
    "/runs/{run_id}/report": ("/runs/{slow}/report",),
    "/runs/{run_id}/correct": ("/runs/{slow}/correct",),
    "/runs/{run_id}/profiles": ("/runs/{profiled}/profiles",),
    "/runs/{run_id}/profiles/{profile_id}": ("/runs/{profiled}/profiles/{profile}",),
    "/runs/{run_id}/next": ("/runs/{slow}/next", "/runs/{good}/next", "/runs/{failed}/next", "/runs/{oom}/next"),
    "/runs/{run_id}/next/{rule}": (
        "/runs/{slow}/next/val-regression-cause",
        "/runs/{good}/next/eo-delay-wgrad",
        "/runs/{good}/next/profile-required",
        "/runs/{oom}/next/fit-go-back",
    ),
    "/runs/{run_id}/experiments/new": ("/runs/{slow}/experiments/new",),
    "/runs/{run_id}/sweeps/new": ("/runs/{slow}/sweeps/new",),
    "/runs/{run_id}/journey": ("/runs/{profiled}/journey",),
    "/upload": ("/upload",),
    "/check": ("/check",),
    "/search": ("/search?q=deepep",),
    "/compare": ("/compare", "/compare?a={good}&b={slow}"),
    "/compare/profiles": ("/compare/profiles?a={profile}&b={other_profile}",),
    "/experiments": ("/experiments",),
    "/experiments/new": ("/experiments/new",),
    "/experiments/{experiment_id}": ("/experiments/2",),
    "/playbook": ("/playbook",),
    "/playbook/{rule}": ("/playbook/disp-alltoall-first", "/playbook/eo-delay-wgrad", "/playbook/vlm-simple-first"),
    "/plan": ("/plan",),
    "/history": ("/history",),
    "/history/{stack}": ("/history/{stack}",),
    "/regressions": ("/regressions",),
    "/regressions/{regression_id}": ("/regressions/2",),
    "/upgrade": ("/upgrade",),
    "/leaderboards": ("/leaderboards",),
    "/leaderboards/{hardware}/{family}": (
        "/leaderboards/h100/qwen3-30b-a3b",
        "/leaderboards/gb200/qwen3-30b-a3b",
        "/leaderboards/h100/qwen3-235b-a22b",
        "/leaderboards/gb200/qwen3-235b-a22b",
    ),
    "/leaderboards/{hardware}/{family}/matrix": ("/leaderboards/gb200/qwen3-235b-a22b/matrix",),
    "/leaderboards/{hardware}/{family}/graphs": ("/leaderboards/h100/qwen3-30b-a3b/graphs",),
    "/availability": ("/availability",),
    "/scaling": ("/scaling",),
    "/references": ("/references",),
    "/references/new": ("/references/new",),
    "/references/nearest": ("/references/nearest?run={good}",),
    "/references/{reference_id}": ("/references/deepseek-v3-1024xh100-6623e072",),
    "/watching": ("/watching",),
    "/glossary": ("/glossary",),
    "/help": ("/help",),
    "/help/{name}": ("/help/engineer",),
    "/docs": ("/docs",),
    "/docs/{part}": ("/docs/compare",),
    "/settings/projects": ("/settings/projects",),
    "/settings/projects/{slug}": ("/settings/projects/demo",),
    **{
        f"/settings/projects/{{slug}}/{name}": (f"/settings/projects/demo/{name}",)
        for name in ("quota", "storage", "delete", "members", "tokens", "invitations", "share-links", "notifications")
    },
    "/settings/groups": ("/settings/groups",),
    "/settings/users": ("/settings/users",),
    "/settings/users/import": ("/settings/users/import",),
    "/settings/usage": ("/settings/usage",),
    "/settings/audit": ("/settings/audit",),
    "/settings/definitions": ("/settings/definitions",),
    "/login": ("/login",),
}

ROWS: Mapping[str, str] = {
    "/runs": "the reader came for the rows: 20 of 32 px are on the first screen",
    "/runs?project=demo&dispatcher=hybridep&gpu=H100": "the rows of the list, as above",
    "/runs/{slow}?tab=iterations": "the series as a table, for who looks up an iteration",
    "/regressions": "the work list: one row for each regression",
    "/history": "one row for each workload, with its trend and state",
    "/settings/audit": "one line for each change, as in a log",
    "/experiments/new": "runs to choose one of",
    "/experiments": "one row for each experiment, with its state and result",
    "/compare/profiles?a={profile}&b={other_profile}": "the classes of kernels of both profiles, row by row",
}
"""Pages whose tables are their content: the words in their rows do not count, all others do."""

RECORDS: Mapping[str, str] = {
    "/runs/{slow}?tab=record": "facts and decisions that the run page keeps out of its first screen, behind a tab",
}
"""Addresses without a limit of words."""

ELSEWHERE: Mapping[str, str] = {
    "/settings/projects/{slug}/notifications/{receiver_id}": "test_every_page, which makes a receiver",
    "/experiments/{experiment_id}/sweep": "test_experiments, which plans a sweep",
    "/settings/account": "test_members, after a log-in",
    "/account/password": "test_members, after a log-in",
    "/account/confirm": "a link of an e-mail: the form of /account/password",
    "/account/second-factor": "one field, after a log-in by password",
    "/invite/{secret}": "one button, by a link that only its receiver has",
    "/s/{secret}": "shows the page that it shares",
}
"""Pages that the demo has not, with the test that opens them, or why none does."""

NO_PAGES = frozenset(
    (
        *("/openapi.json", "/healthz", "/readyz", "/metrics", "/llms.txt", "/favicon.ico", "/assets/htmx.js"),
        *("/login/oidc", "/login/oidc/callback", "/logout/oidc", "/api", "/settings", "/tuning"),  # redirects
        *("/client/threewalls.pyz", "/client/threewalls.pyz.sha256", "/help/files/{name}", "/runs.parquet"),
        *("/regressions.atom", "/watching.atom"),
        *(f"/badges/{{stack}}/{name}.svg" for name in ("verdict", "step-time", "history")),
        # Pictures, and parts of a page that it loads.
        *(f"/runs/{{run_id}}/{part}" for part in ("spark", "chart", "tab", "log", "timers", "news", "profiled")),
        *(f"/runs/{{run_id}}/profiles/{{profile_id}}/{part}" for part in ("news", "walls.{kind}", "picture.{kind}")),
        *("/runs/{run_id}/journey/news", "/runs/{run_id}/journey/picture.{kind}", "/experiments/{experiment_id}/news"),
        *(f"/history/{{stack}}/{part}" for part in ("chart", "data", "runs", "picture.{kind}", "profiled")),
        *(f"/compare/{part}" for part in ("profiled", "distributions", "series", "picture.{kind}")),
        *("/regressions/{regression_id}/chart", "/regressions/{regression_id}/picture.{kind}"),
        *(f"/leaderboards/{{hardware}}/{{family}}/{part}" for part in ("gains", "leaders", "picture.{kind}")),
        *("/plan/chart", "/plan/model"),
        *("/upgrade/chart", "/upgrade/picture.{kind}", "/scaling/chart", "/overview/trend", "/overview/loading"),
    )
)
