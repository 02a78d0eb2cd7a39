"""Dynamo's SelectionService with the KV events of engines that are not there."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgpack
import pytest
import zmq
from dynamo._core import SelectionService


class Service:
    """Workers 0, 1, … of one block size, each with a socket that its KV events come from.

    Args:
        num_workers: workers.
        block_size: tokens in a block.
        settings: environment variables that the service reads when it starts (`DYN_ROUTER_…`).
    """

    def __init__(
        self,
        num_workers: int,
        block_size: int,
        monkeypatch: pytest.MonkeyPatch,
        settings: Mapping[str, str],
    ) -> None:
        for name, value in {"DYN_LOG": "error", **settings}.items():
            monkeypatch.setenv(name, value)
        self._block_size = block_size
        self._loop = asyncio.new_event_loop()
        self._context = zmq.Context()
        self._sockets = [self._context.socket(zmq.PUB) for _ in range(num_workers)]
        self._sent = [0] * num_workers
        self._core = SelectionService(indexer_threads=1)
        for worker, socket in enumerate(self._sockets):
            port = socket.bind_to_random_port("tcp://127.0.0.1")
            record = {
                "worker_id": worker,
                "endpoint": "http://127.0.0.1:1",
                "kv_events_endpoint": f"tcp://127.0.0.1:{port}",
                "block_size": block_size,
                "total_kv_blocks": 1000,
                "max_num_batched_tokens": 8192,
            }
            self._wait(self._core.upsert_worker, record)
        assert self._core.ready()["schedulable_workers"] == num_workers

    def close(self) -> None:
        self._core.shutdown()
        self._context.destroy(linger=0)
        self._loop.close()

    def _wait(self, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        async def answer() -> Any:
            return await call(*arguments)  # the call itself needs a running loop

        return self._loop.run_until_complete(answer())

    def store(self, worker: int, hashes: list[int], parent: int | None, tokens: list[int]) -> None:
        self._send(worker, ["BlockStored", hashes, parent, tokens, self._block_size, None])

    def remove(self, worker: int, block_hash: int) -> None:
        self._send(worker, ["BlockRemoved", [block_hash]])

    def _send(self, worker: int, event: list[Any]) -> None:
        batch = msgpack.packb([0.0, [event], 0])
        sequence = struct.pack(">Q", self._sent[worker])
        self._sockets[worker].send_multipart([b"", sequence, batch])
        self._sent[worker] += 1

    def overlap(self, tokens: list[int]) -> list[int]:
        """Cached blocks on each worker."""
        answer = self._wait(self._core.overlap_scores, {"token_ids": tokens})
        return [w["device_blocks"] for w in sorted(answer["workers"], key=_worker)]

    def wait_for_overlap(self, tokens: list[int], blocks: Sequence[int]) -> None:
        """Until the index says `blocks`, one number for each worker; events take a moment."""
        deadline = time.monotonic() + 10
        while (found := self.overlap(tokens)) != list(blocks):
            assert time.monotonic() < deadline, (found, blocks)
            time.sleep(0.001)

    def potential_loads(self, tokens: list[int]) -> list[tuple[int, int, int]]:
        """Prefill tokens and decode blocks with the prompt, and requests without it."""
        loads = self._wait(self._core.potential_loads, {"token_ids": tokens})
        return [
            (w["potential_prefill_tokens"], w["potential_decode_blocks"], w["active_requests"])
            for w in sorted(loads, key=_worker)
        ]

    def select(self, tokens: list[int]) -> int:
        return int(self._wait(self._core.select, {"token_ids": tokens})["worker_id"])

    def select_and_reserve(self, tokens: list[int], name: str) -> int:
        request = {"token_ids": tokens, "selection_id": name}
        return int(self._wait(self._core.select_and_reserve, request)["worker_id"])

    def prefill_complete(self, name: str) -> None:
        self._wait(self._core.prefill_complete, name)

    def free(self, name: str) -> None:
        self._wait(self._core.free_reservation, name)


def _worker(record: dict[str, Any]) -> int:
    return int(record["worker_id"])
