"""What each protection is worth: the smallest story that goes wrong without it, worked by hand.

One instance, blocks of a binary tree (1 before 2 and 3, 2 before 4 and 5, …), times in ms. Messages
take no time unless it is said. `lose` makes one message disappear.
"""

import numpy as np
import pytest
from made_journals import Instances

from prefixgym.envs.view.knowledge import Delivery, Events, Index, OwnDecisions, Snapshots

NONE_AT_ALL = Events(
    ignore_old=False, recover=False, barriers=False, tombstones=False, round_trip=0.0
)


def events(delay: float = 0.0, **switches: bool | int | float) -> Index:
    """An event index with no protection but these."""
    way = Delivery(delay=delay / 1000)
    return Index(
        source="events", delivery=way, events=NONE_AT_ALL.model_copy(update=dict(switches))
    )


def lose(instances: Instances, ms: float) -> None:
    """What is sent up to now and has not been heard is lost."""
    instances.arrays.config["loss"] = 1.0
    instances.believed(ms)
    instances.arrays.config["loss"] = 0.0


def deliver_late(instances: Instances, ms: float, delay: float) -> None:
    """What is sent up to now and has not been heard takes so many ms."""
    config = instances.arrays.config
    before = config.copy()
    config["delay"], config["perfect"] = round(delay * 10**9), 0
    instances.believed(ms)
    config[:] = before


@pytest.mark.parametrize(("recover", "expected"), [(True, {1, 2, 3}), (False, {1, 3})])
def test_a_lost_stored_block_is_missing(recover: bool, expected: set[int]) -> None:
    instances = Instances(events(recover=recover))
    instances.step(1, stored=[1])
    assert instances.believed(1) == {1}
    instances.step(2, stored=[2])
    lose(instances, 2)
    assert instances.believed(3) == {1}  # nobody can miss the last message
    instances.step(4, stored=[3])
    assert instances.believed(4) == expected
    assert instances.depths([1, 2]) == [2 if recover else 1]
    assert instances.arrays.control[0]["replays"] == recover


@pytest.mark.parametrize(("recover", "expected"), [(True, {1, 3}), (False, {1, 2, 3})])
def test_a_lost_removed_block_is_a_phantom(recover: bool, expected: set[int]) -> None:
    instances = Instances(events(recover=recover))
    instances.step(1, stored=[1, 2])
    assert instances.believed(1) == {1, 2}
    instances.step(2, removed=[2])
    lose(instances, 2)
    instances.step(4, stored=[3])
    assert instances.believed(4) == expected


@pytest.mark.parametrize(
    ("switches", "expected"),
    [({}, {1}), ({"ignore_old": True}, set()), ({"tombstones": True}, set())],
)
def test_a_second_copy_raises_a_removed_block(
    switches: dict[str, bool], expected: set[int]
) -> None:
    instances = Instances(events(**switches))
    instances.arrays.config["duplication"] = 1.0
    instances.arrays.config["jitter"] = 10 * 10**9
    instances.step(1, stored=[1])
    instances.believed(1)
    instances.arrays.config["duplication"] = 0.0
    instances.arrays.config["jitter"] = 0
    arrivals = np.sort(instances.arrays.under_way[0, 0]["arrival"][:2]) / 10**9
    between = arrivals.mean()
    instances.step(between, removed=[1])
    assert instances.believed(between) == set()
    assert instances.believed(20) == expected


@pytest.mark.parametrize(
    ("switches", "expected"),
    [({}, {1}), ({"tombstones": True}, set()), ({"ignore_old": True}, set())],
)
def test_a_stored_block_that_comes_after_its_removal(
    switches: dict[str, bool], expected: set[int]
) -> None:
    instances = Instances(events(**switches))
    instances.step(1, stored=[1])
    deliver_late(instances, 1, delay=5)
    instances.step(2, removed=[1])
    assert instances.believed(2) == set()
    assert instances.believed(6) == expected


