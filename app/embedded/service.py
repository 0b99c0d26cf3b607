"""`threewalls serve`: lock the data folder, migrate, keep a worker alive and answer HTTP until stopped."""

import asyncio
import errno
import fcntl
import gc
import multiprocessing
import os
import resource
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog
import uvicorn
from celery.platforms import set_pdeathsig
from h11 import IDLE, SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol

from app import queue, wakes
from app.embedded.start_up import StartUp
from app.embedded.worker import Worker
from app.errors import Conflict, Unavailable
from app.pipeline.work import delivery_queue, profile_queue, run_queue, stack_queue
from app.settings import Settings, listed
from app.storage.database import make_engine, migrate, read_session, require_migrated, transaction
from app.storage.users import has_administrator
from app.storage.visible import EVERY_PROJECT, seeing
from app.storage.worker_activity import beat
from app.web.identity import is_loopback

# --- Idle connections are closed, because uvicorn waits for their requests without limit.
#
# Its `limit_concurrency` is not used, because it would refuse health checks as well.

_MOST_FILES = 16_384
"""Open files, and so connections, that also fit into the memory of small machines."""


def protocol(seconds: float) -> type[H11Protocol]:
    """Return a protocol that closes slow connections.

    `seconds`: limit for the head of a request, and for the rest of a body after its answer.
    """

    class ImpatientProtocol(H11Protocol):
        _end: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._cancel()

        def _watch(self) -> None:
            """Keep one timer for the whole wait, so that a slow trickle of bytes does not extend it."""
            state = self.conn.their_state
            answered = self.cycle is not None and self.cycle.response_complete
            if state is not IDLE and not (state is SEND_BODY and answered):
                self._cancel()
            elif self._end is None:
                self._end = self.loop.call_later(seconds, self.transport.close)

        def _cancel(self) -> None:
            if self._end is not None:
                self._end.cancel()
                self._end = None

    return ImpatientProtocol


def raise_file_limit() -> None:
    """Raise the limit of open files, and so of connections: a single client can hold the default of 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


# --- A data folder belongs to one service: SQLite and message files have one owner, which voids leases at its start.
#
# It is private to the owner's account, because it contains logs of private projects and secrets.

log = structlog.get_logger(__name__)


_OTHERS = 0o007


class FolderInUse(Conflict):
    title = "The data folder is in use"


def keep_private(folder: Path) -> None:
    """Create the folder, or make it private if all accounts of the machine can enter it. Access of a group stays.

    Logs a warning if that fails, or for shared folders such as /tmp.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mode = folder.stat().st_mode
    if not mode & _OTHERS:
        return
    if not mode & stat.S_ISVTX:  # such as /tmp
        try:
            folder.chmod(0o700)
        except OSError:
            pass
        else:
            log.info("data_folder_closed", folder=str(folder), mode="0700", was=f"{stat.S_IMODE(mode):04o}")
            return
    log.warning("data_folder_is_open", folder=str(folder), hint="other users of this machine can read it: chmod 0700")


