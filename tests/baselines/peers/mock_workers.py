"""Mock LLM workers on loopback: they answer what routers ask, and hold a request until told.

Everything runs in one event loop: that of the test.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web

MODEL = "mock"
# An answer that every dialect's caller accepts.
_ANSWER = {
    "id": "mock",
    "object": "text_completion",
    "created": 0,
    "model": MODEL,
    "text": "ok",
    "meta_info": {"id": "mock", "finish_reason": {"type": "stop"}},
    "choices": [{"index": 0, "text": "ok", "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
_INFO = {
    "model_id": MODEL,
    "model_path": MODEL,
    "served_model_name": MODEL,
    "is_generation": True,
    "dp_size": 1,
    "version": "mock",
}
# Routers probe for gRPC first; that the server cannot read it is no news.
_LOGGER = logging.getLogger("mock_workers")
_LOGGER.setLevel(logging.CRITICAL)
_GENERATE = ("/generate", "/v1/completions", "/v1/chat/completions")
_DESCRIBE = ("/get_model_info", "/model_info", "/get_server_info", "/server_info")


@dataclass
class Arrival:
    """A generation request that has reached a worker; answered once `answer` is set.

    One that asks for a stream gets the first chunk once `first_token` is set.
    """

    worker: int
    body: dict[str, Any]
    headers: dict[str, str]
    answer: asyncio.Event = field(default_factory=asyncio.Event)
    first_token: asyncio.Event = field(default_factory=asyncio.Event)


class MockWorkers:
    """`count` workers, number 0, 1, …, each on a free port of its own.

    Attributes:
        urls: where each worker listens.
        arrivals: generation requests in order of arrival, at all workers together.
        healthy: worker k answers its health checks only while `healthy[k]`.
        loads: load of worker k as it says to `/get_load`; an absent one answers 404.
        load_answer: how it says that.

    Args:
        count: number of workers.
        holding: workers that hold each request until its `Arrival.answer` is set; the others (such
            as prefill workers of a router that waits for them) answer at once. Default: all.
    """

    def __init__(self, count: int, holding: Iterable[int] | None = None) -> None:
        self.urls: list[str] = []
        self.arrivals: asyncio.Queue[Arrival] = asyncio.Queue()
        self.healthy = [True] * count
        self.loads: dict[int, int] = {}
        self.load_answer: Callable[[int], Any] = lambda load: [{"dp_rank": 0, "num_tokens": load}]
        self._count = count
        self._holding = frozenset(range(count) if holding is None else holding)
        self._runners: list[web.AppRunner] = []

    async def __aenter__(self) -> Self:
        for worker in range(self._count):
            runner = web.AppRunner(self._application(worker), access_log=None, logger=_LOGGER)
            await runner.setup()
            self._runners.append(runner)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            self.urls.append(f"http://127.0.0.1:{port}")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(runner.cleanup() for runner in self._runners))

    def _application(self, worker: int) -> web.Application:
        async def health(request: web.Request) -> web.Response:
            return web.Response(status=200 if self.healthy[worker] else 503)

        async def describe(request: web.Request) -> web.Response:
            return web.json_response(_INFO)

        async def models(request: web.Request) -> web.Response:
            return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

        async def load(request: web.Request) -> web.Response:
            if worker not in self.loads:
                return web.Response(status=404)
            return web.json_response(self.load_answer(self.loads[worker]))

        async def stream(request: web.Request, arrival: Arrival) -> web.StreamResponse:
            response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await response.prepare(request)
            await arrival.first_token.wait()
            await response.write(b"data: " + json.dumps(_ANSWER).encode() + b"\n\n")
            await arrival.answer.wait()
            await response.write(b"data: [DONE]\n\n")
            return response

        async def generate(request: web.Request) -> web.StreamResponse:
            arrival = Arrival(worker, await request.json(), dict(request.headers))
            self.arrivals.put_nowait(arrival)
            if worker in self._holding and arrival.body.get("stream"):
                return await stream(request, arrival)
            if worker in self._holding:
                await arrival.answer.wait()
            return web.json_response(_ANSWER)

        application = web.Application(client_max_size=2**26)
        for path in ("/health", "/health_generate"):
            application.router.add_get(path, health)
        for path in _DESCRIBE:
            application.router.add_get(path, describe)
        application.router.add_get("/v1/models", models)
        application.router.add_get("/get_load", load)
        for path in _GENERATE:
            application.router.add_post(path, generate)
        return application
