"""The state of the routers' indexes of cached blocks: one row for each router and environment.

Row w = e·R + r is what router r of R knows in environment e. A belief is a set of instances (bits)
for every block that the router has heard of; for every row and instance a LINE keeps how far the
instance has told its story, how far the router has heard it, and the messages in between.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_ticks
from prefixgym.envs.jit import cold_kernel
from prefixgym.envs.memory import widened, zeros_together
from prefixgym.envs.view import id_table, recency
from prefixgym.envs.view.id_table import NONE, IdTable
from prefixgym.envs.view.knowledge import Index
from prefixgym.envs.view.recency import Recency

ENGINE, SNAPSHOTS, EVENTS, NO_SOURCE = range(4)

# Assumed sizes of what is sent. Hashes and positions are 64-bit words, tokens 32-bit ones.
HEADER_BYTES = 32  # topic, number, time stamp, and the framing of ZeroMQ or gRPC
HASH_BYTES = 8
TOKEN_BYTES = 4

CONFIG = np.dtype(
    [
        ("source", np.int64),
        ("viewers", np.int64),  # R, rows of an environment
        # Delivery
        ("delay", np.int64),  # ticks
        ("jitter", np.int64),  # ticks
        ("loss", np.float64),
        ("duplication", np.float64),
        ("perfect", np.int64),  # 1 if all of these are 0
        # Snapshots
        ("interval", np.int64),  # ticks
        ("adaptive", np.int64),
        ("shortest", np.int64),  # ticks
        ("longest", np.int64),  # ticks
        ("target", np.int64),  # blocks
        ("accept_restarts", np.int64),
        # Events
        ("ignore_old", np.int64),
        ("recover", np.int64),
        ("buffer", np.int64),  # messages
        ("replay", np.int64),  # messages
        ("there", np.int64),  # ticks from a question to the instance
        ("back", np.int64),  # ticks from there to its answer
        ("barriers", np.int64),
        ("require_parent", np.int64),
        ("drop_descendants", np.int64),
        ("dated", np.int64),  # 1 if changes can come out of order and must be told apart
        ("stored_bytes", np.int64),  # of a stored block in a message
        # OwnDecisions
        ("own", np.int64),
        ("ttl", np.int64),  # ticks
        ("most_blocks", np.int64),  # of an instance; 0: no limit
    ],
    align=True,
)
"""An `Index` in ticks."""

ENTRY = np.dtype(
    [
        ("known", np.uint64),  # instances that told of the block
        ("own", np.uint64),  # instances that the router sent it to
        ("marked", np.uint64),  # within a kernel: instances whose bit in `known` has changed
        ("buried", np.uint64),  # instances that removed it in a message that is remembered
    ],
    align=True,
)
"""What the router believes of one block. All zero where no entry is in use."""

LINK = np.dtype(
    [
        ("parent", np.int32),  # entry of the block before it in a prompt, NONE
        ("child", np.int32),  # the first of the blocks after it, NONE
        ("previous", np.int32),  # siblings
        ("next", np.int32),
    ],
    align=True,
)

MESSAGE = np.dtype(
    [
        ("arrival", np.int64),  # ticks
        ("order", np.int64),  # of sending, among equal arrivals
        # version of a snapshot, number of an event message, first one of a question or replay, last
        # one that a dump contains
        ("number", np.int64),
        # where in the journal its records start, a snapshot or dump ends; of a replay: place in
        # `sent` of the epoch's message 0
        ("start", np.int64),
        ("count", np.int64),  # records; of a question or replay: the last number
        ("epoch", np.int32),
        ("kind", np.int32),
    ],
    align=True,
)
"""A message under way or held back. Its content stays in the instance's journal."""

SENT = np.dtype([("start", np.int64), ("count", np.int64)], align=True)
"""The records of a message that can be asked for; `start` NONE: no more known."""

LINE = np.dtype(
    [
        # What snapshots look at, side by side
        ("next_turn", np.int64),  # ticks of the next snapshot
        ("last_turn", np.int64),
        ("interval", np.int64),  # ticks
        ("position", np.int64),  # records of the journal that snapshots contain, or that were sent
        ("epoch_start", np.int64),  # position at which the instance's epoch began
        ("cached", np.int64),  # blocks cached there
        ("heard", np.int64),  # version of the snapshot, number of the message last taken in
        ("believed", np.int64),  # position of the snapshot last taken in
        ("epoch", np.int32),  # of the instance
        ("heard_epoch", np.int32),
        ("exact", np.int32),  # 1 if `known` is what the snapshot last taken in contained
        ("under_way", np.int32),  # messages in `under_way`
        ("num_diffs", np.int32),
        ("next_diff", np.int32),
        # Messages and events
        ("serial", np.int64),  # counts messages for random draws
        ("order", np.int64),  # counts messages under way
        ("next_number", np.int64),  # within the epoch
        ("epoch_sent", np.int64),  # value of `sent` when the epoch began
        ("sent", np.int64),  # messages numbered since the episode's start
        ("floor", np.int64),  # changes in messages before this number count no more
        ("asked", np.int32),  # 1 while an answer is awaited
        ("held", np.int32),  # messages in `held`
    ],
    align=True,
)
"""What is between one router and one instance: how far the instance has told its story, how far
the router has heard it."""

