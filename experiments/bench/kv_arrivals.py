"""When KV reaches its decoder by our rules, in a run of Dynamo's: what ports cost there."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.tape import Tape
from prefixgym.experiments.bench.dynamo_split import SplitPeer, SplitRequest


def kv_arrivals(
    tape: Tape,
    cluster: SplitPeer,
    requests: Sequence[SplitRequest],
    outcomes: NDArray[np.void],
) -> NDArray[np.float64]:
    """When KV arrives by our rules, if prefills end as they did at Dynamo; s [R].

    Transfers take the ports of both workers, in the order in which prefills ended, for all tokens
    that the decoder has not cached by then: what began to be decoded there before (`outcomes`, of
    `replay` with `pairs_of(requests)`; nothing is evicted).
    """
    if cluster.bandwidth is None:
        return np.array([request.prefilled for request in requests])
    size, begun = cluster.block_size, outcomes["arrival"] + outcomes["ttft"]
    blocks = [tape.block_ids(i)[: r.prompt_tokens // size] for i, r in enumerate(requests)]
    cached: list[dict[int, float]] = [{} for _ in range(cluster.decoders)]
    for request, ids, time in zip(requests, blocks, begun.tolist(), strict=True):
        times = cached[request.decoder]
        times.update({i: min(time, times.get(i, math.inf)) for i in ids.tolist()})
    sends, receives = np.zeros(cluster.prefillers), np.zeros(cluster.decoders)
    arrivals = np.zeros(len(requests))
    for i in sorted(range(len(requests)), key=lambda i: (requests[i].prefilled, i)):
        request, times = requests[i], cached[requests[i].decoder]
        held = [times[block] <= request.prefilled for block in blocks[i].tolist()]
        missing = request.prompt_tokens - size * (held.index(False) if False in held else len(held))
        start = max(request.prefilled, sends[request.prefiller], receives[request.decoder])
        arrivals[i] = start + missing * cluster.kv_bytes_per_token / cluster.bandwidth
        sends[request.prefiller] = receives[request.decoder] = arrivals[i]
    return arrivals
