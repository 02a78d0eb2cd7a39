"""Failures that users report of llm-d, AIBrix and least-request, with the figure that shows them.

Numbers F7 to F17 and the references are those of `routers_sglang_vllm_aibrix_llmd.md` §5.
"""

from typing import cast

import numpy as np
from made_tapes import Sent, play
from made_views import decide, one_view, router_for
from numpy.typing import NDArray

from prefixgym.baselines.llmd.approximate import LlmdApproximate
from prefixgym.baselines.router import make_router
from prefixgym.envs.view.view import View


def document(number: int, blocks: int, question: int) -> list[int]:
    """A prompt of a document that others ask about too, and a block of its own."""
    return [*range(1000 * number, 1000 * number + blocks), 1_000_000 + question]


def hit_rate(outcomes: NDArray[np.void]) -> float:
    return float(outcomes["hit_tokens"].sum() / outcomes["prompt_tokens"].sum())


def shares(outcomes: NDArray[np.void], num_pods: int) -> NDArray[np.float64]:
    """Share of the traffic of each pod, the largest first."""
    counts = np.bincount(outcomes["instance"], minlength=num_pods)
    return np.sort(counts)[::-1] / len(outcomes)


def test_f7_the_routers_view_outlives_the_engines_cache() -> None:
    # llm-d-router#1650: the LRU believes in four times the blocks that the engine has.
    # 12 documents of 9 blocks in turn, on two engines of 40 blocks.
    requests = [Sent(0.5 * k, document(k % 12, 8, k)) for k in range(120)]
    router = cast(LlmdApproximate, make_router("llmd_approximate"))
    believed: list[NDArray[np.int64]] = []

    def look(view: View) -> None:
        believed.append(router.matched_tokens(view)[0].copy())

    outcomes = play(router, requests, 2, kv_blocks=40, look=look)
    chosen = [float(row[pod]) for row, pod in zip(believed, outcomes["instance"], strict=True)]
    predicted = sum(chosen) / outcomes["prompt_tokens"].sum()
    assert predicted == 0.8  # 108 of 120 prompts were sent before, 8/9 of each
    assert hit_rate(outcomes) < 0.25  # 0.20
    # Told the truth about its capacity it predicts what happens.
    honest = LlmdApproximate(engine_block_size=64)
    believed.clear()
    router = honest
    outcomes = play(router, requests, 2, kv_blocks=40, look=look)
    chosen = [float(row[pod]) for row, pod in zip(believed, outcomes["instance"], strict=True)]
    predicted = sum(chosen) / outcomes["prompt_tokens"].sum()
    assert abs(predicted - hit_rate(outcomes)) < 0.1


def test_f8_the_routers_view_is_smaller_than_the_engines_cache() -> None:
    # AIBrix's table of 200,000 blocks of 4 characters is 390 of our blocks, for all pods together;
    # the four engines hold several times that. 60 documents of 17 blocks are 1,020.
    requests = [Sent(0.2 * k, document(k % 60, 16, k)) for k in range(360)]
    found = {}
    for name in ("aibrix_prefix_cache", "aibrix_prefix_cache_chart", "llmd_precise"):
        found[name] = hit_rate(play(make_router(name), requests, 4))
    best = 5 / 6 * 16 / 17  # all but the first time, all but the last block
    assert abs(found["llmd_precise"] - best) < 0.01  # 0.784
    assert abs(found["aibrix_prefix_cache_chart"] - best) < 0.01  # blocks of 128 characters
    assert found["aibrix_prefix_cache"] < 0.6 * best  # 0.43: where a document goes is forgotten


def test_f8_an_lru_that_drops_heads_loses_a_prefix_by_its_first_block() -> None:
    # 3,906 blocks of 512 tokens fit; eight more push out the first blocks of the oldest prompt.
    def matched(others: int) -> float:
        router = cast(LlmdApproximate, router_for(1, "llmd_approximate", auto_tune=False))
        prompt = list(range(8))
        for k in range(others):
            ids = prompt if k == 0 else list(range(8 * k, 8 * k + 8))
            decide(router, one_view(1, ids, {"time": float(k)}))
        view = one_view(1, prompt, {"time": 1e6})
        return float(router.matched_tokens(view)[0, 0] / (8 * 512))

    assert matched(488) == 1.0  # 3,904 blocks
    assert matched(489) == 0.0  # 3,912: six blocks too many, and the other two are of no use