CONTROL = np.dtype(
    [
        ("messages", np.int64),  # sent: snapshots, events, questions, answers
        ("bytes", np.int64),  # of snapshots, events and answers
        ("lost", np.int64),
        ("duplicates", np.int64),
        ("ignored", np.int64),  # arrived, but not newer than what was known
        ("gaps", np.int64),  # questions asked
        ("replays", np.int64),
        ("dumps", np.int64),
        ("unanswered", np.int64),
        ("held_back", np.int64),  # messages that had to wait for an earlier one
        ("dropped", np.int64),  # blocks stored after an unknown one
        ("overrun", np.int64),  # records or messages whose journal was written over: lost
        ("refused", np.int64),  # blocks or messages for which there was no room: lost
        ("entries", np.int64),  # blocks in the index
        ("peak_entries", np.int64),
    ],
    align=True,
)
"""What the index costs a router, since the episode's start."""

DIFFS = 30
"""Snapshots over whose changes the adaptive interval averages (FlexLB's rolling window)."""


class Beliefs(NamedTuple):
    """Which instances have a block, as far as W routers believe, with room for C blocks each."""

    table: IdTable  # C ids for each row
    entries: NDArray[np.void]  # ENTRY [W, C]
    links: NDArray[np.void]  # LINK [W, C], [W, 0] unless descendants are dropped
    changed: NDArray[np.int64]  # [W, C, N]: number of the message; [W, 0, N] unless dated
    buried: Recency  # over C, or 0: a list for each instance of its removed blocks
    routed: NDArray[np.int64]  # [W, C, N]: ticks of the last routing; [W, 0, N] without own
    recent: Recency  # over C, or 0: a list for each instance of what was routed there


class IndexArrays(NamedTuple):
    """All arrays of W indexes of N instances."""

    config: NDArray[np.void]  # CONFIG [1]
    keys: NDArray[np.uint64]  # [W], of the random draws
    control: NDArray[np.void]  # CONTROL [W]
    lines: NDArray[np.void]  # LINE [W, N]
    beliefs: Beliefs
    diffs: NDArray[np.int64]  # [W, N, DIFFS], around the end
    under_way: NDArray[np.void]  # MESSAGE [W, N, Q], a heap
    held: NDArray[np.void]  # MESSAGE [W, N, held back], by number
    sent: NDArray[np.void]  # SENT [W, N, D], around the end


def _config(index: Index, viewers: int, block_size: int) -> NDArray[np.void]:
    config = np.zeros(1, CONFIG)
    config["source"] = ("engine", "snapshots", "events", "none").index(index.source)
    config["viewers"] = viewers
    way = index.delivery
    for name in ("delay", "jitter"):
        config[name] = to_ticks(getattr(way, name))
    config["loss"], config["duplication"] = way.loss, way.duplication
    config["perfect"] = not (way.delay or way.jitter or way.loss or way.duplication)
    for name in ("interval", "shortest", "longest"):
        config[name] = to_ticks(getattr(index.snapshots, name))
    for name in ("adaptive", "target", "accept_restarts"):
        config[name] = getattr(index.snapshots, name)
    events = index.events
    for name in (
        "ignore_old",
        "recover",
        "buffer",
        "replay",
        "barriers",
        "require_parent",
        "drop_descendants",
    ):
        config[name] = getattr(events, name)
    round_trip = to_ticks(events.round_trip)
    config["there"], config["back"] = round_trip // 2, round_trip - round_trip // 2
    # Where every message is taken in once and in order there is nothing to tell apart.
    in_order = events.recover and events.ignore_old and events.buffer > 0
    config["dated"] = index.source == "events" and events.tombstones and not in_order
    config["stored_bytes"] = HASH_BYTES + TOKEN_BYTES * block_size  # as in vLLM's BlockStored
    if index.own is not None:
        config["own"] = 1
        config["ttl"], config["most_blocks"] = to_ticks(index.own.ttl), index.own.blocks
    return config


def _power_of_two(at_least: int) -> int:
    return 1 << max(3, (at_least - 1).bit_length())