@contextmanager
def own(folder: Path) -> Iterator[Callable[[str], None]]:
    """Lock `folder` until the block ends. The kernel releases the lock when the process is killed.

    Yields a function that records the owner. Raises FolderInUse with the record of another owner.
    """
    keep_private(folder)
    with (folder / "serve.lock").open("a+", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            other = lock.read().strip() or "another process"
            raise FolderInUse(
                f"Threewalls already runs on {folder}: {other}. Stop it, or choose another folder with --data."
            ) from None

        def record(owner: str) -> None:
            lock.truncate(0)
            lock.write(owner)
            lock.flush()

        yield record


GRACE_SECONDS = 2
"""Open requests may finish within this time when the server stops."""

SeedAt = Callable[[str, threading.Event], None]
"""Called with the server's address and an event that is set when it stops."""


class NoAdministrator(Unavailable):
    title = "No administrator exists"


class NoPublicAddress(Unavailable):
    title = "The public address is unknown"


class NotScaled(Unavailable):
    title = "The embedded service has one web process"


def serve(
    settings: Settings, host: str, port: int, start: StartUp, seed: SeedAt | None = None, *, web_processes: int = 1
) -> None:
    """Run until SIGINT or SIGTERM. Port 0 selects a free one. `seed` runs in a thread once the server answers.

    With a broker in the settings, this is the web server only: workers and migrations run elsewhere. `web_processes`
    then answer on one port, this process among them. Raises Unavailable if the port is taken or the database has an
    earlier version, FolderInUse if another service owns the data folder, NoAdministrator, NoPublicAddress, NotScaled.
    """
    with _interrupted_quietly(), ExitStack() as stack:
        stack.callback(start.done)
        if web_processes > 1 and settings.embedded:
            raise NotScaled(
                "--web-processes needs the scaled mode: set THREEWALLS_BROKER_URL and THREEWALLS_DATABASE_URL "
                "(docs/deploy.md), or leave the option out."
            )
        raise_file_limit()
        if not is_loopback(host) and not settings.public_url:
            raise NoPublicAddress(
                f"{host} can be reached from other machines, but THREEWALLS_PUBLIC_URL is not set. Links and the "
                "log-in cookie depend on it. Set it to the address that users open, for example "
                "https://threewalls.example.org, and start again."
            )
        if settings.embedded:
            start.step("opening the data folder")
            record_owner = stack.enter_context(own(settings.data_dir.resolve()))
        listener = stack.enter_context(_listen(host, port))
        address = _address(host, listener.getsockname()[1])
        if settings.embedded:
            record_owner(f"process {os.getpid()} at {address}")
            start.step("checking and migrating the database")
            migrate(settings)
        else:
            require_migrated(settings)
        open_to = _open_to(settings, host)
        # Imported after all checks, because these imports are most of the start-up time.
        start.step("loading the pages and the API")
        server = _Server(settings, open_to, address, stack.enter_context(_beside(seed, address)), start)
        start.step("starting the worker and the web server")
        if settings.embedded:
            stack.enter_context(_worker(settings, stack.enter_context(wakes.opened())))
        stack.enter_context(_more_processes(settings, listener, open_to, web_processes - 1))
        with _on_signal(server.stop):  # uvicorn adds its own handlers, which raise the signal again at the end
            server.run(sockets=[listener])


def _config(settings: Settings, open_to: tuple[str, ...] | None) -> uvicorn.Config:
    from app.main import create_app  # noqa: PLC0415  as in `serve`

    return uvicorn.Config(
        create_app(settings, open_to=open_to),
        log_config=None,
        access_log=False,
        http=protocol(settings.request_seconds),
        ws="none",
        # Only listed proxies may state the client's address.
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(listed(settings.trusted_proxies)),
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


@contextmanager
def _more_processes(
    settings: Settings, listener: socket.socket, open_to: tuple[str, ...] | None, count: int
) -> Iterator[None]:
    """Keep `count` more processes alive that accept connections from the same socket, until the block ends."""
    context = multiprocessing.get_context("spawn")  # a fork would share connections, locks and threads
    stopping = threading.Event()
    processes: list[multiprocessing.process.BaseProcess] = []

    def keep_alive() -> None:
        while True:
            running = [process for process in processes if process.is_alive()]
            if processes and len(running) < count:
                log.error("web_process_died", restarted=count - len(running))
            processes[:] = running
            while len(processes) < count and not stopping.is_set():
                process = context.Process(target=_web_process, args=(settings, listener, open_to), daemon=True)
                process.start()
                processes.append(process)
            if stopping.wait(_WATCH_SECONDS):
                return

    if not count:
        yield
        return
    watch = threading.Thread(target=keep_alive, name="web-processes", daemon=True)
    watch.start()
    try:
        yield
    finally:
        stopping.set()
        watch.join()
        for process in processes:
            process.terminate()
        for process in processes:
            process.join(GRACE_SECONDS + 3)
            process.kill()


_WATCH_SECONDS = 1.0


def _web_process(settings: Settings, listener: socket.socket, open_to: tuple[str, ...] | None) -> None:
    """Answer requests until SIGTERM, or until the first web process is gone."""
    set_pdeathsig("SIGTERM")
    uvicorn.Server(_config(settings, open_to)).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Prints its address once it answers, and then calls `start_beside`."""

    def __init__(
        self,
        settings: Settings,
        open_to: tuple[str, ...] | None,
        address: str,
        start_beside: Callable[[], None],
        start: StartUp,
    ) -> None:
        super().__init__(_config(settings, open_to))
        self._greeting = f"Threewalls is ready: {address}   (data in {settings.data_dir.resolve()}; Ctrl-C stops it)"
        self._start_beside, self._start = start_beside, start

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        gc.freeze()  # objects that were loaded so far stay
        gc.enable()
        self._start.done()
        print(self._greeting, flush=True)
        self._start_beside()


@contextmanager
def _interrupted_quietly() -> Iterator[None]:
    """End the block without a traceback on SIGINT and SIGTERM, also while it starts or stops."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    try:
        with _on_signal(interrupt):
            yield
    except KeyboardInterrupt:
        pass
    print("Threewalls has stopped.", flush=True)


@contextmanager
def _on_signal(act: Callable[[], None]) -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: act()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _beside(seed: SeedAt | None, address: str) -> Iterator[Callable[[], None]]:
    stopping = threading.Event()

    def start() -> None:
        if seed is not None:
            threading.Thread(target=seed, args=(address, stopping), name="seed", daemon=True).start()

    try:
        yield start
    finally:
        stopping.set()


def _worker(settings: Settings, pipes: wakes.Pipes) -> Worker:
    engine = make_engine(settings)
    with seeing(EVERY_PROJECT):
        beat(engine)  # so that /readyz does not report the starting worker as missing

    def prepare() -> None:
        with seeing(EVERY_PROJECT), transaction(engine) as session:
            run_queue.void_leases(session)
            profile_queue.void_leases(session)
            stack_queue.void_leases(session)
            delivery_queue.void_leases(session)

    return Worker(prepare, lambda: queue.enqueue(queue.SWEEP), settings.sweep_seconds, pipes)


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=2048
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"Port {port} on {host} is in use. Stop the other program, or choose another port with --port."
            ) from None
        raise Unavailable(f"Cannot listen on {host}, port {port}: {error.strerror or error}.") from None
    # asyncio does this only for sockets with a protocol number, which create_server does not set. Without it, every
    # answer waits 40 ms for an acknowledgement.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _open_to(settings: Settings, host: str) -> tuple[str, ...] | None:
    """Return `open_to` of `create_app`: () for the embedded mode on a loopback address, else None.

    Raises NoAdministrator if other machines could reach an embedded service that has none.
    """
    if settings.embedded and is_loopback(host):
        return ()
    engine = make_engine(settings)
    try:
        with seeing(EVERY_PROJECT), read_session(engine) as session:
            if not has_administrator(session):
                make_one = f"threewalls admin create NAME --data {settings.data_dir.resolve()}"
                if settings.embedded:
                    raise NoAdministrator(
                        f"{host} can be reached from other machines, but the service has no administrator. Create "
                        f"one, then start again: {make_one}"
                    )
                log.warning("no_administrator", hint="required before the first log-in: threewalls admin create NAME")
    finally:
        engine.dispose()
    return None


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
