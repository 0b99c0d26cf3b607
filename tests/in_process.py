"""Requests of Starlette's test client without its threads: 0.3 ms of the processor each, not 2 ms."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import anyio.to_thread
import httpx2
import starlette.testclient
import uvicorn
from anyio.from_thread import start_blocking_portal
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message

_Transport = starlette.testclient._TestClientTransport

PORTS = {"http": 80, "https": 443}


class InProcess(_Transport):
    """Answers a request on the event loop of the test's own thread.

    Starlette's transport passes eight messages to the thread of a loop and waits for each. It is still used for
    requests from other threads, from within a loop (Playwright's), and from clients with their own lifespan.
    """

    loop: asyncio.AbstractEventLoop
    thread: int

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        client = self.portal_factory.__self__  # type: ignore[attr-defined]
        is_here = threading.get_ident() == self.thread and asyncio._get_running_loop() is None
        if not is_here or client.portal is not TestClient.portal:
            return super().handle_request(request)
        url = request.url
        scope: dict[str, Any] = {
            "type": "http", "http_version": "1.1", "method": request.method, "scheme": url.scheme,
            "path": unquote(url.path), "raw_path": url.raw_path.partition(b"?")[0], "root_path": self.root_path,
            "query_string": url.query, "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "client": self.client, "server": [url.raw_host.decode(), url.port or PORTS[url.scheme]],
            "state": self.app_state.copy(), "extensions": {},
        }  # fmt: skip
        answer: dict[str, Any] = {}
        body, parts = request.read(), []
        is_read, is_answered = False, asyncio.Event()

        async def receive() -> Message:
            nonlocal is_read
            if is_read:
                await is_answered.wait()
                return {"type": "http.disconnect"}
            is_read = True
            return {"type": "http.request", "body": body}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                assert not answer, "a second answer begins"
                answer.update(status_code=message["status"], headers=list(message.get("headers", [])))
            else:
                assert answer, "the answer has not begun"
                assert not is_answered.is_set(), "the answer has ended"
                parts.append(bytes(message.get("body", b"")))
                if not message.get("more_body"):
                    is_answered.set()

        async def serve() -> None:
            await self.app(scope, receive, send)

        task = self.loop.create_task(serve())
        task.add_done_callback(lambda _: self.loop.stop())
        self.loop.run_forever()
        if (error := task.exception()) and self.raise_server_exceptions:
            raise error
        if not answer:
            assert not self.raise_server_exceptions, "no answer"
            answer["status_code"] = 500
        content = b"" if request.method == "HEAD" else b"".join(parts)
        return httpx2.Response(**answer, stream=httpx2.ByteStream(content), request=request)


@contextmanager
def answering_in_process() -> Iterator[None]:
    """Until the block ends, test clients of this thread share an event loop, all others the thread of another."""
    loop = asyncio.new_event_loop()

    async def keep_threads() -> None:
        await anyio.to_thread.run_sync(int)  # threads of handlers end with the task that requested the first one
        await asyncio.Event().wait()

    keeper = loop.create_task(keep_threads())
    InProcess.loop, InProcess.thread = loop, threading.get_ident()
    with start_blocking_portal() as portal:
        TestClient.portal = portal
        starlette.testclient._TestClientTransport = InProcess  # type: ignore[misc]
        yield
        starlette.testclient._TestClientTransport = _Transport  # type: ignore[misc]
        TestClient.portal = None
    keeper.cancel()
    loop.run_until_complete(asyncio.wait([keeper]))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Serve an application without a worker, from a thread of this process."""
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
