"""The cluster's state: structured arrays with leading axes [environment, instance, …].

Memory is proportional to cache capacity and requests in flight, not to a workload's length. The
kernels of `block_cache`, `block_index` and `engine` change these arrays in place; copying them is a
snapshot of the cluster.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from prefixgym.envs.clock import NEVER, TICKS_PER_SECOND, to_ticks
from prefixgym.envs.cluster.journal import JOURNAL, Journals
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.heap import DUE
from prefixgym.envs.jit import kernel
from prefixgym.envs.memory import widened, zeros_together

MAX_INSTANCES = 64
"""Holders of a block are the bits of one 64-bit word."""

NONE = -1
"""No slot, no flight, no key."""

# What an instance does until its next event.
IDLE, READY, MIXED_STEP, DECODE_LEAP = range(4)

# Whether it is there: DOWN is known to everybody, LOST to nobody who has not found out.
SERVING, DRAINING, DOWN, LOST = range(4)

# Where a flight is: at the router; in an engine's queue or batch; sent to an instance that is lost;
# failed, and to be sent again by its client; between the instances that prefill and decode it.
HELD, QUEUED, BATCHED, HANGING, AWAY, MOVING = range(6)

# How a flight ends.
FINISHED, REJECTED, FAILED, CANCELLED = range(4)

STATUS = np.dtype(
    [
        # Twice the time of the next event, plus one if that event is the *start* of a step: at one
        # instant steps end first, then requests arrive (due == 2·time), then the next steps start.
        ("due", np.int64),
        ("running", np.int32),  # requests in the batch
        ("waiting", np.int32),  # requests queued for admission
        ("free_blocks", np.int32),  # blocks that no running request uses; cached or not
        ("mode", np.int32),
        ("waiting_tokens", np.int32),  # Σ `expected` of requests queued for admission
        ("prefilling_tokens", np.int32),  # still to compute of prompts in the batch
        ("throughput", np.float32),  # output tokens per tick, see `rated`
    ],
    align=True,
)
"""The part of an instance that every decision looks at, kept apart to be small."""

INSTANCE = np.dtype(
    [
        ("leap_start", np.int64),  # ticks at which the first step of the leap started
        ("leap_base", np.int64),  # ticks of a decode step besides its context term
        ("leap_context", np.int64),  # KV tokens attended to in the leap's first step
        ("context", np.int64),  # Σ computed tokens of decoding requests
        ("steps", np.int64),  # steps ended since the episode's start
        (
            "next_step",
            np.int64,
        ),  # value of `steps` at which a decoding request ends or needs a block
        ("leap_steps", np.int64),  # steps until the next event
        ("decoding", np.int32),  # running[:decoding] decode, running[decoding:] prefill
        # Decoding requests for which `throughput` was found, at the first step that had so many;
        # NONE after a step with prefill, whose own it is.
        ("rated", np.int32),
        ("waiting_head", np.int32),  # flights, linked by FLIGHT.next
        ("waiting_tail", np.int32),
        ("lru_head", np.int32),  # slots without users, linked; the head is evicted first
        ("lru_tail", np.int32),
        ("phase", np.int32),  # SERVING, DRAINING, DOWN or LOST
        ("leaving", np.int32),  # requests in the batch, or just put back, whose client is gone
        ("limbo_head", np.int32),  # flights that hang on a lost instance, linked by FLIGHT.next
        ("limbo_tail", np.int32),
        ("epoch", np.int32),  # how often it went down
        ("stamp", np.int64),  # of the event in progress, see JOURNAL
        ("sends_until", np.int64),  # ticks up to which its port is taken by transfers from here
        ("receives_until", np.int64),  # and by those to here
        ("factor", np.float64),  # on the durations of steps, as in `cost`
        ("next_factor", np.float64),  # the same from the next step on
        # totals since the episode's start
        ("changed_at", np.int64),  # ticks up to which the two integrals below are summed
        ("running_ticks", np.float64),  # ∫ running requests dt
        ("waiting_ticks", np.float64),  # ∫ waiting requests dt
        ("busy_ticks", np.int64),  # in steps
        ("prefilled_tokens", np.int64),  # computed, recomputation after preemption included
        ("preemptions", np.int64),
    ],
    align=True,
)

SLOT = np.dtype(
    [
        ("key", np.int64),  # id of the cached block, NONE if its content cannot be found again
        ("previous", np.int32),  # towards the LRU head
        ("next", np.int32),
        ("users", np.int32),  # running requests that use the block; 0 = in the LRU list
        ("chain", np.int32),  # next slot under the same position of the hash table
    ],
    align=True,
)
"""One block of KV memory."""

HOLDERS = np.dtype(
    [
        ("key", np.int64),
        ("held", np.uint64),
        ("chain", np.int64),  # next entry under the same table position, or next unused entry
    ],
    align=True,
)
"""A block and the instances (bits) that hold it."""

RUNNING = np.dtype(
    [
        ("event_step", np.int32),  # decode: `steps` at which it ends or needs a block
        ("end_step", np.int32),  # decode: `steps` at which it ends
        ("flight", np.int32),
        ("chunk", np.int32),  # prefill: tokens of the step in progress
    ],
    align=True,
)

FLIGHT = np.dtype(
    [
        ("arrival", np.int64),
        ("first_token", np.int64),  # ticks, NEVER before it; of the last attempt
        ("end", np.int64),
        ("prompt_tokens", np.int32),
        ("output_tokens", np.int32),
        ("generated", np.int32),  # output tokens so far; brought up to date when decoding stops
        ("computed", np.int32),  # tokens whose KV exists; as of `since_step` while decoding
        ("target", np.int32),  # tokens to compute before the next output token (prefill)
        ("expected", np.int32),  # tokens to compute, as far as was known when it was queued
        ("hit_tokens", np.int32),  # cached tokens found at first admission
        ("num_slots", np.int32),
        ("published", np.int32),  # leading blocks already offered to the cache
        ("cacheable", np.int32),
        ("instance", np.int32),  # where it is
        ("prefiller", np.int32),  # where it was sent first
        ("decoder", np.int32),  # where it decodes, NONE if where it was prefilled
        ("received", np.int32),  # 1 if its KV has come from elsewhere and nothing is to be computed
        ("row", np.int32),  # of the tape
        ("decision", np.int32),  # number within the episode of the decision that sent it here
        ("next", np.int32),  # in a waiting queue or in the list of unused records
        ("status", np.int32),  # how it ends: FINISHED, REJECTED, FAILED or CANCELLED
        ("place", np.int32),  # HELD, QUEUED, BATCHED, HANGING or AWAY
        ("attempt", np.int32),  # how often it was sent before
        ("replica", np.int32),  # the router that sent it
        ("gone", np.int32),  # 1 if its client has gone and the engine has yet to drop it
    ],
    align=True,
)
"""A request between its dispatch and its end."""

ENVIRONMENT = np.dtype(
    [
        ("free_flight", np.int32),  # first unused record of `flights`
        ("in_flight", np.int32),
        ("num_events", np.int32),  # in `events`, to be taken by the caller
        ("free_entry", np.int32),  # first unused entry of `holders`
        ("num_transfers", np.int32),  # under way
        ("next_transfer", np.int64),  # ticks at which the first of them arrives, NEVER if none is
    ],
    align=True,
)

STARTED, FIRST_TOKEN, END, PREFILLED = range(4)

EVENT = np.dtype([("time", np.int64), ("flight", np.int32), ("kind", np.int32)], align=True)
"""What happens to a request: first admission to the batch, first token, end of the attempt; the end
of its prefill, if it decodes elsewhere."""

LIMITS = np.dtype(
    [
        ("num_blocks", np.int32),  # 0: the instance is not there
        ("max_batched_tokens", np.int32),
        ("max_sequences", np.int32),
        ("longest_leap", np.int32),  # decode steps taken at once; 1 steps one by one
        ("block_size", np.int32),  # tokens; the same on all instances
    ],
    align=True,
)

LINK = np.dtype(
    [
        ("latency", np.int64),  # ticks
        ("token", np.float64),  # ticks that the KV of a token takes
    ],
    align=True,
)
"""The port of an instance."""


class ClusterArrays(NamedTuple):
    """All arrays that the cluster's kernels work on. E environments, N instances."""

    cost: NDArray[np.void]  # STEP_COST [1, N], shared by all environments, or [E, N]
    nominal: NDArray[np.void]  # the same of instances at their full speed
    limits: NDArray[np.void]  # LIMITS [1, N] or [E, N], like `cost`
    status: NDArray[np.void]  # STATUS [E, N]
    instances: NDArray[np.void]  # INSTANCE [E, N]
    slots: NDArray[np.void]  # SLOT [E, N, C]: C blocks
    slot_table: NDArray[np.int32]  # [E, N, T]: hash table block id -> first slot of its chain
    holders: NDArray[np.void]  # HOLDERS [E, H], in no order
    holders_table: NDArray[np.int32]  # [E, X]: hash table block id -> first entry of its chain
    journals: Journals  # what the caches stored and removed
    running: NDArray[np.void]  # RUNNING [E, N, S], in order of admission
    environments: NDArray[np.void]  # ENVIRONMENT [E]
    flights: NDArray[np.void]  # FLIGHT [E, Q]
    flight_blocks: NDArray[np.int64]  # [E, Q, B]: block ids
    flight_slots: NDArray[np.int32]  # [E, Q, B]: slots in use
    events: NDArray[np.void]  # EVENT [E, 2 Q]
    links: NDArray[np.void]  # LINK [N], or [0] where no instance has a role
    transfers: NDArray[np.void]  # DUE [E, Q], a heap of `num_transfers`, or [E, 0]