def test_f10_a_burst_of_one_new_prefix_is_spread_over_many_pods() -> None:
    # Entries are added after sending, so that eight equal prompts do not see each other.
    def burst(name: str, gap: float) -> tuple[int, float]:
        requests = [Sent(1.0 + gap * k, document(0, 16, k), 50) for k in range(8)]
        outcomes = play(make_router(name), requests, 8)
        return len(set(outcomes["instance"].tolist())), hit_rate(outcomes)

    for name in ("llmd_approximate", "llmd_precise"):
        assert burst(name, 0.0) == (8, 0.0)  # the prefix is computed eight times
        pods, hits = burst(name, 0.01)
        assert pods == 1
        assert hits > 0.82  # 7/8 · 16/17
    # A router that remembers at the decision keeps them together.
    assert burst("cache_aware", 0.0)[0] == 1
    assert burst("preble", 0.0)[0] == 1


def test_f11_light_load_leaves_most_pods_unused() -> None:
    # llm-d-router#355: all queues are empty and all KV usage low, so every load score is about 1
    # and the shared system prompt alone decides: one pod of eight gets everything.
    requests = [Sent(0.5 * k, document(0, 4, k), 20) for k in range(100)]
    for name in ("llmd_precise", "llmd_approximate", "llmd_no_hit_lru"):
        assert shares(play(make_router(name), requests, 8), 8)[0] == 1.0
    assert shares(play(make_router("gie_tree"), requests, 8), 8)[0] < 0.3


def test_f12_one_waiting_request_costs_two_thirds_of_a_prompt() -> None:
    # Queue weight 2 against 3 · match, whether the queues are 0 and 1 or 0 and 100.
    def home(share: float, queue: int, others: int = 0) -> int:
        hits = [int(3000 * share), 0]
        view = one_view(
            2, request={"prompt_tokens": 3000.0}, hit_tokens=hits, waiting=[queue, others]
        )
        return decide(router_for(2, "llmd_precise"), view)

    assert [home(0.6, queue) for queue in (0, 1, 100)] == [0, 1, 1]
    assert [home(0.7, queue) for queue in (0, 1, 100)] == [0, 0, 0]
    assert home(0.6, 100, 100) == 0


def test_f17_short_requests_wait_behind_long_prefills_that_count_as_one() -> None:
    # sglang#25466, AIB#933: a tenth of the prompts are 30 times as long as the others.
    rng = np.random.default_rng(0)
    requests, time, first = list[Sent](), 0.0, 0
    for _ in range(600):
        time += rng.exponential(0.05)
        blocks = 60 if rng.random() < 0.1 else 2
        requests.append(Sent(time, range(first, first + blocks), 30))
        first += blocks
    p90 = {}
    for name in ("least_load", "min_ttft", "llmd_affinity"):
        outcomes = play(make_router(name), requests, 4)
        short = outcomes[outcomes["prompt_tokens"] == 1024]
        p90[name] = float(np.quantile(short["ttft"], 0.9))
    assert p90["least_load"] > 0.5  # s; 0.74
    assert p90["least_load"] > 8 * p90["min_ttft"]  # 0.054
    assert p90["least_load"] > 8 * p90["llmd_affinity"]  # tokens in flight tell them apart


def test_aibrix_oscillates_between_affinity_and_least_request() -> None:
    # AIB#933: the holder of a hot prefix is above mean + σ as soon as it has a few requests more
    # than its peers; the least loaded pod is next, becomes a holder, and so on.
    rng = np.random.default_rng(1)
    requests, time = list[Sent](), 0.0
    for k in range(400):
        time += rng.exponential(1 / 40)
        hot = rng.random() < 0.5
        requests.append(Sent(time, document(0 if hot else 1 + k, 8, k), int(rng.integers(20, 200))))

    def moves(name: str) -> float:
        """How often the hot prefix is sent to another pod than the last time."""
        pods = play(make_router(name), requests, 8)["instance"]
        pods = pods[[request.ids[0] == 0 for request in requests]]
        return float((pods[1:] != pods[:-1]).mean())

    assert moves("llmd_affinity") == 0.0
    assert moves("aibrix_prefix_cache") > 0.7  # 0.82
    assert abs(moves("aibrix_prefix_cache") - moves("least_load")) < 0.1  # as without affinity
