"""What must hold of a cluster's arrays between any two events, checked the slow way."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.block_cache import find_slot
from prefixgym.envs.cluster.block_index import find_holders, is_indexed
from prefixgym.envs.cluster.state import NEVER_DUE, NONE, ClusterArrays, settings_row

ABSENT_KEY = 2**60


def check_cluster(c: ClusterArrays, e: int, held: Sequence[int] = ()) -> None:
    """Raise AssertionError for the first rule that environment `e` breaks.

    `held` are the flights that have not come to their instances yet.
    """
    moving = c.transfers[e]["index"][: c.environments[e]["num_transfers"]].tolist()
    queued = [*held, *moving]
    for i in range(c.status.shape[1]):
        leaving = [q for q in moving if c.flights[e, q]["instance"] == i]
        queued += _check_requests(c, e, i, may_wait=bool(leaving))
        _check_blocks(c, e, i, leaving)
    check_index(c, e)
    assert len(set(queued)) == len(queued), "a request is in two places"
    environment = c.environments[e]
    assert environment["num_events"] == 0
    assert environment["in_flight"] == len(queued)
    unused = _chain(int(environment["free_flight"]), c.flights[e]["next"])
    assert sorted(queued + unused) == list(range(c.flights.shape[1]))


def _chain(head: int, following: NDArray[np.int64]) -> list[int]:
    """The elements of a linked list."""
    found: list[int] = []
    while head != NONE:
        assert len(found) <= len(following), "a linked list runs in a circle"
        found.append(head)
        head = int(following[head])
    return found


def running_flights(c: ClusterArrays, e: int, i: int) -> list[int]:
    flights: list[int] = c.running[e, i, : c.status[e, i]["running"]]["flight"].tolist()
    return flights


def _check_requests(c: ClusterArrays, e: int, i: int, may_wait: bool) -> list[int]:
    """Check queue and batch of instance i; its flights.

    They may wait without a step if blocks are kept for transfers.
    """
    status, instance = c.status[e, i], c.instances[e, i]
    waiting = _chain(int(instance["waiting_head"]), c.flights[e]["next"])
    assert status["waiting"] == len(waiting)
    assert instance["waiting_tail"] == (waiting[-1] if waiting else NONE)
    running = running_flights(c, e, i)
    assert len(running) <= c.limits[settings_row(c, e), i]["max_sequences"]
    assert instance["decoding"] <= len(running)
    assert (c.flights[e]["instance"][running + waiting] == i).all()
    assert not c.flights[e]["num_slots"][waiting].any(), "a waiting request has blocks"
    if status["due"] == NEVER_DUE:
        assert not running
        assert not waiting or may_wait
    return running + waiting


def _check_blocks(c: ClusterArrays, e: int, i: int, leaving: Sequence[int]) -> None:
    """Check memory and cache of instance i; flights that leave it still have their blocks there."""
    status, instance = c.status[e, i], c.instances[e, i]
    capacity = int(c.limits[settings_row(c, e), i]["num_blocks"])
    slots, table = c.slots[e, i], c.slot_table[e, i]
    users: Counter[int] = Counter()
    for q in [*running_flights(c, e, i), *leaving]:
        mine = c.flight_slots[e, q, : c.flights[e, q]["num_slots"]].tolist()
        assert len(set(mine)) == len(mine)
        users.update(mine)
    assert [users[slot] for slot in range(capacity)] == slots["users"][:capacity].tolist()
    unused = _chain(int(instance["lru_head"]), slots["next"])
    assert sorted(unused) == [slot for slot in range(capacity) if users[slot] == 0]
    assert unused == _chain(int(instance["lru_tail"]), slots["previous"])[::-1]
    assert status["free_blocks"] == len(unused)
    assert len(users) + len(unused) == capacity
    keyed = [slot for slot in range(capacity) if slots["key"][slot] != NONE]
    assert all(find_slot(slots, table, slots["key"][slot]) == slot for slot in keyed)
    # Nothing else is in the table.
    chained = [slot for head in table.tolist() for slot in _chain(head, slots["chain"])]
    assert sorted(chained) == keyed
    assert find_slot(slots, table, ABSENT_KEY) == NONE


def check_index(c: ClusterArrays, e: int) -> None:
    """Check the table of holders against what the instances hold, if it is kept."""
    if not is_indexed(c):
        return
    index = indexed(c, e)
    for i in range(c.status.shape[1]):
        keys = c.slots[e, i]["key"][: c.limits[settings_row(c, e), i]["num_blocks"]]
        assert index[i] == set(keys[keys != NONE].tolist())
    entries = np.flatnonzero(c.holders[e]["held"])
    assert all(find_holders(c, e, c.holders[e, entry]["key"]) == entry for entry in entries)
    assert find_holders(c, e, ABSENT_KEY) == NONE
    unused = _chain(int(c.environments[e]["free_entry"]), c.holders[e]["chain"])
    assert sorted([*unused, *entries.tolist()]) == list(range(c.holders.shape[1]))


def indexed(c: ClusterArrays, e: int) -> list[set[int]]:
    """For every instance the keys that the index says it holds."""
    holders = c.holders[e]
    return [
        set(holders["key"][(holders["held"] >> np.uint64(i)) & np.uint64(1) != 0].tolist())
        for i in range(c.status.shape[1])
    ]
