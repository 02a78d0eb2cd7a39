"""Journals written by hand, and the routers' indexes that the kernels make of them."""

from collections.abc import Iterable

import numpy as np

from prefixgym.envs.cluster.journal import CLEARED, JOURNAL, REMOVED, STORED, Journals
from prefixgym.envs.view.index.arrays import allocate, reset, with_room
from prefixgym.envs.view.index.beliefs import depths
from prefixgym.envs.view.index.own_decisions import note_sent
from prefixgym.envs.view.index.upkeep import bring_up_to_date, forget_instance
from prefixgym.envs.view.knowledge import Index

MS = 10**9
NONE = -1
_SLOT = np.dtype([("key", np.int64), ("users", np.int32)], align=True)


def parent_of(key: int) -> int:
    """Prompts are the paths of a binary tree with root 1: 1, 2 and 3, 4 to 7, …"""
    return key // 2 or NONE


def path_to(key: int) -> list[int]:
    return [*(path_to(key // 2) if key > 1 else []), key]


class Instances:
    """N instances in each of E environments, whose caches are changed by hand.

    Attributes:
        cached: what is cached, by [environment][instance].
    """

    def __init__(
        self,
        index: Index,
        num_instances: int = 1,
        *,
        num_envs: int = 1,
        routers: int = 1,
        journal: int = 4096,
        num_slots: int = 64,
        seed: int = 0,
    ) -> None:
        grid = (num_envs, num_instances)
        self.journals = Journals(
            np.zeros((*grid, journal), JOURNAL),
            np.zeros(grid, np.int64),
            np.zeros(grid, np.int32),
            np.zeros((*grid, num_slots), _SLOT),
        )
        self.journals.slots["key"] = NONE
        self.epochs = np.zeros(grid, np.int64)
        self.cached: list[list[set[int]]] = [
            [set() for _ in range(num_instances)] for _ in range(num_envs)
        ]
        self.routers = routers
        self.arrays = allocate(
            index,
            num_envs,
            routers,
            num_instances,
            num_blocks=num_slots,
            journal=journal,
            block_size=16,
        )
        self.keys = np.arange(num_envs * routers, dtype=np.uint64) + np.uint64(1000 * seed)
        for w, key in enumerate(self.keys):
            reset(self.arrays, w, key)

    # --- the engines ---

    def write(self, e: int, i: int, stamp: int, kind: int, key: int) -> None:
        records, ends = self.journals.records, self.journals.ends
        record = (stamp, key, parent_of(key) if key > 0 else NONE, self.epochs[e, i], kind)
        records[e, i, ends[e, i] % records.shape[2]] = record
        ends[e, i] += 1
        slots, cached = self.journals.slots["key"][e, i], self.cached[e][i]
        if kind == STORED:
            assert key not in cached
            cached.add(key)
            slots[np.flatnonzero(slots == NONE)[0]] = key
        elif kind == REMOVED:
            cached.remove(key)
            slots[slots == key] = NONE
        else:
            cached.clear()
            slots[:] = NONE

    def step(
        self,
        ms: float,
        stored: Iterable[int] = (),
        removed: Iterable[int] = (),
        *,
        i: int = 0,
        e: int = 0,
    ) -> None:
        """A step of instance i ends at a time in milliseconds."""
        stamp = 2 * round(ms * MS)
        for key in stored:
            self.write(e, i, stamp, STORED, key)
        for key in removed:
            self.write(e, i, stamp, REMOVED, key)

    def clear(self, ms: float, *, i: int = 0, e: int = 0) -> None:
        """The cache of instance i is emptied."""
        self.write(e, i, 2 * round(ms * MS), CLEARED, NONE)

    def set_silent(self, ms: float, silent: bool, *, i: int = 0, e: int = 0) -> None:
        """The publisher of instance i dies, or is back."""
        self.hear(round(ms * MS), before=True, e=e)
        self.journals.silent[e, i] = silent

    def go_down(self, ms: float, *, i: int = 0, e: int = 0) -> None:
        """Instance i dies."""
        self.set_silent(ms, True, i=i, e=e)
        self.epochs[e, i] += 1
        self.clear(ms, i=i, e=e)

    def come_back(self, ms: float, *, i: int = 0, e: int = 0) -> None:
        """Instance i serves again."""
        self.set_silent(ms, False, i=i, e=e)
        self.clear(ms, i=i, e=e)

    # --- the routers ---

    def hear(self, ticks: int, *, before: bool = False, e: int = 0) -> None:
        """All routers of environment e are brought up to date."""
        self.arrays = with_room(self.arrays)
        for w in range(e * self.routers, (e + 1) * self.routers):
            bring_up_to_date(self.journals, self.arrays, e, w, ticks, ticks - before)

    def forget(self, ms: float, *, i: int = 0, e: int = 0) -> None:
        """All routers of environment e find instance i to be down."""
        self.hear(round(ms * MS), before=True, e=e)
        for w in range(e * self.routers, (e + 1) * self.routers):
            forget_instance(self.arrays, w, i)

    def send(self, ms: float, prompt: Iterable[int], *, i: int = 0, w: int = 0) -> None:
        """The router of row w sends a prompt to instance i."""
        keys = np.array(list(prompt), np.int64)
        note_sent(self.arrays, w, i, keys, len(keys), round(ms * MS))

    def believed(self, ms: float | None = None, *, i: int = 0, w: int = 0) -> set[int]:
        """Blocks that row w believes to be cached by instance i, at a time or as it stands."""
        if ms is not None:
            self.hear(round(ms * MS), e=w // self.routers)
        beliefs = self.arrays.beliefs
        entries = beliefs.table.slots["entry"][w]
        entries = entries[entries != NONE]
        holders = (beliefs.entries["known"] | beliefs.entries["own"])[w, entries]
        return set(beliefs.table.ids[w, entries][(holders >> np.uint64(i)) & np.uint64(1) == 1])

    def depths(self, prompt: list[int], *, w: int = 0) -> list[int]:
        """Leading blocks of a prompt that row w believes each instance to have."""
        out = np.full(self.arrays.lines.shape[1], 99, np.int64)
        depths(self.arrays.beliefs, w, np.array(prompt, np.int64), len(prompt), out)
        return out.tolist()
