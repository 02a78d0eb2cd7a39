"""The loadaware experiment's requests, GPUs and index."""

import numpy as np
import pytest
from made_views import view_of
from numpy.typing import NDArray

from prefixgym.baselines.router import Router
from prefixgym.envs.clock import TICKS_PER_MS
from prefixgym.envs.cluster.step_time import step_ticks
from prefixgym.envs.view.view import INSTANCE_VIEW, REQUEST_VIEW, View
from prefixgym.envs.workload.tape import NO_ROW
from prefixgym.envs.workload.validate import validate
from prefixgym.experiments.paper.loadaware_testbed import (
    BLOCK_SIZE,
    MATCHED_TOKENS,
    SHARED_BLOCKS,
    Deployment,
    LmcacheRouter,
    Sweep,
    a10_profile,
)


def test_prefixes_are_the_published_ones() -> None:
    # Taken from files made by the study's generator, whose SHA-256 are those of its run.json.
    assert Sweep.prefixes(1)[:12] == (106, 80, 11, 18, 0, 8, 0, 2, 21, 9, 3, 13)
    assert Sweep.prefixes(20)[:12] == (1, 0, 59, 93, 46, 18, 26, 0, 0, 10, 3, 21)
    assert (len(Sweep.prefixes(7)), sum(Sweep.prefixes(7))) == (500, 13_840)


def test_requests_are_sent_as_published() -> None:
    sent = Sweep(16.0).sent
    spans = sent[:, -1] - sent[:, 0]
    assert spans.mean() == pytest.approx(32.2, abs=0.1)  # s, of 500 requests
    assert (np.diff(sent.ravel()) > 0).all()
    assert sent[1:, 0] - sent[:-1, -1] == pytest.approx(60.0)
    slower = Sweep(8.0).sent
    assert np.diff(slower[3]) - 0.0015 == pytest.approx(2 * (np.diff(sent[3]) - 0.0015))


def test_the_sweep_is_a_valid_tape() -> None:
    sweep = Sweep(16.0)
    tape = sweep.tape(0)
    validate(tape)
    requests = tape.requests
    assert len(requests) == sweep.num_sessions == 2 * 128 + 20 * 500
    assert int(requests["num_blocks"].max()) == sweep.max_blocks
    assert np.count_nonzero(requests["parent"][:256] == NO_ROW) == 4
    assert (requests["parent"][256:] == NO_ROW).all()
    assert set(requests["prompt_tokens"][256:]) == {1578}
    # Requests of one prefix share its 96 full blocks and nothing else.
    prefixes = Sweep.prefixes(1)
    same = [256 + i for i in range(500) if prefixes[i] == 0][:2]
    first, second = (tape.block_ids(row) for row in [*same])
    assert (first[:SHARED_BLOCKS] == np.arange(SHARED_BLOCKS)).all()
    assert (first == second).sum() == SHARED_BLOCKS
    assert (tape.block_ids(0)[:SHARED_BLOCKS] == first[:SHARED_BLOCKS]).all()  # of the warm-up


def milliseconds(prefill: int, decoding: int, context: int, slowdown: float = 1.0) -> float:
    """A step that prefills fresh tokens and decodes."""
    cost = a10_profile(slowdown).step_cost()
    sequences = decoding + (prefill > 0)
    work = prefill**2 / 2
    return float(step_ticks(cost, prefill, work, decoding, context, sequences)) / TICKS_PER_MS


def test_the_scaled_gpu_stays_within_its_data_sheet() -> None:
    # 3.08 G parameters of 2 bytes at 600 GB/s; 2.77 G multiply-adds a token at 125 TFLOP/s.
    read = 2 * 3.08 / 600 * 1e3
    kv = 32 * 1600 * 36_864 / 600e9 * 1e3
    assert read < milliseconds(0, 1, 1600) < 1.6 * read
    assert read + kv < milliseconds(0, 32, 32 * 1600) < 1.7 * (read + kv)
    compute = 2 * 2.77e9 * 1578 / 125e12 * 1e3
    assert compute < milliseconds(1578, 0, 0) < 2.2 * compute


def test_slowdown_is_a_factor_on_every_step() -> None:
    for step in ((0, 20, 32_000), (1578, 0, 0), (42, 20, 32_000)):
        assert milliseconds(*step, slowdown=2.5) == pytest.approx(2.5 * milliseconds(*step))


def test_engines_hold_what_vllm_reported() -> None:
    cluster = Deployment().cluster
    assert [cluster.kv_blocks(i) * BLOCK_SIZE for i in range(2)] == [104_624, 104_624]


class Recorder(Router):
    """Keeps the hits that it is shown; always chooses instance 1."""

    name = "recorder"
    source = "this test"

    def __init__(self) -> None:
        self.hits: list[list[int]] = []

    def route(self, view: View) -> NDArray[np.int64]:
        self.hits.append(view.instances["hit_tokens"][0].tolist())
        return np.ones(1, np.int64)


def route(router: Router, deployment: Deployment, prefixes: list[int]) -> list[int]:
    view = view_of(
        deployment.cluster,
        np.zeros(1, REQUEST_VIEW),
        np.zeros((1, 1), np.int64),
        np.zeros((1, 2), INSTANCE_VIEW),
    )
    router.reset(deployment.cluster, [0])
    actions = []
    for prefix in prefixes:
        view.block_ids[0, 0] = prefix * SHARED_BLOCKS
        view.instances["hit_tokens"] = 7
        actions.append(int(router.route(view)[0]))
    return actions


def test_lookups_are_answered_from_host_memory() -> None:
    recorder = Recorder()
    deployment = Deployment(host_prefixes=2, crowded=2)
    # The first of each goes where the warm-up put it: 0, 0, then 1 for even and 0 for odd ones.
    actions = route(LmcacheRouter(recorder, deployment), deployment, [0, 1, 3, 2, 0, 1, 2, 0])
    assert actions == [0, 0, 0, 1, 1, 1, 1, 1]
    hit = MATCHED_TOKENS
    assert recorder.hits == [
        [0, 0],  # 0 has left instance 0, which holds 1 and 3
        [hit, 0],  # 1
        [0, 0],  # 2 has left instance 1 when 0 and 1 came
        [0, 0],  # and 0 when 1 and 2 did
    ]


def test_without_lmcache_routers_see_the_engines_own_caches() -> None:
    recorder = Recorder()
    deployment = Deployment(host_prefixes=None)
    route(LmcacheRouter(recorder, deployment), deployment, [5, 5])
    assert recorder.hits == [[7, 7]]
