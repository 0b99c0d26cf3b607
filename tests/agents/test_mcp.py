"""`threewalls mcp`, used by the official client: over standard input and HTTP, with the scopes of a token."""

import asyncio
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest

from tests.client.commands import job_environment, threewalls
from tests.embedded.guarded import WORD, add_maintainer
from tests.embedded.processes import Running, wait_for
from tests.services.redis_server import free_port
from tests.training_logs import training_log
from threewalls import Client as Service

if TYPE_CHECKING:  # importing it would slow down every collection of tests
    from mcp import Client

pytestmark = pytest.mark.server
READ_ONLY = {
    "search_runs", "read_verdict", "list_regressions", "explain_regression", "suggest", "list_experiments",
}  # fmt: skip


class House:
    """A service with log-ins, a judged run in it, and one token for each scope."""

    def __init__(self, server: Running, folder: Path) -> None:
        self.url, self.folder = server.address, folder
        self.tokens = {scope: self._token(scope) for scope in ("upload", "read", "triage")}
        log = folder / "train.log"
        log.write_bytes(training_log())
        with Service(self.url, self.tokens["upload"]) as service:
            self.run = service.upload(log, meta={"gpu": "H100", "name": "for agents"}).id
            assert service.verdict(self.run, wait=300).outcome == "no_baseline"

    def _token(self, scope: str) -> str:
        words = ("create", "--name", scope, "--scope", scope, "--project", "mixtral", "--user", "lena")
        return threewalls(self.url, self.folder, "token", *words, THREEWALLS_PASSWORD=WORD).out.strip()

    def stdio(self, scope: str, *words: str) -> "Client":
        from mcp import Client, StdioServerParameters, stdio_client

        env = job_environment(self.url, self.folder, THREEWALLS_TOKEN=self.tokens[scope])
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "app.cli", "mcp", *words], env=env, cwd=Path(__file__).parents[2]
        )
        return Client(stdio_client(command))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, guarded_server: Running) -> House:
    add_maintainer(guarded_server.data, "lena", "mixtral")
    return House(guarded_server, tmp_path_factory.mktemp("agent"))


async def call(client: "Client", tool: str, **arguments: Any) -> Any:
    result: Any = await client.call_tool(tool, arguments)
    if result.is_error:
        return result.content[0].text
    return result.structured_content


def test_an_agent_reads_runs_verdicts_and_suggestions(house: House) -> None:
    async def ask() -> None:
        async with house.stdio("read") as client:
            tools = (await client.list_tools()).tools
            assert {tool.name for tool in tools} == READ_ONLY
            assert client.server_info is not None
            assert client.server_info.version == version("threewalls")
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            runs = await call(client, "search_runs", words="agents")
            assert [run["id"] for run in runs["runs"]] == [house.run]
            verdict = await call(client, "read_verdict", run=house.run)
            assert (verdict["verdict"], verdict["exit_code"]) == ("no_baseline", 4)
            assert isinstance((await call(client, "suggest", run=house.run))["suggestions"], list)
            for state in ("active", "any", "fixed"):
                assert (await call(client, "list_regressions", state=state))["total"] == 0
            assert "422" in await call(client, "list_regressions", state="investigating")
            assert "'query'" in await call(client, "search_runs", query="agents")
            assert (await call(client, "list_experiments", run=house.run))["total"] == 0
            assert "404" in await call(client, "explain_regression", regression=4711)
            assert "404" in await call(client, "read_verdict", run=4711)

    asyncio.run(ask())


def test_the_scopes_of_the_token_apply_and_writing_must_be_allowed(house: House) -> None:
    async def ask() -> None:
        async with house.stdio("upload") as client:
            assert "403" in await call(client, "search_runs")
            assert (await call(client, "read_verdict", run=house.run))["exit_code"] == 4  # its own upload
        async with house.stdio("read", "--allow-writes") as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            assert tools == {*READ_ONLY, "plan_experiment"}
            knobs = {"overlap_grad_reduce": True}
            assert "403" in await call(client, "plan_experiment", run=house.run, knobs=knobs)

    asyncio.run(ask())


def test_over_http_each_request_needs_its_own_token(house: House) -> None:
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    port = free_port()
    env = job_environment(house.url, house.folder, THREEWALLS_TOKEN=house.tokens["triage"])
    command = [sys.executable, "-m", "app.cli", "mcp", "--http", "--port", str(port)]
    address = f"http://127.0.0.1:{port}/mcp"

    async def ask(headers: dict[str, str]) -> Any:
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(address, http_client=http)) as client,
        ):
            return await call(client, "search_runs")

    def answers() -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{port}/", timeout=60).status_code == 404
        except httpx2.TransportError:
            return False

    with subprocess.Popen(command, env=env, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE) as process:
        try:
            wait_for(answers, "the HTTP server")
            results = asyncio.run(ask({"Authorization": f"Bearer {house.tokens['read']}"}))
            assert [run["id"] for run in results["runs"]] == [house.run]
            assert "401" in asyncio.run(ask({}))  # not with the token of the process
            assert "403" in asyncio.run(ask({"Authorization": f"Bearer {house.tokens['upload']}"}))
            stranger = {"Host": "evil.example.org", "Accept": "application/json"}
            assert httpx2.post(address, json={}, headers=stranger, timeout=60).status_code == 421
        finally:
            process.terminate()
            process.communicate(timeout=60)
    assert os.environ.get("THREEWALLS_TOKEN") is None