def _power_of_two(at_least: int) -> int:
    return 1 << max(3, (at_least - 1).bit_length())


def allocate(
    spec: ClusterSpec,
    num_envs: int,
    *,
    num_flights: int,
    blocks_per_flight: int,
    journal: int = 0,
    longest_leap: int = np.iinfo(np.int32).max,
    own_instances: bool = False,
    changing_speed: bool = False,
    block_index: bool = True,
) -> ClusterArrays:
    """Arrays for `num_envs` clusters; `reset` (engine) must run before their first use.

    Args:
        spec: the cluster, the same in every environment.
        num_envs: E.
        num_flights: Q, the most requests in flight at once.
        blocks_per_flight: B, the most blocks that one request's prompt and output take.
        journal: J, cache changes that an instance remembers; 0 if it need not.
        longest_leap: decode steps taken at once.
        own_instances: environments may be given instances of their own, see `set_instances`; none
            may have more blocks than `spec` says.
        changing_speed: instances may become slower.
        block_index: keep the index of which instances hold a block.

    Raises:
        ValueError: more instances than `MAX_INSTANCES`.
    """
    num_instances = len(spec.instances)
    if num_instances > MAX_INSTANCES:
        raise ValueError(
            f"cluster.instances: found {num_instances}, allowed are at most {MAX_INSTANCES}"
        )
    blocks = [spec.kv_blocks(i) for i in range(num_instances)]
    limits = np.zeros(num_instances, LIMITS)
    limits["num_blocks"] = blocks
    limits["max_batched_tokens"] = [i.max_batched_tokens for i in spec.instances]
    limits["max_sequences"] = [i.max_sequences for i in spec.instances]
    limits["longest_leap"] = longest_leap
    limits["block_size"] = spec.block_size
    grid = (num_envs, num_instances)
    arrays = zeros_together(
        {
            "records": ((*grid, journal), JOURNAL),
            "status": (grid, STATUS),
            "instances": (grid, INSTANCE),
            "environments": ((num_envs,), ENVIRONMENT),
            "running": ((*grid, int(limits["max_sequences"].max())), RUNNING),
            "slots": ((*grid, max(blocks)), SLOT),
            "slot_table": ((*grid, _power_of_two(2 * max(blocks))), np.int32),
            **_block_index(num_envs, sum(blocks) if block_index else 0),
        }
    )
    journals = Journals(
        arrays.pop("records"), np.zeros(grid, np.int64), np.zeros(grid, np.int32), arrays["slots"]
    )
    arrays["slots"]["key"] = NONE  # also of memory that a smaller instance does not have
    cost = [
        instance.profile.step_cost(count * spec.block_size)
        for instance, count in zip(spec.instances, blocks, strict=True)
    ]
    rows = num_envs if own_instances or changing_speed else 1
    nominal = np.tile(np.array(cost), (rows, 1))
    return ClusterArrays(
        cost=nominal.copy() if changing_speed else nominal,
        nominal=nominal,
        limits=np.tile(limits, (rows, 1)),
        journals=journals,
        links=_links(spec),
        transfers=np.zeros((num_envs, num_flights if spec.is_split else 0), DUE),
        **arrays,
        **_flight_arrays(num_envs, num_flights, blocks_per_flight),
    )


