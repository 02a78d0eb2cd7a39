"""Orders of last use: what a least-recently-used cache evicts next.

For every environment T lists over the same C entries (of an `IdTable`, or nodes of a tree); an
entry can be in any number of them. All operations take constant time.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.jit import kernel

NOBODY = -1
"""No older or newer entry; the ends of an empty list."""
_ABSENT = -2

LINK = np.dtype([("older", np.int32), ("newer", np.int32)], align=True)
ENDS = np.dtype([("oldest", np.int32), ("newest", np.int32), ("size", np.int64)], align=True)


class Recency(NamedTuple):
    """T lists over C entries in each of E environments."""

    links: NDArray[np.void]  # LINK [E, C, T]
    ends: NDArray[np.void]  # ENDS [E, T]


def recency(num_envs: int, capacity: int, num_lists: int) -> Recency:
    """Empty lists."""
    links = np.empty((num_envs, capacity, num_lists), LINK)
    links["older"] = _ABSENT
    ends = np.empty((num_envs, num_lists), ENDS)
    ends["oldest"] = ends["newest"] = NOBODY
    ends["size"] = 0
    return Recency(links, ends)


def with_capacity(lists: Recency, capacity: int) -> Recency:
    """The same lists with room for more entries."""
    num_envs, old, num_lists = lists.links.shape
    larger = recency(num_envs, capacity, num_lists)
    larger.links[:, :old] = lists.links
    return Recency(larger.links, lists.ends)


@kernel
def contains(lists: Recency, e: int, t: int, entry: int) -> bool:
    """Whether the entry is in list t."""
    return bool(lists.links[e, entry, t]["older"] != _ABSENT)


@kernel
def touch(lists: Recency, e: int, t: int, entry: int) -> None:
    """Make the entry the newest of list t, whether it was in it or not."""
    if contains(lists, e, t, entry):
        drop(lists, e, t, entry)
    ends, link = lists.ends[e, t], lists.links[e, entry, t]
    link["older"], link["newer"] = ends["newest"], NOBODY
    if ends["newest"] == NOBODY:
        ends["oldest"] = entry
    else:
        lists.links[e, ends["newest"], t]["newer"] = entry
    ends["newest"] = entry
    ends["size"] += 1


@kernel
def put_after(lists: Recency, e: int, t: int, entry: int, older: int) -> None:
    """Put an entry into list t as the one used just after `older`, which is in it."""
    ends, link, before = lists.ends[e, t], lists.links[e, entry, t], lists.links[e, older, t]
    link["older"], link["newer"] = older, before["newer"]
    if before["newer"] == NOBODY:
        ends["newest"] = entry
    else:
        lists.links[e, before["newer"], t]["older"] = entry
    before["newer"] = entry
    ends["size"] += 1


@kernel
def drop(lists: Recency, e: int, t: int, entry: int) -> None:
    """Take an entry out of list t, in which it is."""
    ends, link = lists.ends[e, t], lists.links[e, entry, t]
    if link["older"] == NOBODY:
        ends["oldest"] = link["newer"]
    else:
        lists.links[e, link["older"], t]["newer"] = link["newer"]
    if link["newer"] == NOBODY:
        ends["newest"] = link["older"]
    else:
        lists.links[e, link["newer"], t]["older"] = link["older"]
    link["older"] = _ABSENT
    ends["size"] -= 1


@kernel
def clear(lists: Recency, e: int, t: int) -> None:
    """Take all entries out of list t."""
    while lists.ends[e, t]["oldest"] != NOBODY:
        drop(lists, e, t, lists.ends[e, t]["oldest"])
