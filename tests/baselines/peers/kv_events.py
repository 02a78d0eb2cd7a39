"""KV cache events as vLLM's engines publish them, for real routers that listen."""

import itertools
import struct
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import msgpack
import zmq
import zmq.asyncio


class KvEvents:
    """A publisher for each of `count` workers, on a free port of its own.

    Attributes:
        endpoints: where worker k publishes.
        published: events so far.
    """

    def __init__(self, count: int) -> None:
        self._context = zmq.asyncio.Context()
        # An XPUB socket says when somebody subscribes.
        self._sockets = [self._context.socket(zmq.XPUB) for _ in range(count)]
        ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in self._sockets]
        self.endpoints = [f"tcp://127.0.0.1:{port}" for port in ports]
        self.published = 0
        self._sequences = [itertools.count() for _ in range(count)]

    async def subscribed(self) -> None:
        """Wait until every publisher has a listener."""
        for socket in self._sockets:
            await socket.recv()

    async def stored(
        self,
        worker: int,
        hashes: Sequence[int],
        parent: int | None,
        token_ids: Sequence[int],
        block_size: int,
    ) -> None:
        """The worker has cached blocks in a row, the first of them after `parent`."""
        await self._publish(
            worker,
            type="BlockStored",
            block_hashes=list(hashes),
            parent_block_hash=parent,
            token_ids=list(token_ids),
            block_size=block_size,
            lora_id=None,
            medium="GPU",
            lora_name=None,
        )

    async def removed(self, worker: int, hashes: Sequence[int]) -> None:
        """The worker has evicted blocks."""
        await self._publish(worker, type="BlockRemoved", block_hashes=list(hashes), medium="GPU")

    async def cleared(self, worker: int) -> None:
        """The worker has evicted everything."""
        await self._publish(worker, type="AllBlocksCleared")

    async def _publish(self, worker: int, **event: Any) -> None:
        sequence = struct.pack(">Q", next(self._sequences[worker]))
        batch = msgpack.packb([0.0, [event], 0])
        await self._sockets[worker].send_multipart([b"", sequence, batch])
        self.published += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._context.destroy(linger=0)
