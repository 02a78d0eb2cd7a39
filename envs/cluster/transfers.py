"""KV on its way from the instance that prefilled a request to the one that decodes it.

A transfer begins when the prefill has ended and both ports are free, takes them for
tokens · kv_bytes_per_token / bandwidth, and arrives the link's latency later. What the decoder has
cached of the prompt by the end of the prefill need not be moved. First come, first served, port by
port: NICs have queues, and with few transfers at once sharing fairly would give the same mean.

Deviations: vLLM's NIXL connector pulls once the decoder has taken blocks for all of it; here KV is
pushed, the sender's blocks are free when it has arrived, and it takes none of the receiver's before
it is admitted there. Layers are not sent while later ones are computed.
"""

import numpy as np

from prefixgym.envs.cluster.block_cache import find_slot
from prefixgym.envs.cluster.engine import join_queue, shorten_leap
from prefixgym.envs.cluster.request_blocks import release_blocks, tokens_per_block
from prefixgym.envs.cluster.state import (
    DECODE_LEAP,
    IDLE,
    NONE,
    QUEUED,
    READY,
    ClusterArrays,
)
from prefixgym.envs.heap import first_time, push, remove
from prefixgym.envs.jit import cold_kernel, kernel


@cold_kernel
def start_transfer(c: ClusterArrays, e: int, q: int, time: int) -> None:
    """The prefill of flight q has ended at `time`: its KV goes to its decoder."""
    environment, flight = c.environments[e], c.flights[e, q]
    sender, receiver = c.instances[e, flight.instance], c.instances[e, flight.decoder]
    link = c.links[flight.instance]
    start = max(time, sender.sends_until, receiver.receives_until)
    end = start + int(np.rint(_tokens_to_move(c, e, q) * link.token))
    sender.sends_until = end
    receiver.receives_until = end
    push(c.transfers[e], environment.num_transfers, end + link.latency, flight.row, 0, q, 0)
    environment.num_transfers += 1
    environment.next_transfer = first_time(c.transfers[e], environment.num_transfers)


@kernel
def _tokens_to_move(c: ClusterArrays, e: int, q: int) -> int:
    """Tokens of the prompt of flight q that its decoder has not cached."""
    flight, i = c.flights[e, q], c.flights[e, q].decoder
    block_size, held = tokens_per_block(c), 0
    most = min(flight.cacheable, flight.prompt_tokens // block_size)
    while held < most and (
        find_slot(c.slots[e, i], c.slot_table[e, i], c.flight_blocks[e, q, held]) != NONE
    ):
        held += 1
    return flight.prompt_tokens - held * block_size


@cold_kernel
def end_transfer(c: ClusterArrays, e: int) -> None:
    """The first transfer arrives: the flight waits where it decodes, and is gone where it was."""
    environment = c.environments[e]
    time, q = c.transfers[e, 0].time, c.transfers[e, 0].index
    remove(c.transfers[e], environment.num_transfers, 0)
    environment.num_transfers -= 1
    environment.next_transfer = first_time(c.transfers[e], environment.num_transfers)
    flight = c.flights[e, q]
    release_blocks(c, e, flight.instance, q)
    _try_again(c, e, flight.instance, time)
    flight.instance = flight.decoder
    flight.received = 1
    flight.expected = 0
    flight.target = flight.prompt_tokens + flight.generated
    flight.next = NONE
    flight.place = QUEUED
    join_queue(c, e, flight.instance, q, time)


@kernel
def _try_again(c: ClusterArrays, e: int, i: int, time: int) -> None:
    """Blocks of instance i have become free: who waits for some may be admitted now."""
    status = c.status[e, i]
    if status.waiting > 0 and status.mode == IDLE:
        status.mode = READY
        status.due = 2 * time + 1
    elif status.waiting > 0 and status.mode == DECODE_LEAP:
        shorten_leap(c, e, i, time)
