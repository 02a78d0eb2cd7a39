"""The router's index once more in plain Python: sets, dictionaries and one queue of what happens.

Independent of `prefixgym.envs.view.index`: everything happens in its turn, messages carry copies of
their content, and nothing is ever forgotten for want of room. Only the random draws are the same.
"""

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from prefixgym.envs.clock import to_ticks
from prefixgym.envs.cluster.journal import CLEARED, STORED
from prefixgym.envs.rng import uniform
from prefixgym.envs.view.knowledge import Index

Change = tuple[int, int, int]  # kind, key, parent


@dataclass
class Publisher:
    """An instance, as one router sees it."""

    cached: set[int] = field(default_factory=set)
    silent: bool = False
    epoch: int = 0
    version: int = 0
    sent: list[list[Change]] = field(default_factory=list)  # of this epoch, by number
    serial: int = 0


@dataclass
class Subscription:
    """What one router has heard of an instance."""

    known: set[int] = field(default_factory=set)
    own: dict[int, int] = field(default_factory=dict)  # time of the last routing, oldest first
    epoch: int = 0
    heard: int = -1
    held: dict[int, list[Change]] = field(default_factory=dict)
    asked: bool = False
    dates: dict[int, int] = field(default_factory=dict)  # message that changed a block last
    floor: int = 0
    diffs: list[int] = field(default_factory=list)
    interval: int = 0
    last_turn: int = 0
    connection: int = 0