def test_old_messages_are_not_worthless() -> None:
    instances = Instances(events(ignore_old=True))
    late = Instances(events(tombstones=True))
    for each in (instances, late):
        each.step(1, stored=[1])
        deliver_late(each, 1, delay=5)
        each.step(2, stored=[2])
        each.believed(2)
    assert instances.believed(6) == {2}
    assert late.believed(6) == {1, 2}


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({"buffer": 0}, {1, 2}),  # the replay of "2 stored" comes after the live "2 removed"
        ({"buffer": 0, "tombstones": True}, {1}),
        ({"buffer": 10}, {1}),
    ],
)
def test_a_replay_after_what_is_live(switches: dict[str, bool | int], expected: set[int]) -> None:
    instances = Instances(events(recover=True, round_trip=0.004, **switches))
    instances.step(1, stored=[1])
    assert instances.believed(1) == {1}
    instances.step(2, stored=[2])
    lose(instances, 2)
    instances.step(3, removed=[2])
    held_back = switches["buffer"] != 0
    assert instances.believed(3) == {1}
    assert instances.arrays.control[0]["held_back"] == held_back
    assert instances.believed(6.9) == {1}
    assert instances.believed(7) == expected  # asked at 3, answered at 5, heard at 7
    assert instances.arrays.control[0]["gaps"] == 1


def test_who_asks_for_what_is_gone_gets_the_whole_cache() -> None:
    instances = Instances(events(recover=True, replay=2, round_trip=0.0))
    for key in (1, 2, 3, 4):
        instances.step(key, stored=[key])
        lose(instances, key)
    instances.step(5, removed=[4])
    assert instances.believed(5) == {1, 2, 3}
    control = instances.arrays.control[0]
    assert (control["dumps"], control["replays"]) == (1, 0)


def test_too_many_held_back() -> None:
    instances = Instances(events(recover=True, buffer=2, round_trip=0.010))
    instances.step(1, stored=[1])
    lose(instances, 1)
    for key in (2, 3, 4):
        instances.step(key, stored=[key])
        instances.believed(key)
    assert [m["number"] for m in instances.arrays.held[0, 0][:2]] == [2, 3]
    assert instances.believed(11) == set()
    assert instances.believed(12) == {1, 2, 3, 4}  # asked at 2, the replay brings all of them


@pytest.mark.parametrize(
    ("ignore_old", "barriers", "expected"),
    [
        (True, True, {3, 4}),
        (False, True, {3, 4}),
        # Numbers begin anew: what comes under those that were used is ignored (Dynamo #13044).
        (True, False, {1, 2}),
        (False, False, {1, 2, 3, 4}),
    ],
)
def test_a_restart(ignore_old: bool, barriers: bool, expected: set[int]) -> None:
    instances = Instances(events(ignore_old=ignore_old, barriers=barriers))
    instances.step(1, stored=[1])
    instances.step(2, stored=[2])
    instances.step(3, removed=[2])
    instances.step(4, stored=[2])
    assert instances.believed(4) == {1, 2}
    instances.go_down(5)
    assert instances.believed(6) == {1, 2}  # nobody has told
    instances.come_back(7)  # message 0 of the new epoch
    assert instances.believed(7) == (set() if barriers else {1, 2})
    instances.step(8, stored=[3])
    instances.step(9, stored=[4])
    assert instances.believed(9) == expected
    instances.step(10, stored=[5])
    instances.step(11, stored=[6])
    assert (6 in instances.believed(11)) == (5 in instances.believed(11)) or ignore_old
    if ignore_old and not barriers:  # message 4, the first whose number is above 3
        assert instances.believed(11) == {1, 2, 6}


@pytest.mark.parametrize(("barriers", "expected"), [(True, {2}), (False, {1, 2})])
def test_a_cleared_cache(barriers: bool, expected: set[int]) -> None:
    instances = Instances(events(barriers=barriers))
    instances.step(1, stored=[1])
    instances.clear(2)
    instances.step(3, stored=[2])
    assert instances.believed(3) == expected


def test_what_precedes_a_restart_counts_no_more() -> None:
    instances = Instances(events(barriers=True, recover=True))
    instances.step(1, stored=[1])
    deliver_late(instances, 1, delay=9)
    instances.go_down(2)
    instances.come_back(3)
    instances.step(4, stored=[2])
    assert instances.believed(20) == {2}


@pytest.mark.parametrize("require_parent", [True, False])
def test_an_unknown_parent(require_parent: bool) -> None:
    instances = Instances(events(require_parent=require_parent))
    instances.step(1, stored=[1])
    lose(instances, 1)
    instances.step(2, stored=[2, 4])
    assert instances.believed(2) == (set() if require_parent else {2, 4})
    assert instances.arrays.control[0]["dropped"] == 2 * require_parent
    assert instances.depths([1, 2, 4]) == [0]  # the first block is missing either way


