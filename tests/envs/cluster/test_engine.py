"""The engine's kernels, event by event: a consistent state, time that only moves forward."""

import numpy as np
from cluster_invariants import check_cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import Case, cases
from reference_simulation import play_reference

from prefixgym.envs.cluster import state
from prefixgym.envs.cluster.engine import (
    enqueue,
    next_due,
    process_event,
    reset_cluster,
    return_flight,
    take_flight,
)


class EventByEvent:
    """Environment 0 of a cluster; looks at it after every event."""

    def __init__(self, case: Case, longest_leap: int) -> None:
        requests = case.tapes[0].requests
        self.block_ids = [case.tapes[0].block_ids(row) for row in range(len(requests))]
        tokens = int((requests["prompt_tokens"] + requests["output_tokens"]).max())
        self.c = state.allocate(
            case.cluster,
            1,
            num_flights=len(requests),
            blocks_per_flight=tokens // case.cluster.block_size + 1,
            longest_leap=longest_leap,
        )
        self.requests = requests
        self.time = 0
        self.first_tokens: dict[int, int] = {}
        self.ends: dict[int, int] = {}
        reset_cluster(self.c, 0)
        check_cluster(self.c, 0)

    def run_until(self, due: int) -> None:
        """Process events that are due by then (`STATUS.due`)."""
        status = self.c.status[0]
        while status["due"].min() <= due:
            i = next_due(self.c, 0)
            time, steps = status["due"][i] // 2, int(self.c.instances[0, i]["steps"])
            ends_step = status["mode"][i] != state.READY
            assert time >= self.time
            self.time = time
            process_event(self.c, 0, i)
            assert (self.c.instances[0, i]["steps"] > steps) == ends_step
            self._take_events()

    def dispatch(self, row: int, instance: int, time: int) -> None:
        q = take_flight(self.c, 0)
        flight, request, ids = self.c.flights[0, q], self.requests[row], self.block_ids[row]
        flight["arrival"] = time
        flight["row"] = row
        flight["decoder"] = state.NONE
        for name in ("prompt_tokens", "output_tokens"):
            flight[name] = request[name]
        flight["cacheable"] = request["cacheable_blocks"]
        self.c.flight_blocks[0, q, : len(ids)] = ids
        enqueue(self.c, 0, instance, q, time, False)
        self._take_events()

    def _take_events(self) -> None:
        environment = self.c.environments[0]
        for event in self.c.events[0, : environment["num_events"]]:
            if event["kind"] == state.STARTED:
                continue
            row = int(self.c.flights[0, event["flight"]]["row"])
            times = self.ends if event["kind"] == state.END else self.first_tokens
            assert row not in times
            times[row] = int(event["time"])
            if event["kind"] == state.END:
                return_flight(self.c, 0, event["flight"])
        environment["num_events"] = 0
        check_cluster(self.c, 0)


@given(case=cases(most_requests=25), longest_leap=st.sampled_from([1, 2, 7, 2**31 - 1]))
@settings(max_examples=30)
def test_every_event_leaves_a_consistent_state(case: Case, longest_leap: int) -> None:
    expected = play_reference(case)
    cluster = EventByEvent(case, longest_leap)
    for decision, action in zip(expected.decisions, case.actions[0], strict=False):
        cluster.run_until(2 * decision.time)
        if action < len(case.cluster.instances):  # else the router rejects it
            cluster.dispatch(decision.row, int(action), decision.time)
    cluster.run_until(state.NEVER_DUE - 1)
    routed = [r for r in expected.ended if r.row in cluster.ends]
    assert len(routed) == np.count_nonzero(
        case.actions[0, : len(expected.decisions)] < len(case.cluster.instances)
    )
    assert cluster.ends == {request.row: request.end for request in routed}
    assert cluster.first_tokens == {
        request.row: request.first_token
        for request in expected.ended
        if request.first_token is not None
    }
    assert (cluster.c.status[0]["due"] == state.NEVER_DUE).all()
    assert not cluster.c.slots[0]["users"].any()