class ReferenceIndex:
    """One router's index in one environment; times are ticks."""

    def __init__(
        self, index: Index, num_instances: int, router: int, routers: int, key: np.uint64
    ) -> None:
        self.index, self.key = index, key
        self.publishers = [Publisher() for _ in range(num_instances)]
        self.lines = [Subscription() for _ in range(num_instances)]
        self.parents: dict[int, int] = {}  # of blocks in the index, where they are told
        self.counts: Counter[str] = Counter()
        self.queue: list[tuple[int, int, int, int, int, str, Any]] = []
        self.order = itertools.count()
        events = index.events
        self.dated = events.tombstones and not (
            events.recover and events.ignore_old and events.buffer > 0
        )
        interval = int(to_ticks(index.snapshots.interval))
        for i, line in enumerate(self.lines):
            line.interval = interval
            if index.source == "snapshots":
                at = interval * (i * routers + router) // (num_instances * routers)
                self.push(at, i, "turn", None)

    # --- what happens, in order ---

    def push(self, time: int, i: int, what: str, content: Any) -> None:
        late = 1 if what == "turn" else 0
        connection = -1 if what == "turn" else self.lines[i].connection
        item = (time, late, next(self.order), i, connection, what, content)
        heapq.heappush(self.queue, item)

    def run(self, until: int) -> None:
        while self.queue and self.queue[0][0] <= until:
            time, _, _, i, connection, what, content = heapq.heappop(self.queue)
            if connection in (-1, self.lines[i].connection):
                getattr(self, what)(time, i, content)
        ttl = int(to_ticks(self.index.own.ttl)) if self.index.own else 0
        for line in self.lines:
            line.own = {key: at for key, at in line.own.items() if at > until - ttl}
        self.tidy()

    def write(self, i: int, stamp: int, epoch: int, changes: list[Change]) -> None:
        """The cache of instance i changes."""
        self.run((stamp >> 1) - 1 + stamp % 2)
        publisher = self.publishers[i]
        if epoch != publisher.epoch:
            publisher.epoch, publisher.version, publisher.sent = epoch, 0, []
        for kind, key, _ in changes:
            publisher.version += 1
            if kind == CLEARED:
                publisher.cached.clear()
            elif kind == STORED:
                publisher.cached.add(key)
            else:
                publisher.cached.remove(key)
        if self.index.source == "events" and not publisher.silent:
            publisher.sent.append(changes)
            batch = (publisher.epoch, len(publisher.sent) - 1, changes)
            self.send(stamp >> 1, i, "batch", batch)

    def silence(self, i: int, time: int, silent: bool) -> None:
        self.run(time - 1)
        self.publishers[i].silent = silent

    def send(self, time: int, i: int, what: str, content: Any) -> None:
        way = self.index.delivery
        draw = 4 * (self.publishers[i].serial * len(self.publishers) + i)
        self.publishers[i].serial += 1
        self.counts["messages"] += 1
        if uniform(self.key, draw) < way.loss:
            self.counts["lost"] += 1
            return
        twice = uniform(self.key, draw + 2) < way.duplication
        self.counts["duplicates"] += twice
        for copy in range(1 + twice):
            jitter = int(uniform(self.key, draw + 1 + 2 * copy) * int(to_ticks(way.jitter)))
            self.push(time + int(to_ticks(way.delay)) + jitter, i, what, content)

    # --- snapshots ---

    def turn(self, time: int, i: int, _: None) -> None:
        publisher, line = self.publishers[i], self.lines[i]
        line.last_turn = time
        self.push(time + line.interval, i, "turn", None)
        if not publisher.silent:
            content = (publisher.epoch, publisher.version, frozenset(publisher.cached))
            self.send(time, i, "snapshot", content)

    def snapshot(self, time: int, i: int, content: tuple[int, int, frozenset[int]]) -> None:
        epoch, version, cached = content
        line, snapshots = self.lines[i], self.index.snapshots
        if snapshots.accept_restarts:
            is_newer = (epoch, version) > (line.epoch, line.heard)
        else:
            is_newer = version > line.heard
        if not is_newer:
            return
        line.diffs = [*line.diffs[-29:], len(line.known ^ cached)]
        line.known = set(cached)
        line.epoch, line.heard = epoch, version
        if snapshots.adaptive and len(line.diffs) >= 3:
            mean = Fraction(sum(line.diffs), len(line.diffs))
            if 10 * abs(mean - snapshots.target) < snapshots.target:
                return
            line.interval = line.interval * (7 if mean > snapshots.target else 13) // 10
            line.interval = max(line.interval, int(to_ticks(snapshots.shortest)))
            line.interval = min(line.interval, int(to_ticks(snapshots.longest)))
            kept = [item for item in self.queue if (item[3], item[5]) != (i, "turn")]
            self.queue = kept
            heapq.heapify(self.queue)
            self.push(max(time, line.last_turn + line.interval), i, "turn", None)

    # --- events ---

    def batch(self, time: int, i: int, content: tuple[int, int, list[Change]]) -> None:
        epoch, number, changes = content
        line, events = self.lines[i], self.index.events
        if not self.is_current(i, epoch) or (number <= line.heard and events.ignore_old):
            return
        if events.recover and number > line.heard + 1:
            if events.buffer == 0:
                self.ask(time, i, number - 1)
                self.take_in(i, number, changes)
                line.heard = number
                return
            line.held[number] = changes
            if len(line.held) > events.buffer:
                del line.held[min(line.held)]
            if not line.asked:
                self.ask(time, i, None)
            return
        self.take_in(i, number, changes)
        line.heard = max(line.heard, number)
        self.take_in_held(time, i)

    def is_current(self, i: int, epoch: int) -> bool:
        """Whether a message of that epoch counts; with the first of a new one all else ends."""
        line = self.lines[i]
        if not self.index.events.barriers or epoch == line.epoch:
            return True
        if epoch < line.epoch:
            return False
        self.start_anew(i)
        line.epoch = epoch
        return True

    def start_anew(self, i: int) -> None:
        line = self.lines[i]
        line.known, line.held, line.dates = set(), {}, {}
        line.heard, line.floor, line.asked = -1, 0, False

    def take_in_held(self, time: int, i: int) -> None:
        line = self.lines[i]
        while line.held and min(line.held) <= line.heard + 1:
            number = min(line.held)
            changes = line.held.pop(number)
            if number == line.heard + 1:
                self.take_in(i, number, changes)
                line.heard = number
        if line.held and not line.asked:
            self.ask(time, i, None)

    def take_in(self, i: int, number: int, changes: list[Change]) -> None:
        line, events = self.lines[i], self.index.events
        for kind, key, parent in changes:
            if self.dated and (number < line.floor or line.dates.get(key, -1) > number):
                continue
            if kind == CLEARED:
                if events.barriers and self.dated:
                    line.known = {k for k in line.known if line.dates[k] > number}
                    line.floor = number
                elif events.barriers:
                    line.known = set()
            elif kind == STORED:
                if events.require_parent and parent != -1 and parent not in line.known:
                    self.counts["dropped"] += 1
                    continue
                line.known.add(key)
                line.dates[key] = number
                if parent != -1:
                    self.parents.setdefault(key, parent)
            else:
                line.known.discard(key)
                line.dates[key] = number
                if events.drop_descendants:
                    line.known -= {k for k in line.known if self.follows(k, key)}
            self.tidy()

    def follows(self, key: int, top: int) -> bool:
        while key in self.parents:
            key = self.parents[key]
            if key == top:
                return True
        return False

    def tidy(self) -> None:
        """Parents are forgotten with the blocks that are."""
        while True:
            before = set(self.parents.values())
            needed = before.union(*(line.known for line in self.lines))
            needed = needed.union(*(line.own for line in self.lines))
            gone = [key for key in self.parents if key not in needed]
            if not gone:
                return
            for key in gone:
                del self.parents[key]

    def ask(self, time: int, i: int, last: int | None) -> None:
        line = self.lines[i]
        line.asked = True
        self.counts["gaps"] += 1
        self.counts["messages"] += 1
        there = int(to_ticks(self.index.events.round_trip)) // 2
        self.push(time + there, i, "question", (line.epoch, line.heard + 1, last))

    def question(self, time: int, i: int, content: tuple[int, int, int | None]) -> None:
        epoch, first, last = content
        publisher, events = self.publishers[i], self.index.events
        round_trip = int(to_ticks(events.round_trip))
        back = time + round_trip - round_trip // 2
        newest = len(publisher.sent) - 1
        another = events.barriers and epoch != publisher.epoch
        if publisher.silent or (first > newest and not another):
            self.push(back, i, "no_answer", epoch)
            return
        self.counts["messages"] += 1
        if another or first <= newest - events.replay:
            dump = (publisher.epoch, newest, frozenset(publisher.cached))
            self.push(back, i, "dump", dump)
        else:
            last = newest if last is None else min(last, newest)
            replay = [(n, publisher.sent[n]) for n in range(first, last + 1)]
            self.push(back, i, "replay", (publisher.epoch, replay))

    def no_answer(self, time: int, i: int, epoch: int) -> None:
        if self.is_current(i, epoch):
            self.counts["unanswered"] += 1
            self.lines[i].asked, self.lines[i].held = False, {}

    def replay(self, time: int, i: int, content: tuple[int, list[Any]]) -> None:
        epoch, batches = content
        if not self.is_current(i, epoch):
            return
        line = self.lines[i]
        self.counts["replays"] += 1
        line.asked = False
        for number, changes in batches:
            if number > line.heard or self.index.events.buffer == 0:
                self.take_in(i, number, changes)
                line.heard = max(line.heard, number)
        self.take_in_held(time, i)

    def dump(self, time: int, i: int, content: tuple[int, int, frozenset[int]]) -> None:
        epoch, number, cached = content
        if not self.is_current(i, epoch):
            return
        line = self.lines[i]
        line.asked = False
        stale = number <= line.heard and self.index.events.buffer > 0
        if not stale and not (self.dated and number < line.floor):
            self.counts["dumps"] += 1
            newer = {k for k, date in line.dates.items() if self.dated and date > number}
            line.known = (line.known & newer) | (cached - newer)
            line.dates |= dict.fromkeys(cached - newer, number)
            line.heard = max(line.heard, number)
            line.floor = number + 1
        self.take_in_held(time, i)

    # --- decisions ---

    def forget(self, i: int) -> None:
        line = self.lines[i]
        line.own = {}
        self.start_anew(i)
        line.connection += 1

    def note_sent(self, i: int, keys: list[int], time: int) -> None:
        if self.index.own is None:
            return
        own = self.lines[i].own
        for key in reversed(keys):
            own.pop(key, None)
            own[key] = time
            if self.index.own.blocks and len(own) > self.index.own.blocks:
                del own[next(iter(own))]

    def believed(self, i: int) -> set[int]:
        return self.lines[i].known | set(self.lines[i].own)

    def depth(self, i: int, keys: list[int]) -> int:
        believed = self.believed(i)
        return next((k for k, key in enumerate(keys) if key not in believed), len(keys))