def _links(spec: ClusterSpec) -> NDArray[np.void]:
    links = np.zeros(len(spec.instances) if spec.is_split else 0, LINK)
    links["latency"] = to_ticks(spec.link.latency)
    for link, instance in zip(links, spec.instances, strict=False):
        seconds = instance.profile.kv_bytes_per_token / spec.link.bandwidth
        link["token"] = seconds * TICKS_PER_SECOND
    return links


def _block_index(num_envs: int, held_blocks: int) -> dict[str, tuple[tuple[int, ...], DTypeLike]]:
    positions = _power_of_two(2 * held_blocks) if held_blocks > 0 else 0
    return {
        "holders": ((num_envs, held_blocks), HOLDERS),
        "holders_table": ((num_envs, positions), np.int32),
    }


def with_block_index(arrays: ClusterArrays, spec: ClusterSpec) -> ClusterArrays:
    """The same state with room for the index of blocks, which must then be made everywhere."""
    held_blocks = sum(spec.kv_blocks(i) for i in range(len(spec.instances)))
    index: dict[str, Any] = zeros_together(_block_index(len(arrays.environments), held_blocks))
    return arrays._replace(**index)


def set_instances(
    arrays: ClusterArrays, env: int, cost: NDArray[np.void], num_blocks: NDArray[np.int64]
) -> None:
    """Give `env` instances of its own, until the next call; it must then be reset.

    Args:
        arrays: allocated with `own_instances`.
        env: which environment.
        cost: STEP_COST [N].
        num_blocks: blocks of KV cache [N], at most what was allocated; 0 where there is none.
    """
    arrays.cost[env] = cost
    arrays.nominal[env] = cost
    arrays.limits["num_blocks"][env] = num_blocks


