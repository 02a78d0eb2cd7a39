"""A streamed episode is the whole tape's, bit for bit, whatever the chunks."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from random_cases import SLOS, Case, Tapes, build_tape, cases, random_draws
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.profiles import constant_profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.streaming import MOST_ROWS, StreamedEpisode
from prefixgym.envs.view.knowledge import Knowledge
from prefixgym.envs.workload.chunk import Chunk
from prefixgym.envs.workload.split import runs_of
from prefixgym.envs.workload.tape import NO_ROW, Tape


def chunks_of(tape: Tape, rows: int) -> Iterator[Chunk]:
    """The tape in chunks of at least `rows` requests each, but for the last."""
    requests = tape.requests
    every = np.arange(len(requests))
    links = [(every[requests[k] != NO_ROW], requests[k]) for k in ("parent", "then")]
    tied = np.concatenate([[a, b[b != NO_ROW]] for a, b in links], axis=1)
    shape = (len(requests), len(requests))
    part = connected_components(coo_array((np.ones(tied.shape[1]), tied), shape))[1]
    # Parts that lie apart, root by root, may be in different chunks.
    root = requests["parent"] == NO_ROW
    first, last = np.full(part.max() + 1, len(every)), np.zeros(part.max() + 1, int)
    np.minimum.at(first, part[root], every[root])
    np.maximum.at(last, part[root], every[root])
    begun: list[int] = []
    for k in np.argsort(first):
        if len(begun) >= rows and first[k] > max(last[part[begun]]):
            yield chunk_of(tape, np.sort(begun))
            begun = []
        begun += np.flatnonzero(part == k).tolist()
    yield chunk_of(tape, np.sort(begun))


def chunk_of(tape: Tape, rows: NDArray[np.int64]) -> Chunk:
    requests = tape.requests[rows]
    for name in ("parent", "first_child", "next_sibling", "then"):
        linked = requests[name] != NO_ROW
        requests[name][linked] = np.searchsorted(rows, requests[name][linked])
    place, num_runs = runs_of(requests)
    requests["first_run"] = np.cumsum(num_runs) - num_runs
    return Chunk(requests, tape.runs[place], tape.block_size, rows)


class Played:
    """An episode of a case, streamed, and what came out of it."""

    def __init__(self, case: Case, rows: int) -> None:
        self.outcomes: list[NDArray[np.void]] = []
        self.seen_again: set[int] = set()
        self.closed: set[int] = set()
        simulation = Simulation(
            case.cluster, Tapes(case.tapes), SLOS, case.knowledge, 1, record=True
        )
        self.chunks = list(chunks_of(case.tapes[0], rows))
        self.episode = StreamedEpisode(simulation, self.chunks, self._take)

    def _take(self, outcomes: NDArray[np.void], sessions: NDArray[np.int32]) -> None:
        self.outcomes.append(outcomes)
        found = set(outcomes["session"].tolist())
        self.seen_again |= found & self.closed
        self.closed |= found - set(sessions.tolist())


def assert_same(found: NDArray[np.void], expected: NDArray[np.void]) -> None:
    assert found.shape == expected.shape
    for name in expected.dtype.names or ():
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


@given(case=cases(), rows=st.integers(1, 40))
@settings(max_examples=100)
def test_chunks_of_any_size_give_the_same_views_and_outcomes(case: Case, rows: int) -> None:
    whole = case.simulation()
    played = Played(case, rows)
    streamed = played.episode.simulation
    for actions in case.actions.T:
        for name in ("requests", "instances"):
            assert_same(getattr(streamed.view, name), getattr(whole.view, name))
        count = int(whole.view.requests["num_blocks"][0])
        found, expected = (s.view.block_ids[0, :count].tolist() for s in (streamed, whole))
        assert found == expected
        whole.step(actions)
        played.episode.step(actions)
    assert played.episode.done
    assert_same(np.concatenate(played.outcomes), whole.outcomes(0))
    assert_same(streamed.instance_totals, whole.instance_totals)
    assert not played.seen_again


@given(case=cases(), rows=st.integers(1, 40))
@settings(max_examples=50)
def test_fixed_decisions_give_the_same_outcomes(case: Case, rows: int) -> None:
    whole = case.simulation()
    whole.play(case.actions)
    played = Played(case, rows)
    padded = np.concatenate([case.actions, case.actions], axis=1)
    played.episode.play(lambda count, first: padded[:, first : first + count])
    assert_same(np.concatenate(played.outcomes), whole.outcomes(0))
    assert_same(played.episode.simulation.instance_totals, whole.instance_totals)


def test_follow_ups_at_the_same_time_come_in_the_order_of_the_whole() -> None:
    # Rows 2 and 3 both arrive at 3 ms; row 3 is in the first chunk, row 2 in the second.
    (draw,) = random_draws(np.random.default_rng(0), 1, 4, 2, whole_ms=True)
    draw = replace(draw, parent_back=0, join_back=0, output_tokens=1)
    rows = [
        replace(draw, gap=0),
        replace(draw, gap=TICKS_PER_MS),
        replace(draw, gap=TICKS_PER_MS, parent_back=1),
        replace(draw, gap=2 * TICKS_PER_MS, parent_back=3),
    ]
    spec = InstanceSpec(constant_profile(1.0, 1.0), kv_blocks=50)
    actions = np.array([[0, 1, 0, 1]])
    case = Case(ClusterSpec((spec,) * 2, 4), Knowledge(), (build_tape(rows, 4),), actions)
    whole, played = case.simulation(), Played(case, 1)
    assert [chunk.rows.tolist() for chunk in played.chunks] == [[0, 3], [1, 2]]
    for k in range(4):
        whole.step(actions[:, k])
        played.episode.step(actions[:, k])
    assert_same(np.concatenate(played.outcomes), whole.outcomes(0))
    late = whole.outcomes(0)[2:]
    assert sorted(late["row"].tolist()) == [2, 3]
    np.testing.assert_allclose(late["arrival"], 0.003)


def play_round_robin(played: Played) -> None:
    for k in itertools.count():
        if played.episode.done:
            return
        played.episode.step(np.array([k % 2]))


def long_case(count: int) -> Case:
    """Sessions of two turns, or of one, in a steady stream."""
    rng = np.random.default_rng(0)
    draws = [
        replace(draw, gap=3 * TICKS_PER_MS, parent_back=int(k % 3 == 2), join_back=0)
        for k, draw in enumerate(random_draws(rng, count, 4, 2, whole_ms=True))
    ]
    spec = InstanceSpec(constant_profile(1.0, 1.0), kv_blocks=100)
    tape = build_tape(draws, 4)
    return Case(ClusterSpec((spec,) * 2, 4), Knowledge(), (tape,), np.empty((1, 0), np.int64))


def test_rows_in_memory_are_a_chunk_and_what_is_under_way() -> None:
    sizes = []
    for count in (500, 3000):
        played = Played(long_case(count), 50)
        play_round_robin(played)
        arrays = played.episode.simulation.arrays
        sizes.append(arrays.tapes.shape[1])
        assert sum(map(len, played.outcomes)) == count
        assert arrays.outcomes.shape[1] <= arrays.tapes.shape[1]
        assert max(map(len, played.outcomes)) <= arrays.tapes.shape[1]
    assert sizes[1] <= 1.2 * sizes[0] < 200


def play(simulation: Simulation, chunks: list[Chunk]) -> None:
    episode = StreamedEpisode(simulation, chunks, lambda outcomes, sessions: None)
    while not episode.done:
        episode.step(np.array([0]))


def test_what_is_no_stream_is_refused() -> None:
    case = long_case(200)
    simulation = case.simulation()
    first, second, *_ = chunks_of(case.tapes[0], 50)
    rootless = replace(second, requests=second.requests.copy())
    rootless.requests["parent"] = 0
    for chunks, reason in (
        ([], "chunks: found none"),
        ([second, first], "first root's arrival: found 3000000000, must not be before"),
        ([first, replace(second, rows=first.rows)], "first root's row: found 0, must not be"),
        ([first, replace(second, block_size=8)], "block_size: found 8, the cluster's is 4"),
        ([first, rootless], "found no root"),
        ([replace(first, rows=first.rows + MOST_ROWS)], "must be below 2147483648"),
    ):
        with pytest.raises(ValueError, match=reason):
            play(simulation, chunks)
    with pytest.raises(ValueError, match="found num_envs=1, record=False, must be 1 and True"):
        play(Simulation(case.cluster, Tapes(case.tapes), SLOS), [first])
