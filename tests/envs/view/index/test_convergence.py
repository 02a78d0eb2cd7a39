"""Whatever was lost, late, doubled or restarted: with all protections the index becomes the truth.

Needed is that all messages have arrived and that one more comes from each instance, since nobody
can miss the last one; for an event index also that no publisher was dead, see `test_protections`.
"""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_journals import MS, Instances

from prefixgym.envs.view.knowledge import Delivery, Events, Index, Snapshots

NUM_INSTANCES = 3
WAY = Delivery(delay=0.003, jitter=0.008, loss=0.3, duplication=0.3)
INDEXES = {
    "snapshots": Index(source="snapshots", delivery=WAY, snapshots=Snapshots(interval=0.004)),
    "adaptive snapshots": Index(
        source="snapshots", delivery=WAY, snapshots=Snapshots(interval=0.004, adaptive=True)
    ),
    "events": Index(source="events", delivery=WAY),
    "events, whole caches only": Index(source="events", delivery=WAY, events=Events(replay=0)),
    "events, little held back": Index(source="events", delivery=WAY, events=Events(buffer=2)),
    "events, old ones heard": Index(source="events", delivery=WAY, events=Events(ignore_old=False)),
    "events, nothing held back": Index(source="events", delivery=WAY, events=Events(buffer=0)),
}
ACTS = st.lists(
    st.tuples(
        st.integers(0, 6),  # ms since the last
        st.sampled_from([*["step"] * 4, "clear", "restart", "hear"]),
        st.integers(0, NUM_INSTANCES - 1),
        st.lists(st.integers(1, 30), min_size=1, max_size=5),
    ),
    max_size=40,
)


def play(instances: Instances, acts: list[tuple[int, str, int, list[int]]], silences: bool) -> int:
    """Let things happen, then all be over; the time in ms."""
    ms, down, silent = 1, set[int](), set[int]()
    for wait, what, i, keys in acts:
        ms += wait
        cached = instances.cached[0][i]
        if what == "step" and i not in down:
            removed = [key for key in dict.fromkeys(keys) if key in cached]
            instances.step(ms, set(keys) - cached, removed, i=i)
        elif what == "clear" and silences:
            silent ^= {i}
            instances.set_silent(ms, bool({i} & (silent | down)), i=i)
        elif what == "clear" and i not in down:
            instances.clear(ms, i=i)
        elif what == "restart" and i in down:
            down.remove(i)
            instances.come_back(ms, i=i)
        elif what == "restart":
            down.add(i)
            instances.go_down(ms, i=i)
            instances.forget(ms, i=i)
        elif what == "hear":
            instances.hear(ms * MS)
    ms += 100
    instances.hear(ms * MS)
    instances.arrays.config["loss"] = 0.0
    for i in range(NUM_INSTANCES):
        instances.set_silent(ms, False, i=i)
        if i in down:
            instances.come_back(ms, i=i)
        instances.step(ms, stored=[100 + ms], i=i)
    return ms + 100


@settings(max_examples=60, deadline=None)
@given(acts=ACTS, journal=st.sampled_from([8, 64, 4096]), seed=st.integers(0, 9))
@pytest.mark.parametrize("name", INDEXES)
def test_the_index_becomes_the_truth(
    name: str, acts: list[tuple[int, str, int, list[int]]], journal: int, seed: int
) -> None:
    index = INDEXES[name]
    # Who holds nothing back does not notice that its answer has been written over.
    assume(index.events.buffer > 0 or journal == 4096)
    instances = Instances(index, NUM_INSTANCES, journal=journal, num_slots=40, seed=seed)
    end = play(instances, acts, silences=index.source == "snapshots")
    for i in range(NUM_INSTANCES):
        assert instances.believed(end, i=i) == instances.cached[0][i]
    if not instances.arrays.config[0]["dated"]:  # removed blocks are not remembered
        distinct = set().union(*instances.cached[0])
        assert instances.arrays.control[0]["entries"] == len(distinct)
