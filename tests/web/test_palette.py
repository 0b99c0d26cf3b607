"""`/search`: where words and numbers lead, for the palette and without script."""

import html
import re

from sqlalchemy import Engine
from starlette.testclient import TestClient

from app.storage.database import transaction
from tests.builders import make_run
from tests.judged import judge, make_baseline, make_stack_run

HTMX = {"HX-Request": "true"}
ATTACK = "<script>alert(1)</script>"


def hits(client: TestClient, text: str) -> dict[str, list[str]]:
    """Return the addresses by group."""
    answer = client.get("/search", params={"q": text}, headers=HTMX)
    assert answer.status_code == 200
    groups = re.split(r'<p class="hit-label"[^>]*>([^<]+)</p>', answer.text)[1:]
    return {label: re.findall(r'href="([^"]+)"', part) for label, part in zip(groups[::2], groups[1::2], strict=True)}


def test_words_lead_to_everything_and_numbers_to_the_run(client: TestClient, engine: Engine) -> None:
    with transaction(engine) as session:
        stack = make_baseline(session, 4, project="nightlies")
        slow = make_stack_run(session, 9, project="nightlies", name="nightly slow", slower=0.1)
        judge(session, slow, stack)
        commit = "0badcafe" * 5
        other = make_run(session, project="nightlies", name=ATTACK, commit=commit)
    sections = hits(client, "nightly slow")
    assert sections["Runs"] == [f"/runs/{slow}"]
    assert len(sections["Stacks"]) == 1
    assert client.get(sections["Stacks"][0]).status_code == 200
    shown = client.get("/search", params={"q": "nightly slow"}, headers=HTMX).text
    assert sections["Stacks"][0].removeprefix("/history/")[:8] not in re.sub(r'href="[^"]+"', "", shown)
    sections = hits(client, "nightlies")
    assert sections["Settings"] == ["/settings/projects/nightlies"]
    assert len(sections["Runs"]) == 6
    assert sections["Runs"][-1] == "/runs?q=nightlies"
    assert hits(client, "0badcafe")["Commits"] == [f"/runs?q={commit}"]
    assert hits(client, "planner")["Pages"] == ["/plan"]
    (rule, *_) = hits(client, "hybridep")["Rules"]
    assert client.get(rule).status_code == 200
    assert f"/runs/{other}" in hits(client, "alert(1)")["Runs"]
    assert ATTACK not in client.get("/search", params={"q": "alert(1)"}).text

    assert hits(client, f"#{slow}")["Number"][0] == f"/runs/{slow}"
    jump = client.get("/search", params={"q": f"#{slow}"}, follow_redirects=False)
    assert (jump.status_code, jump.headers["location"]) == (303, f"/runs/{slow}")
    assert client.get("/search?q=%23999999999").status_code == 200
    assert hits(client, "no such thing at all") == {}
    published, plan = hits(client, "deepseek h100")["Leaderboards and figures"]
    for address in (published, plan):
        assert client.get(html.unescape(address)).status_code == 200
    assert "Leaderboards and figures" not in hits(client, "16")
    assert hits(client, "")["Newest runs"][0] == f"/runs/{other}"
    assert client.get("/search", params={"q": "x" * 300}).status_code == 422