def allocate(
    index: Index,
    num_envs: int,
    viewers: int,
    num_instances: int,
    *,
    num_blocks: int,
    journal: int,
    block_size: int,
) -> IndexArrays:
    """Arrays for E·R indexes; `reset` must run on every row before its first use.

    Args:
        index: what feeds them.
        num_envs: E.
        viewers: R, routers with an index of their own in each environment.
        num_instances: N.
        num_blocks: blocks of memory of all instances of an environment together.
        journal: J, records that an instance's journal keeps.
        block_size: tokens of a block.
    """
    config = _config(index, viewers, block_size)[0]
    rows = num_envs * viewers
    told = index.source in ("snapshots", "events")
    events = index.source == "events"
    # A quarter more than can be cached, for what is believed wrongly.
    room = _power_of_two(num_blocks * 5 // 4 if told else 8192 if index.own else 1)
    # Steps of some 5 ms; `with_room` makes more room if it is scarce.
    way = int(config["delay"] + config["jitter"] + config["there"] + config["back"])
    under_way = _power_of_two(64 + way // int(to_ticks(0.005))) if told else 1
    # What is asked for must be there until the answer arrives.
    kept = min(index.events.replay + 1024, journal) if events else 1
    dated = room if config["dated"] else 0
    own = room if config["own"] else 0
    grid = (rows, num_instances)
    arrays = zeros_together(
        {
            "lines": (grid, LINE),
            "entries": ((rows, room), ENTRY),
            "under_way": ((*grid, under_way), MESSAGE),
        }
    )
    return IndexArrays(
        config=np.array([config]),
        keys=np.zeros(rows, np.uint64),
        control=np.zeros(rows, CONTROL),
        lines=arrays["lines"],
        beliefs=Beliefs(
            table=id_table.id_table(rows, room),
            entries=arrays["entries"],
            links=np.zeros((rows, room if events and config["drop_descendants"] else 0), LINK),
            changed=np.zeros((rows, dated, num_instances), np.int64),
            buried=recency.recency(rows, dated, num_instances),
            routed=np.zeros((rows, own, num_instances), np.int64),
            recent=recency.recency(rows, own, num_instances),
        ),
        diffs=np.zeros((*grid, DIFFS if index.snapshots.adaptive else 0), np.int64),
        under_way=arrays["under_way"],
        held=np.zeros((*grid, index.events.buffer if events else 0), MESSAGE),
        sent=np.zeros((*grid, kept), SENT),
    )


def _doubled(beliefs: Beliefs) -> Beliefs:
    table = id_table.doubled(beliefs.table)
    room = table.ids.shape[1]
    beliefs = beliefs._replace(table=table, entries=widened(beliefs.entries, room))
    if beliefs.links.shape[1]:
        beliefs = beliefs._replace(links=widened(beliefs.links, room))
    if beliefs.changed.shape[1]:
        beliefs = beliefs._replace(
            changed=widened(beliefs.changed, room),
            buried=recency.with_capacity(beliefs.buried, room),
        )
    if beliefs.routed.shape[1]:
        beliefs = beliefs._replace(
            routed=widened(beliefs.routed, room),
            recent=recency.with_capacity(beliefs.recent, room),
        )
    return beliefs


def with_room(x: IndexArrays, num_ids: int = 0) -> IndexArrays:
    """The arrays themselves, or larger ones with the same content.

    Afterwards a quarter of the room for blocks is spare, and room for `num_ids` more, and half of
    that for messages. What does not fit until this is called again is lost, and counted.
    """
    beliefs = x.beliefs
    while beliefs.table.num_spare.min() < max(beliefs.table.ids.shape[1] // 4, num_ids):
        beliefs = _doubled(beliefs)
    x = x._replace(beliefs=beliefs)
    if x.lines["under_way"].max() > x.under_way.shape[2] // 2:
        larger = np.zeros((*x.lines.shape, 2 * x.under_way.shape[2]), MESSAGE)
        larger[:, :, : x.under_way.shape[2]] = x.under_way
        x = x._replace(under_way=larger)
    return x


@cold_kernel
def reset(x: IndexArrays, w: int, key: np.uint64) -> None:
    """Row w knows that all caches are empty, and nothing is under way.

    Instance i of N takes its first turn to send a snapshot to router r of R at (i·R + r)/(N·R) of
    an interval.
    """
    x.keys[w] = key
    config, beliefs, num_instances = x.config[0], x.beliefs, x.lines.shape[1]
    for slot in range(beliefs.table.slots.shape[1]):
        entry = beliefs.table.slots[w, slot].entry
        if entry != NONE:
            beliefs.entries[w, entry] = np.zeros(1, ENTRY)[0]
    id_table.clear(beliefs.table, w)
    x.control[w] = np.zeros(1, CONTROL)[0]
    router = w % config.viewers
    for i in range(num_instances):
        recency.clear(beliefs.buried, w, i)
        recency.clear(beliefs.recent, w, i)
        x.lines[w, i] = np.zeros(1, LINE)[0]
        line = x.lines[w, i]
        line.interval = config.interval
        turn = config.interval * (i * config.viewers + router)
        line.next_turn = turn // (num_instances * config.viewers)
        line.heard = NONE
        line.exact = 1
