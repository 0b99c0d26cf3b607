"""Wake-ups between web servers and workers.

In the embedded mode, two pipes that the web server creates and the worker inherits: one signals that a message was
queued, the other which run was processed. In the scaled mode, Celery wakes the workers, and Redis carries the processed
runs. The rows are the record, and both sides also look at them from time to time: a lost wake-up only causes a delay,
and a superfluous one has no effect.
"""

import array
import asyncio
import os
import select
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import anyio
import structlog

from app.settings import get_settings

if TYPE_CHECKING:  # importing it takes 0.1 s, and the embedded mode does not need it
    from redis import Redis

log = structlog.get_logger(__name__)

VARIABLE = "THREEWALLS_WAKE_PIPES"
"""Environment variable of the worker process: the file descriptors."""

_EVERY_RUN = 0
_READ_BYTES = 1 << 16
_CHANNEL = "threewalls-processed"
_REDIS = ("redis://", "rediss://")
_TIMEOUT_SECONDS = 1


@dataclass(frozen=True, slots=True)
class Pipes:
    queued_reader: int
    queued_writer: int
    processed_reader: int
    processed_writer: int

    @property
    def descriptors(self) -> tuple[int, ...]:
        return self.queued_reader, self.queued_writer, self.processed_reader, self.processed_writer

    @property
    def environment(self) -> dict[str, str]:
        return {VARIABLE: " ".join(map(str, self.descriptors))}


def _inherited() -> Pipes | None:
    descriptors = os.environ.get(VARIABLE, "").split()
    return Pipes(*map(int, descriptors)) if descriptors else None


_pipes: list[Pipes | None] = [_inherited()]


@contextmanager
def opened() -> Iterator[Pipes]:
    """Create the pipes for this process and the workers that it starts in the block."""
    pipes = Pipes(*os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC), *os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC))
    _pipes[0] = pipes
    try:
        yield pipes
    finally:
        _pipes[0] = None
        for descriptor in pipes.descriptors:
            os.close(descriptor)


def exist() -> bool:
    """Return whether this process has pipes, so that it may look for messages less often."""
    return _pipes[0] is not None


def queued() -> None:
    """Wake the worker: a message was queued, or it may take the next one."""
    if (pipes := _pipes[0]) is not None:
        _write(pipes.queued_writer, b".")


def wait_for_queued(seconds: float) -> None:
    """Wait for a call of `queued` since the last call of this function, or for `seconds`."""
    pipes = _pipes[0]
    assert pipes is not None  # noqa: S101  # callers ask `exist` first
    select.select([pipes.queued_reader], [], [], seconds)
    with suppress(BlockingIOError):
        os.read(pipes.queued_reader, _READ_BYTES)


def processed(run_id: int = _EVERY_RUN) -> None:
    """Wake the requests that wait for this run; without a number, all that wait for a run."""
    if (pipes := _pipes[0]) is not None:
        _write(pipes.processed_writer, array.array("q", [run_id]).tobytes())
    elif (address := get_settings().broker_url).startswith(_REDIS):
        from redis import RedisError  # noqa: PLC0415

        with suppress(RedisError):
            _client(address).publish(_CHANNEL, run_id)


@lru_cache(maxsize=1)
def _client(address: str) -> "Redis":
    from redis import Redis  # noqa: PLC0415

    return Redis.from_url(address, socket_connect_timeout=_TIMEOUT_SECONDS, socket_timeout=_TIMEOUT_SECONDS, retry=None)


def _write(descriptor: int, payload: bytes) -> None:
    # A full pipe wakes its reader as well. A broken one belongs to a service that stops.
    with suppress(BlockingIOError, BrokenPipeError):
        os.write(descriptor, payload)


class Waiting:
    """A request that waits for a run. Create it before the row is read, so that no wake-up falls in between."""

    _of_run: ClassVar[defaultdict[int, set["Waiting"]]] = defaultdict(set)
    _listening: ClassVar[asyncio.AbstractEventLoop | None] = None
    _subscription: ClassVar[asyncio.Task[None] | None] = None
    is_woken: ClassVar[bool] = False
    """Whether wake-ups reach this process, so that requests may read the row less often."""

    def __init__(self, run_id: int) -> None:
        self._run_id = run_id
        self._woken = anyio.Event()

    def __enter__(self) -> "Waiting":
        self._of_run[self._run_id].add(self)
        if Waiting._listening is not asyncio.get_running_loop():
            self._listen(asyncio.get_running_loop())
        return self

    def __exit__(self, *_: object) -> None:
        self._of_run[self._run_id].discard(self)
        if not self._of_run[self._run_id]:
            del self._of_run[self._run_id]

    async def wait(self, seconds: float) -> None:
        """Wait until a worker processed the run, or for `seconds`."""
        with anyio.move_on_after(seconds):
            await self._woken.wait()
            self._woken = anyio.Event()

    @classmethod
    def _listen(cls, loop: asyncio.AbstractEventLoop) -> None:
        Waiting._listening, address = loop, get_settings().broker_url
        Waiting.is_woken = (pipes := _pipes[0]) is not None
        if pipes is not None:
            loop.add_reader(pipes.processed_reader, cls._read, pipes.processed_reader)
        elif address.startswith(_REDIS):
            Waiting._subscription = loop.create_task(cls._subscribe(address))

    @classmethod
    def _read(cls, descriptor: int) -> None:
        with suppress(BlockingIOError):
            cls._wake(set(array.array("q", os.read(descriptor, _READ_BYTES))))

    @classmethod
    async def _subscribe(cls, address: str) -> None:
        from redis import RedisError  # noqa: PLC0415
        from redis import asyncio as async_redis  # noqa: PLC0415

        while True:
            try:
                async with async_redis.Redis.from_url(address) as client, client.pubsub() as subscription:
                    await subscription.subscribe(_CHANNEL)
                    Waiting.is_woken = True
                    async for message in subscription.listen():
                        if message["type"] == "message":
                            cls._wake({int(message["data"])})
            except RedisError as error:
                log.warning("wake_ups_not_received", error=str(error))
            Waiting.is_woken = False
            await asyncio.sleep(_TIMEOUT_SECONDS)

    @classmethod
    def _wake(cls, run_ids: set[int]) -> None:
        for run_id in cls._of_run if _EVERY_RUN in run_ids else run_ids & cls._of_run.keys():
            for waiting in cls._of_run[run_id]:
                waiting._woken.set()
