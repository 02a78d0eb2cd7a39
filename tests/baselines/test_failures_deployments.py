"""Failures that come with a deployment: several gateways, and clients who go away.

Numbers F4, F15 are those of `routers_sglang_vllm_aibrix_llmd.md` §5. The figures in the docstrings
are what these runs give; the assertions leave some room.
"""

from typing import NamedTuple

import numpy as np
import pytest
from made_tapes import Sent, play
from numpy.typing import NDArray

from prefixgym.baselines.router import make_router
from prefixgym.envs.clients import Clients
from prefixgym.envs.cluster.faults import Fault
from prefixgym.envs.view.knowledge import Knowledge, Replicas

N = 8
UNIQUE = 10_000_000
"""First of the ids that only one session has."""


class Told(NamedTuple):
    """What became of sessions of two turns."""

    hit_ratio: float  # cached share of the second turns' tokens
    same_instance: float  # share of the second turns that went where the first had gone
    spread: float  # standard deviation of the requests sent to each instance, over their mean
    instances: NDArray[np.int64]


def sessions(num_prompts: int) -> tuple[list[Sent], NDArray[np.int64]]:
    """1,500 sessions of two turns, 20 a second, and the number of each request's session.

    A first turn is 13 blocks of a system prompt and 6 of its own, the second one block more: 95 %
    of it can be cached where the first went, and 65 % wherever the system prompt is.
    """
    rng = np.random.default_rng(0)
    times = np.cumsum(rng.exponential(1 / 20, 1500))
    requests: list[tuple[float, int, Sent]] = []
    for s, time in enumerate(times.tolist()):
        prompt, own = 1000 * int(rng.integers(num_prompts)), UNIQUE + 100 * s
        ids = [*range(prompt, prompt + 13), *range(own, own + 7)]
        requests.append((time, s, Sent(time, ids[:-1], 100)))
        later = time + 10 + float(rng.exponential(5))
        requests.append((later, s, Sent(later, ids, 100)))
    requests.sort(key=lambda request: request[:2])
    return [request for _, _, request in requests], np.array([s for _, s, _ in requests])


def through(gateways: int, router: str, *, told: bool = False, num_prompts: int = 40) -> Told:
    """Send the sessions through so many gateways, which tell each other nothing or all."""
    requests, session = sessions(num_prompts)
    replicas = Replicas(count=gateways)
    if told:
        replicas = Replicas(count=gateways, history_sync=0.0, load_sync=0.1)
    outcomes = play(make_router(router), requests, N, knowledge=Knowledge(replicas=replicas))
    turns = np.argsort(session, kind="stable").reshape(-1, 2)
    first, second = outcomes[turns[:, 0]], outcomes[turns[:, 1]]
    sent = np.bincount(outcomes["instance"], minlength=N)
    return Told(
        float(second["hit_tokens"].sum() / second["prompt_tokens"].sum()),
        float((first["instance"] == second["instance"]).mean()),
        float(sent.std() / sent.mean()),
        outcomes["instance"],
    )


def test_f4_more_gateways_find_less_cached() -> None:
    """smg#2394, #2438: unshared views find 0.66 cached at 8 gateways, a shared one 0.95.

    Here smg_cache_aware finds 0.94, 0.80, 0.72 and 0.65 at 1, 2, 4 and 8. There 0.52 and 0.11 of
    the second turns went where the first had gone, at 2 and 8 gateways with up to 240 workers;
    here 0.57 and 0.25, of which an eighth is luck among 8 instances. Told of each other's
    decisions at once, 8 gateways are at 0.92 and 1.00.
    """
    alone, *several = (through(count, "smg_cache_aware") for count in (1, 2, 4, 8))
    hits = [alone.hit_ratio, *(run.hit_ratio for run in several)]
    assert hits == pytest.approx([0.94, 0.80, 0.72, 0.65], abs=0.03)
    same = [alone.same_instance, *(run.same_instance for run in several)]
    assert same == pytest.approx([1.0, 0.57, 0.31, 0.25], abs=0.05)
    told = through(8, "smg_cache_aware", told=True)
    assert told.hit_ratio > 0.9
    assert told.same_instance > 0.98


def test_f4_more_gateways_balance_worse() -> None:
    """smg#2438: coefficient of variation of the load 0.472 at 8 gateways, 0.063 with one index.

    What is measured there is not published. Of the requests sent to each instance it is, with one
    prompt that all share, 1.15 (0.21 with one gateway, 0.22 told): none of the 8 sees enough load
    to leave the holders that it knows. With 40 prompts, cache_aware's is 0.33 (0.16, 0.22).
    """
    for router, num_prompts, alone, apart in (
        ("smg_cache_aware", 1, 0.21, 1.15),
        ("cache_aware", 40, 0.16, 0.33),
    ):
        assert through(1, router, num_prompts=num_prompts).spread == pytest.approx(alone, abs=0.05)
        assert through(8, router, num_prompts=num_prompts).spread == pytest.approx(apart, abs=0.1)
        told = through(8, router, told=True, num_prompts=num_prompts)
        assert told.spread < 0.3


@pytest.mark.parametrize("router", ["session_affinity", "rendezvous_hash"])
def test_f4_who_only_hashes_does_not_care(router: str) -> None:
    """Every decision is the same through 1 and through 8 gateways."""
    one, eight = through(1, router), through(8, router)
    assert (one.instances == eight.instances).all()


def shunned(router: str, leak: float) -> tuple[float, NDArray[np.int64]]:
    """An instance is 50 times slower for 10 s, and clients give up after 1 s.

    Returns:
        Its share of the requests from 20 s after it has recovered on (of 4 instances), and
        the requests that the router counts on each at the end.
    """
    times = np.cumsum(np.random.default_rng(0).exponential(1 / 60, 3600))
    requests = [Sent(time, range(10 * k, 10 * k + 3), 100) for k, time in enumerate(times.tolist())]
    counts: list[NDArray[np.int64]] = []
    outcomes = play(
        make_router(router),
        requests,
        4,
        faults=[Fault(kind="slow", at=10.0, lasts=10.0, instances=(0,), factor=50.0)],
        clients=Clients(timeout=1.0, leak=leak),
        look=lambda view: counts.append(view.instances["requests"][0].copy()),
    )
    return float((outcomes["instance"][times > 40] == 0).mean()), counts[-1]


@pytest.mark.parametrize(
    ("router", "share"), [("least_load", 0.07), ("min_ttft", 0.01), ("dynamo", 0.06)]
)
def test_f15_leaked_bookings_shun_an_instance_for_good(router: str, share: float) -> None:
    """production-stack#1072, llm-d-router#2242, dynamo#10331: what nobody frees counts for ever.

    38 requests are given up at a slow instance and stay on least_load's books. Long after it has
    recovered it counts 46 like the others, of which it really has 8, and gets 7 % of the requests
    instead of a quarter (min_ttft 1 %, dynamo, by its own bookings, 6 %).
    """
    healed, _ = shunned(router, 0.0)
    assert healed == pytest.approx(0.25, abs=0.02)
    leaked, _ = shunned(router, 1.0)
    assert leaked == pytest.approx(share, abs=0.03)


def test_f15_counts_of_a_router_that_does_not_look_at_them_only_grow() -> None:
    """power_of_two goes by telemetry: it keeps sending, and its ledger counts 152 on one of 4.

    In truth 26 are there, as on each of the others.
    """
    share, counts = shunned("power_of_two", 1.0)
    assert share == pytest.approx(0.25, abs=0.02)
    assert counts[0] > 140
    assert counts[1:].max() < 40