@pytest.mark.parametrize("drop_descendants", [True, False])
def test_orphans(drop_descendants: bool) -> None:
    instances = Instances(events(drop_descendants=drop_descendants))
    instances.step(1, stored=[1, 2, 4, 5, 3])
    assert instances.believed(1) == {1, 2, 3, 4, 5}
    instances.step(2, removed=[5, 4])
    lose(instances, 2)
    instances.step(3, removed=[2])
    assert instances.believed(3) == ({1, 3} if drop_descendants else {1, 3, 4, 5})
    instances.step(4, stored=[2])
    instances.believed(4)
    assert instances.depths([1, 2, 4]) == [2 if drop_descendants else 3]


def test_a_dead_publisher_leaves_no_gap() -> None:
    instances = Instances(events(recover=True, ignore_old=True, barriers=True))
    instances.step(1, stored=[1])
    instances.set_silent(2, True)
    instances.step(3, stored=[2])
    instances.set_silent(4, False)
    instances.step(5, stored=[3])
    assert instances.believed(50) == {1, 3}
    assert instances.arrays.control[0]["gaps"] == 0


def test_nobody_answers_while_the_publisher_is_dead() -> None:
    instances = Instances(events(recover=True, round_trip=0.004))
    instances.step(1, stored=[1])
    lose(instances, 1)
    instances.step(2, stored=[2])
    instances.believed(2)
    instances.set_silent(3, True)
    assert instances.believed(6) == set()
    assert instances.arrays.control[0]["unanswered"] == 1
    instances.set_silent(7, False)
    instances.step(8, stored=[3])
    assert instances.believed(12) == {1, 2, 3}


# --- snapshots ---


def snapshots(**options: float | bool) -> Index:
    """A snapshot index, every 10 ms by default."""
    chosen = Snapshots(interval=0.010).model_copy(update=dict(options))
    return Index(source="snapshots", snapshots=chosen)


def test_a_snapshot_shows_its_moment() -> None:
    instances = Instances(snapshots(), 2)
    instances.step(9, stored=[1])
    instances.step(10, stored=[2])
    instances.step(10.5, stored=[3])
    assert instances.believed(9.9) == set()
    assert instances.believed(10) == {1, 2}
    assert instances.believed(19.9) == {1, 2}
    assert instances.believed(20) == {1, 2, 3}
    instances.step(21, stored=[1], i=1)
    assert instances.believed(24.9, i=1) == set()  # instance 1 takes turns at 5, 15, 25, …
    assert instances.believed(25, i=1) == {1}


def test_a_step_that_starts_at_the_moment_is_not_in_its_snapshot() -> None:
    instances = Instances(snapshots())
    instances.write(0, 0, 2 * 10 * 10**9 + 1, 0, 1)
    assert instances.believed(15) == set()
    assert instances.believed(20) == {1}


def test_an_overtaken_snapshot_is_ignored() -> None:
    instances = Instances(snapshots())
    instances.step(1, stored=[1])
    deliver_late(instances, 10, delay=15)  # the snapshot of 10 arrives at 25
    instances.step(11, removed=[1])
    assert instances.believed(20) == set()
    assert instances.believed(26) == set()
    assert instances.arrays.control[0]["ignored"] > 0


@pytest.mark.parametrize("accept_restarts", [True, False])
def test_versions_begin_anew(accept_restarts: bool) -> None:
    instances = Instances(snapshots(accept_restarts=accept_restarts))
    instances.step(1, stored=[1, 2, 3])
    assert instances.believed(10) == {1, 2, 3}  # version 3
    instances.go_down(11)
    instances.come_back(12)  # versions 1 and 2: an empty cache, twice
    instances.step(13, stored=[4])  # version 3
    assert instances.believed(20) == ({4} if accept_restarts else {1, 2, 3})
    instances.step(21, stored=[5])  # version 4 has passed the old one
    assert instances.believed(30) == {4, 5}


def test_what_is_forgotten_comes_back_with_the_next_snapshot() -> None:
    instances = Instances(snapshots(accept_restarts=False))
    instances.step(1, stored=[1, 2, 3])
    assert instances.believed(10) == {1, 2, 3}
    instances.go_down(11)
    instances.forget(11)
    assert instances.believed(12) == set()
    instances.come_back(15)
    instances.step(16, stored=[4])
    assert instances.believed(20) == {4}


