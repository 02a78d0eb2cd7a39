"""A real router as a child process in front of mock workers: who gets each request?"""

import asyncio
import importlib.metadata
import random
import re
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
import pytest
from mock_workers import Arrival, MockWorkers

_STARTUP_SECONDS = 60.0
_ANSWER_SECONDS = 20.0


def require_package(name: str, version: str) -> None:
    """Skip the calling test unless that version of the package is installed."""
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"needs {name} {version}, which is not installed (make build/peers)")
    if found != version:
        pytest.skip(f"needs {name} {version}, {found} is installed (make build/peers)")


_CHANCE = random.SystemRandom()


def free_port() -> int:
    """A port that nobody listens on.

    It lies below those that the system gives to connections: one of these might have it before the
    router does.
    """
    while True:
        port = _CHANCE.randrange(15_000, 30_000)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


@dataclass
class Flight:
    """A request on its way through the router.

    Attributes:
        arrivals: where it was sent, in order of arrival.
        response: done with the response's status once the client has all of it.
        started: set once the client has the beginning.
    """

    arrivals: list[Arrival]
    response: asyncio.Task[int]
    started: asyncio.Event

    @property
    def worker(self) -> int:
        """The one worker that got it."""
        (arrival,) = self.arrivals
        return arrival.worker

    async def start(self) -> None:
        """Let the workers send a stream's first chunk, and wait until the client has it."""
        for arrival in self.arrivals:
            arrival.first_token.set()
        async with asyncio.timeout(_ANSWER_SECONDS):
            await self.started.wait()

    async def finish(self) -> None:
        """Let the workers answer, and wait until the client has the answer."""
        for arrival in self.arrivals:
            arrival.first_token.set()
            arrival.answer.set()
        async with asyncio.timeout(_ANSWER_SECONDS):
            assert await self.response == 200


class RealRouter:
    """Runs `command` from this Python's environment, with host and port appended.

    Args:
        command: the program's name and its arguments, say ["sglang-router", "launch", …].
        workers: what stands behind it, all of it named in the command.
    """

    def __init__(self, command: Sequence[str], workers: MockWorkers) -> None:
        self._command, self._workers = command, workers

    async def __aenter__(self) -> Self:
        program = shutil.which(self._command[0], path=str(Path(sys.executable).parent))
        assert program is not None, f"{self._command[0]} is not beside {sys.executable}"
        port, metrics = free_port(), free_port()
        arguments = [*self._command[1:], "--host", "127.0.0.1", "--port", str(port)]
        arguments += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)]
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115  (closed in __aexit__)
        self._process = await asyncio.create_subprocess_exec(
            program, *arguments, stdout=self._log, stderr=self._log
        )
        self._client = aiohttp.ClientSession(
            f"http://127.0.0.1:{port}", connector=aiohttp.TCPConnector(limit=0)
        )
        try:
            async with asyncio.timeout(_STARTUP_SECONDS):
                while not await self._is_ready():
                    assert self._process.returncode is None
                    await asyncio.sleep(0.05)
        except BaseException as error:
            error.add_note(self.log()[-4000:])
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.close()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._log.close()

    async def _is_ready(self) -> bool:
        try:
            listed = await self.listed()
        except aiohttp.ClientConnectionError:
            return False
        return len(listed) == len(self._workers.urls) and all(row["is_healthy"] for row in listed)

    def log(self) -> str:
        """What the router has printed so far, without colours."""
        self._log.flush()
        printed = Path(self._log.name).read_text(errors="replace")
        return re.sub(r"\x1b\[[0-9;]*m", "", printed)

    async def printed(self, text: str, times: int) -> None:
        """Wait until the router has printed `text` so often."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            while Path(self._log.name).read_bytes().count(text.encode()) < times:
                await asyncio.sleep(0.01)

    async def listed(self) -> list[dict[str, Any]]:
        """What the router says of each worker, in its own order: `load`, `is_healthy`, ….

        `worker` is added, its number. The order is the one in which registrations were completed.
        """
        async with self._client.get("/workers") as response:
            assert response.status == 200, await response.text()
            rows: list[dict[str, Any]] = (await response.json())["workers"]
        for row in rows:
            row["worker"] = self._workers.urls.index(row["url"])
        return rows

    async def settled(self, loads: Mapping[int, int]) -> None:
        """Wait until the router counts these requests in flight, by worker.

        A client may have its answer before the router has taken note of the end.
        """
        async with asyncio.timeout(_ANSWER_SECONDS):
            while any(row["load"] != loads[row["worker"]] for row in await self.listed()):
                await asyncio.sleep(0.001)

    async def health_is(self, healthy: Sequence[bool]) -> None:
        """Wait until the router has found out which workers are healthy."""
        async with asyncio.timeout(_ANSWER_SECONDS):
            while any(row["is_healthy"] != healthy[row["worker"]] for row in await self.listed()):
                await asyncio.sleep(0.05)

    async def send(
        self,
        body: Mapping[str, Any],
        path: str = "/generate",
        headers: Mapping[str, str] | None = None,
        arrivals: int = 1,
    ) -> Flight:
        """Post a request and wait until `arrivals` workers have got it.

        One call at a time: whatever arrives meanwhile is taken for this request's.
        """
        started = asyncio.Event()
        response = asyncio.create_task(self._post(path, body, headers, started))
        flight = Flight([], response, started)
        for _ in range(arrivals):
            arrival = asyncio.create_task(self._workers.arrivals.get())
            done, _ = await asyncio.wait(
                {arrival, flight.response},
                timeout=_ANSWER_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if arrival not in done:
                arrival.cancel()
                answer = flight.response.result() if flight.response.done() else "none"
                raise AssertionError(f"no worker got it; answer: {answer}\n{self.log()[-4000:]}")
            flight.arrivals.append(arrival.result())
        return flight

    async def _post(
        self,
        path: str,
        body: Mapping[str, Any],
        headers: Mapping[str, str] | None,
        started: asyncio.Event,
    ) -> int:
        async with self._client.post(path, json=body, headers=headers) as response:
            await response.content.readany()
            started.set()
            await response.read()
            return response.status