@kernel
def settings_row(c: ClusterArrays, e: int) -> int:
    """The row of `cost` and `limits` that holds for environment e."""
    return min(e, c.cost.shape[0] - 1)


def _flight_arrays(num_envs: int, num_flights: int, num_blocks: int) -> dict[str, NDArray[Any]]:
    return zeros_together(
        {
            "flights": ((num_envs, num_flights), FLIGHT),
            "flight_blocks": ((num_envs, num_flights, num_blocks), np.int64),
            "flight_slots": ((num_envs, num_flights, num_blocks), np.int32),
            "events": ((num_envs, 2 * num_flights), EVENT),
        }
    )


def grow_flights(arrays: ClusterArrays, num_flights: int, blocks_per_flight: int) -> ClusterArrays:
    """The same state with room for more requests in flight, or for longer ones."""
    num_envs, old_flights, old_blocks = arrays.flight_blocks.shape
    grown = _flight_arrays(num_envs, num_flights, blocks_per_flight)
    flights = grown["flights"]
    flights[:, :old_flights] = arrays.flights
    grown["flight_blocks"][:, :old_flights, :old_blocks] = arrays.flight_blocks
    grown["flight_slots"][:, :old_flights, :old_blocks] = arrays.flight_slots
    grown["events"][:, : 2 * old_flights] = arrays.events
    # New records go in front of the list of unused ones.
    if num_flights > old_flights:
        flights["next"][:, old_flights:-1] = np.arange(old_flights + 1, num_flights)
        flights["next"][:, -1] = arrays.environments["free_flight"]
        arrays.environments["free_flight"] = old_flights
    if arrays.transfers.shape[1] > 0:
        grown["transfers"] = widened(arrays.transfers, num_flights)
    replaced: dict[str, Any] = grown
    return arrays._replace(**replaced)


NEVER_DUE = 2 * (NEVER // 2)
"""`STATUS.due` of an instance without work."""