def test_the_adaptive_interval() -> None:
    instances = Instances(
        snapshots(interval=0.1, adaptive=True, shortest=0.05, longest=0.2, target=2)
    )
    for ms in range(1, 300):  # ten blocks in each of the first turns
        if ms % 10 == 0:
            instances.step(ms, stored=[ms])
    line = instances.arrays.lines[0, 0]
    instances.hear(250 * 10**9)  # turns at 0, 100, 200: differences of 0, 10, 10
    assert line["interval"] == 70 * 10**9
    assert line["next_turn"] == 270 * 10**9
    instances.hear(320 * 10**9)  # 270: 7 blocks, 319: 2 blocks; mean of all above 2
    assert line["interval"] == 50 * 10**9  # 49 and 34.3 are too short


# --- own decisions ---


def test_own_decisions_expire_and_overflow() -> None:
    instances = Instances(Index(source="none", own=OwnDecisions(ttl=0.010, blocks=3)), 2)
    instances.send(1, [1, 2, 4, 8], i=1)
    assert instances.believed(1, i=1) == {1, 2, 4}  # a prompt loses its tail first
    instances.send(2, [1, 3], i=1)
    assert instances.believed(2, i=1) == {1, 3, 2}
    assert instances.depths([1, 3, 6]) == [0, 2]
    assert instances.believed(10.9, i=1) == {1, 2, 3}
    assert instances.believed(11, i=1) == {1, 3}
    assert instances.believed(12, i=1) == set()
    assert instances.arrays.control[0]["entries"] == 0


def test_speculation_bridges_the_time_until_the_report() -> None:
    index = snapshots().model_copy(update={"own": OwnDecisions(ttl=0.005)})
    instances = Instances(index)
    instances.send(1, [1, 2])
    assert instances.believed(1) == {1, 2}
    instances.step(4, stored=[1])
    assert instances.believed(6) == set()
    instances.send(8, [1, 2])
    assert instances.believed(10) == {1, 2}
    assert instances.believed(13) == {1}


# --- cost and room ---


def test_what_messages_weigh() -> None:
    instances = Instances(events())
    instances.step(1, stored=[1, 2, 4, 3])  # a run of three after nothing, one after block 1
    instances.step(2, removed=[4, 3])
    instances.believed(2)
    control = instances.arrays.control[0]
    # Headers of 32 B; a stored block: its hash and 16 tokens of 4 B; each run: the hash before it.
    assert control["bytes"] == (32 + 4 * (8 + 64) + 2 * 8) + (32 + 2 * 8)
    assert control["messages"] == 2
    instances = Instances(snapshots())
    instances.step(1, stored=[1, 2, 4])
    instances.step(15, removed=[4])
    instances.believed(30)
    control = instances.arrays.control[0]
    assert control["bytes"] == 4 * 32 + 8 * (0 + 3 + 2 + 2)
    assert control["messages"] == 4


def test_an_index_grows_with_what_it_holds() -> None:
    protections = Events(recover=False, drop_descendants=True)
    index = Index(source="events", events=protections, own=OwnDecisions(ttl=1.0))
    instances = Instances(index, num_slots=4096, routers=2)
    capacity = instances.arrays.beliefs.entries.shape[1]
    others = range(3000, 3100 + capacity // 2)
    keys = list(range(1, 2001))
    instances.step(1, stored=keys)
    instances.believed(1)
    instances.send(1, others)
    instances.hear(2 * 10**9)
    instances.hear(3 * 10**9)
    assert instances.arrays.beliefs.entries.shape[1] == 2 * capacity
    assert instances.believed(4) == {*keys, *others}
    assert instances.believed(4, w=1) == set(keys)
    instances.step(5, removed=[2])
    below = {key for key in keys if bin(key).startswith("0b10")}
    assert instances.believed(5, w=1) == set(keys) - below


def test_what_does_not_fit_is_counted() -> None:
    instances = Instances(events(), num_slots=4096, journal=4096)
    instances.arrays.config["delay"] = 10**12
    room = instances.arrays.under_way.shape[2] - 1
    for k in range(room + 5):
        instances.step(k + 1, stored=[k + 1])
    instances.hear((room + 5) * 10**9)
    assert instances.arrays.control[0]["refused"] == 5
    assert instances.believed(5000) == set(range(1, room + 1))


def test_a_journal_that_was_written_over_is_a_gap() -> None:
    lossy, safe = (
        Instances(events(recover=recover), journal=4, num_slots=64) for recover in (False, True)
    )
    for instances in (lossy, safe):
        for k in range(6):
            instances.step(k + 1, stored=[k + 1])
        instances.believed(6)
        assert instances.arrays.control[0]["overrun"] == 2
    assert lossy.believed() == {3, 4, 5, 6}
    assert safe.believed() == {1, 2, 3, 4, 5, 6}
