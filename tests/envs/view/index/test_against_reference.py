"""The kernels' index equals plain Python's at every decision, whatever happens in between."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from made_journals import MS, NONE, Instances, parent_of, path_to
from reference_index import Change, ReferenceIndex

from prefixgym.envs.cluster.journal import CLEARED, REMOVED, STORED
from prefixgym.envs.view.knowledge import Delivery, Events, Index, OwnDecisions, Snapshots

NUM_INSTANCES, ROUTERS, ENV = 2, 2, 1
KEYS = 20


def in_ms(strategy: st.SearchStrategy[float]) -> st.SearchStrategy[float]:
    return strategy.map(lambda ms: ms / 1000)


WAYS = st.builds(
    Delivery,
    delay=in_ms(st.sampled_from([0, 0, 1, 4])),
    jitter=in_ms(st.sampled_from([0, 0, 1, 6])),
    loss=st.sampled_from([0.0, 0.0, 0.3]),
    duplication=st.sampled_from([0.0, 0.0, 0.4]),
)
OWN = st.none() | st.builds(
    OwnDecisions, ttl=in_ms(st.sampled_from([2, 9])), blocks=st.sampled_from([0, 3])
)
SNAPSHOTS = st.builds(
    Snapshots,
    interval=in_ms(st.sampled_from([1, 3.5, 8])),
    adaptive=st.booleans(),
    shortest=st.just(0.001),
    longest=st.just(0.01),
    target=st.sampled_from([0, 2]),
    accept_restarts=st.booleans(),
)
EVENTS = st.builds(
    Events,
    ignore_old=st.booleans(),
    recover=st.booleans(),
    buffer=st.sampled_from([0, 1, 3, 1024]),
    replay=st.sampled_from([0, 2, 100]),
    round_trip=in_ms(st.sampled_from([0, 1, 5])),
    barriers=st.booleans(),
    require_parent=st.booleans(),
    tombstones=st.booleans(),
)
CASCADE = EVENTS.map(
    lambda events: events.model_copy(update={"drop_descendants": True, "tombstones": False})
)
INDEXES = (
    st.builds(Index, source=st.just("snapshots"), delivery=WAYS, snapshots=SNAPSHOTS, own=OWN)
    | st.builds(Index, source=st.just("events"), delivery=WAYS, events=EVENTS, own=OWN)
    | st.builds(Index, source=st.just("events"), delivery=WAYS, events=CASCADE)
    | st.builds(Index, source=st.just("none"), own=OWN.filter(lambda own: own is not None))
)

WHAT = ["step"] * 3 + ["start", "decide"] * 2 + ["route", "clear", "restart", "silence", "forget"]
# What happens: half milliseconds since the last thing, what, to whom, and which blocks.
ACTS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 1, 2, 5, 20]),
        st.sampled_from(WHAT),
        st.integers(0, NUM_INSTANCES - 1),
        st.lists(st.integers(1, KEYS), max_size=4),
    ),
    min_size=10,
    max_size=40,
)
PHASE = {"step": 0, "clear": 0, "start": 3}  # within one instant


@dataclass
class Played:
    """The same story for the kernels' routers and for the reference."""

    index: Index
    seed: int
    instances: Instances = field(init=False)
    references: list[ReferenceIndex] = field(init=False)
    silent: set[int] = field(default_factory=set)
    down: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.instances = Instances(
            self.index, NUM_INSTANCES, num_envs=ENV + 1, routers=ROUTERS, seed=self.seed
        )
        self.rows = range(ENV * ROUTERS, (ENV + 1) * ROUTERS)
        self.references = [
            ReferenceIndex(self.index, NUM_INSTANCES, r, ROUTERS, self.instances.keys[w])
            for r, w in enumerate(self.rows)
        ]

    def change(self, i: int, stamp: int, changes: list[Change]) -> None:
        for kind, key, _ in changes:
            self.instances.write(ENV, i, stamp, kind, key)
        for reference in self.references:
            reference.write(i, stamp, int(self.instances.epochs[ENV, i]), changes)

    def silence(self, i: int, time: int) -> None:
        silent = i in self.silent or i in self.down
        self.instances.set_silent(time / MS, silent, i=i, e=ENV)
        for reference in self.references:
            reference.silence(i, time, silent)

    def restart(self, i: int, time: int) -> None:
        self.down ^= {i}
        self.silence(i, time)
        self.instances.epochs[ENV, i] += i in self.down
        self.change(i, 2 * time, [(CLEARED, NONE, NONE)])

    def act(self, what: str, i: int, keys: list[int], time: int) -> None:
        cached = self.instances.cached[ENV][i]
        if what in ("step", "start") and i not in self.down and keys:
            kinds = [REMOVED if key in cached else STORED for key in dict.fromkeys(keys)]
            changes = [
                (kind, key, parent_of(key))
                for kind, key in zip(kinds, dict.fromkeys(keys), strict=True)
            ]
            self.change(i, 2 * time + (what == "start"), changes)
        elif what == "clear" and i not in self.down:
            self.change(i, 2 * time, [(CLEARED, NONE, NONE)])
        elif what == "restart":
            self.restart(i, time)
        elif what == "silence":
            self.silent ^= {i}
            self.silence(i, time)
        elif what == "forget":
            self.instances.forget(time / MS, i=i, e=ENV)
            for reference in self.references:
                reference.run(time - 1)
                reference.forget(i)
        elif what in ("decide", "route"):
            self.decide(time)
            if what == "route" and keys:
                for w, reference in zip(self.rows, self.references, strict=True):
                    self.instances.send(time / MS, path_to(keys[0]), i=i, w=w)
                    reference.note_sent(i, path_to(keys[0]), time)

    def decide(self, time: int) -> None:
        self.instances.hear(time, e=ENV)
        for w, reference in zip(self.rows, self.references, strict=True):
            reference.run(time)
            for i in range(NUM_INSTANCES):
                assert self.instances.believed(i=i, w=w) == reference.believed(i)
            for key in (KEYS, KEYS - 1, 8):
                prompt = path_to(key)
                expected = [reference.depth(i, prompt) for i in range(NUM_INSTANCES)]
                assert self.instances.depths(prompt, w=w) == expected
            control = self.instances.arrays.control[w]
            counted = {name: int(control[name]) for name in COUNTED}
            assert counted == {name: reference.counts[name] for name in COUNTED}
            assert control["refused"] == control["overrun"] == 0
            distinct = set().union(*(reference.believed(i) for i in range(NUM_INSTANCES)))
            assert control["entries"] >= len(distinct)


COUNTED = ["messages", "lost", "duplicates", "gaps", "replays", "dumps", "unanswered", "dropped"]


@settings(max_examples=150, deadline=None)
@given(INDEXES, ACTS, st.integers(0, 50))
def test_every_decision_sees_what_the_reference_sees(
    index: Index, acts: list[tuple[int, str, int, list[int]]], seed: int
) -> None:
    played, time, phase = Played(index, seed), 0, 0
    for wait, what, i, keys in acts:
        # At one instant: steps end, then faults, then decisions, then steps start.
        place = PHASE.get(what, 2 if what in ("decide", "route") else 1)
        later = wait * MS // 2 or (MS // 2 if place < phase or place in (0, 3) else 0)
        time, phase = time + later, place
        played.act(what, i, keys, time)
    played.decide(time + 100 * MS)
    # Nobody has touched the other environment.
    assert played.instances.believed(w=0) == set()
