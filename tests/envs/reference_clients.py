"""The clients of a `ReferenceSimulation`: when they go away, and from where."""

from functools import partial
from typing import Protocol

import numpy as np
from reference_engine import Request
from reference_faults import Instance, ReferenceFaults, Timers
from reference_replica import ReferenceReplica

from prefixgym.envs.clients import Clients
from prefixgym.envs.clock import to_ticks
from prefixgym.envs.rng import stream_key, uniform
from prefixgym.envs.simulation import CLIENT_STREAM


def client_key(seed: int) -> np.uint64:
    """The key of the draws for the clients of the episode with this seed."""
    return stream_key(seed, CLIENT_STREAM)


class Host(Protocol):
    """The simulation whose requests they send."""

    now: int
    arrivals: list[tuple[int, int, int]]
    flights: dict[int, Request]
    replicas: list[ReferenceReplica]
    instances: list[Instance]
    lives: ReferenceFaults
    timers: Timers
    corners: set[str]

    def end_cancelled(self, request: Request) -> None:
        """The request ends because its client has gone."""


class ReferenceClients:
    """What the clients of one episode of `num_rows` requests do by themselves."""

    def __init__(self, host: Host, rules: Clients, key: np.uint64, num_rows: int) -> None:
        self.host, self.rules, self.key, self.num_rows = host, rules, key, num_rows

    def leaks(self, row: int) -> bool:
        """Whether nobody tells the router when this request's client goes away."""
        return uniform(self.key, 2 * self.num_rows + row) < self.rules.leak

    def announce_end(self, row: int) -> None:
        """A request has arrived first: when will its client have had enough of it?"""
        now, timers = self.host.now, self.host.timers
        if self.rules.timeout is not None:
            timers.add(now + int(to_ticks(self.rules.timeout)), partial(self._give_up, row))
        if uniform(self.key, 2 * row) < self.rules.cancel:
            drawn = uniform(self.key, 2 * row + 1)
            after = int(to_ticks(-self.rules.cancel_after * np.log(1.0 - drawn)))
            timers.add(now + after, partial(self._leave, row))

    def _give_up(self, row: int) -> None:
        """Its time is up."""
        if row in self.host.flights:
            first_token = self.host.flights[row].first_token
            if first_token is None:
                self._leave(row)
            elif first_token == self.host.now:
                self.host.corners.add("answered when its time was up")

    def _leave(self, row: int) -> None:
        """The client of a request goes away, wherever the request is."""
        host = self.host
        if row not in host.flights:
            return
        request = host.flights[row]
        held = host.replicas[request.replica].held[request.instance]
        instance = host.instances[request.instance]
        if request in instance.engine.running:
            request.is_abandoned = True
            is_between = instance.engine.step_end is None
            host.corners.add("cancelled between steps" if is_between else "cancelled in a step")
            return
        if request in held:
            held.remove(request)
            place = "a router"
        elif request in instance.engine.waiting:
            instance.engine.waiting.remove(request)
            place = "a queue"
        elif request in instance.limbo:
            instance.limbo.remove(request)
            place = "limbo"
        else:
            host.arrivals[:] = [arrival for arrival in host.arrivals if arrival[2] != row]
            place = "wait for its next attempt"
        host.corners.add(f"cancelled in {place}")
        host.end_cancelled(request)
        host.lives.check_drained(request.instance)
