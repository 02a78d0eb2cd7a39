"""How the routers of papers fail, with the figure that shows it.

Sections are those of `routers_flexlb_dynamo_preble_mooncake.md`.
"""

import dataclasses
from typing import Any

import numpy as np
from made_tapes import Sent, play
from numpy.typing import NDArray

from prefixgym.baselines.papers.lodestar import Lodestar
from prefixgym.baselines.router import make_router
from prefixgym.envs.cluster.profiles import CompactModel, LinearPart, constant_profile
from prefixgym.envs.cluster.state import REJECTED
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.view.view import View
from prefixgym.experiments.evaluate import evaluate_router


def document(number: int, blocks: int, question: int) -> list[int]:
    """A prompt of a document that others ask about too, and a block of its own."""
    return [*range(1000 * number, 1000 * number + blocks), 1_000_000 + question]


def shares(outcomes: NDArray[np.void], num_instances: int) -> list[float]:
    """Share of the traffic of each instance."""
    counts = np.bincount(outcomes["instance"], minlength=num_instances)
    return (counts / len(outcomes)).tolist()


# --- LMetric (§8.1) ----------------------------------------------------------------------------


def test_lmetric_keeps_a_hot_prefix_on_one_instance_unless_guarded() -> None:
    # Everyone asks about one document of 32,000 tokens, 5 questions a second. The holder has 512
    # tokens to prefill, the others 63 times as many: it wins until it serves 63 times as many, and
    # at this rate it never does.
    requests = [Sent(0.0, document(0, 62, 0))]
    requests += [Sent(3.5 + 0.2 * k, document(0, 62, k), 100) for k in range(1, 200)]

    def run(guard: bool) -> tuple[list[float], float]:
        router = make_router("lmetric", {"hotspot_detection": guard})
        outcomes = play(router, requests, 4)
        return shares(outcomes, 4), float(np.median(outcomes["tpot"]))

    unguarded, slow = run(False)
    assert unguarded == [1, 0, 0, 0]
    guarded, fast = run(True)
    assert max(guarded) < 0.3  # 0.27
    assert slow > 3.5 * fast  # 32 against 8 ms a token


def test_lmetric_sends_to_an_idle_cold_instance_what_a_warm_one_would_answer_sooner() -> None:
    # 4,096 of 4,608 tokens are cached. Nothing waits for a prefill on the holder, but with nine in
    # its batch 512 · (9 + 1) > 4608 · 1: the next questions pay for the whole document, on every
    # other instance once.
    requests = [Sent(0.0, document(0, 8, 0))]
    requests += [Sent(2.0 + 0.05 * k, document(0, 8, 1 + k), 400) for k in range(40)]
    outcomes = play(make_router("lmetric", {"hotspot_detection": False}), requests, 4)[1:]
    cold = outcomes["hit_tokens"] == 0
    assert np.flatnonzero(cold).tolist() == [9, 10, 11]
    assert outcomes["ttft"][cold].mean() > 4 * outcomes["ttft"][~cold].mean()  # 105, 20 ms
    # What counts only the wait for the first token stays with the holder.
    outcomes = play(make_router("min_ttft"), requests, 4)[1:]
    assert (outcomes["hit_tokens"] > 0).all()


# --- SMetric (§8.2) ----------------------------------------------------------------------------


def agents(name: str, **parameters: Any) -> dict[str, float]:
    """Figures of a router on sessions of agents, 2,000 requests at the scenario's knee."""
    scenario = load_scenario("agentic-8", {"workload.num_requests": "2000"})
    frame = evaluate_router(make_router(name, parameters), scenario, scenario.rates[2], (0, 1, 2))
    columns = ("imbalance", "hit_rate", "attainment")
    return {column: float(frame[column].to_numpy().mean()) for column in columns}


def test_stickiness_alone_is_out_of_balance() -> None:
    # The paper: 2.17 for sessions that start balanced and stay. Sessions grow after their start.
    # Here 1.66, 1.45 when the SLO may move them, and 4.34 for sessions that start anywhere.
    hashed = agents("session_affinity")
    sticky = agents("smetric", HIT_RATIO=0.0, SLACK=1e9)
    within = agents("smetric")
    assert hashed["imbalance"] > 2 * sticky["imbalance"]
    assert sticky["imbalance"] > 1.1 * within["imbalance"]
    assert within["attainment"] > hashed["attainment"] + 0.05


def test_lmetric_loses_the_reuse_within_sessions_that_smetric_keeps() -> None:
    # The paper: 45 against 74 % of tokens reused without a shared tier.
    def hits(name: str) -> float:
        scenario = load_scenario("coding-agents-16", {"workload.num_requests": "2000"})
        router = make_router(name)
        frame = evaluate_router(router, scenario, scenario.rates[2], (0, 1))
        return float(frame["hit_rate"].to_numpy().mean())

    assert hits("smetric") > hits("lmetric") + 0.08  # 0.79, 0.65


# --- Lodestar (§8.4) ---------------------------------------------------------------------------


def test_lodestar_herds_out_of_its_range_and_so_falls_back_there() -> None:
    # 20 short prompts a second teach it; then 60 of 8,192 tokens come within 1.2 s.
    def prompt(number: int, blocks: int) -> range:
        return range(1000 * number, 1000 * number + blocks)

    requests = [Sent(0.05 * k, prompt(k, 2 + k % 2), 20) for k in range(320)]
    requests += [Sent(20 + 0.02 * k, prompt(500 + k, 16), 20) for k in range(60)]
    settings = {"theta": 150, "training_epochs": 60, "learning_rate": 0.002}

    def run(seed: int, guarded: bool) -> tuple[float, float, float]:
        """Share by the network, largest share of an instance, 99th percentile of TTFT."""
        router = make_router("lodestar", settings)
        assert isinstance(router, Lodestar)
        trusted: list[bool] = []

        def look(view: View) -> None:
            if not guarded:
                router._range[:, 0], router._range[:, 1] = -np.inf, np.inf
            scores = router.scores(view)[0]
            rewards = np.empty(view.instances.shape)
            router._network.predict(router._features, rewards)
            trusted.append(bool((scores == -rewards[0]).all()))

        outcomes = play(router, requests, 4, seed=seed, look=look)[-60:]
        share = max(shares(outcomes, 4))
        return float(np.mean(trusted[-60:])), share, float(np.percentile(outcomes["ttft"], 99))

    for seed in range(3):
        by_network, share, late = run(seed, guarded=True)
        assert (by_network, share) == (0.0, 0.25)
        assert late < 2.1
    # The same networks, trusted: on unseen load one of three ranks a growing queue first.
    runs = [run(seed, guarded=False) for seed in range(3)]
    assert all(by_network == 1.0 for by_network, _, _ in runs)
    assert max(share for _, share, _ in runs) == 1.0
    assert max(late for _, _, late in runs) > 10.0  # 11.3 s


# --- CacheRoute (§8.5) -------------------------------------------------------------------------


def test_cacheroute_gives_a_prompt_that_all_share_one_home() -> None:
    # Keys are the first four blocks. Ten requests a second share them: from the first plan on, at
    # 20 s, they are one key with one home. Copies for at most 3 requests/s each spread it.
    requests = [Sent(0.1 * k, document(0, 4, k), 100) for k in range(400)]

    def planned(**parameters: Any) -> list[float]:
        outcomes = play(make_router("cacheroute", parameters), requests, 4)
        return shares(outcomes[200:], 4)

    assert max(planned()) == 1.0
    assert max(planned(q_cap=3.0)) < 0.3


def test_cacheroute_moves_keys_with_every_plan() -> None:
    # 40 keys of equal rates: who comes before whom in the window is chance, and so is a key's home
    # in the next plan. An instance holds the prefixes of twenty keys, its own ten and some that it
    # had before. Every move may compute a prefix again, where fixed homes do so once.
    rng = np.random.default_rng(0)
    requests = [Sent(0.05 * k, document(int(rng.integers(40)), 16, k)) for k in range(2000)]

    def misses(name: str, **parameters: Any) -> float:
        outcomes = play(make_router(name, parameters), requests, 4, kv_blocks=400)
        return float((outcomes["hit_tokens"][400:] == 0).mean())  # after 20 s

    assert misses("cacheroute", period=10.0) > 0.1  # 0.115
    assert misses("prefix_hash", prefix_token_count=2048, load_factor=99.0) == 0.0


# --- GORGO (§8.6) ------------------------------------------------------------------------------


def test_gorgo_without_its_queue_term_sends_all_to_the_nearest() -> None:
    # What tuning on TTFT alone under light load led to: w_queue = 0. In such a window it costs a
    # millisecond, and ten times the time to the end at ten times the work.
    def run(weight: float, blocks: int) -> tuple[list[float], float, float]:
        requests = [Sent(0.1 * k, range(1000 * k, 1000 * k + blocks), 100) for k in range(300)]
        settings = {"rtt_ms": "0,30,60,90", "queue_weight": weight}
        outcomes = play(make_router("gorgo_2d", settings), requests, 4)
        times = outcomes["end"] - outcomes["arrival"]
        late = np.percentile([outcomes["ttft"], times], 95, axis=1)
        return shares(outcomes, 4), float(late[0]), float(late[1])

    balanced, ttft, _ = run(1.0, 2)
    assert max(balanced) < 0.27
    nearest, hacked_ttft, _ = run(0.0, 2)
    assert nearest == [1, 0, 0, 0]
    assert hacked_ttft - ttft < 0.002  # 30.5 against 29.1 ms
    _, _, end = run(1.0, 8)
    nearest, _, hacked_end = run(0.0, 8)
    assert nearest == [1, 0, 0, 0]
    assert hacked_end > 10 * end  # 12.8 against 1.0 s


# --- Mooncake (§4.2) ---------------------------------------------------------------------------


def test_early_rejection_forgets_what_is_being_prefilled() -> None:
    # A decode step takes 10 ms a sequence; 100 ms are allowed: ten sequences. 60 requests come
    # within 6 ms, before any has decoded: all are taken in, and all decode at 600 ms a token.
    nothing = LinearPart(t0=0.0, a=0.0, q=1.0, b=0.0, t_experts=0.0, nu=0.0)
    model = CompactModel(nothing, nothing, None, (10.0, 0.0, 0.0), (0.0, 10.0, 0.0))
    engine = dataclasses.replace(constant_profile(0.0, 0.0), step_model=model)
    requests = [
        Sent(3.0 * burst + 0.0001 * k, [1000 * burst + k], 20)
        for burst in range(4)
        for k in range(60)
    ]

    def run(rule: str) -> tuple[list[int], int]:
        router = make_router("mooncake", {"early_rejection": rule, "decode_seconds": 3.0})
        outcomes = play(router, requests, 1, engine=engine)
        taken = outcomes["status"] != REJECTED
        return taken.reshape(4, 60).sum(axis=1).tolist(), int(outcomes["good"].sum())

    assert run("off") == ([60, 60, 60, 60], 0)
    # Too many, and then nobody while these decode: 0 of 240 in time.
    assert run("early") == ([60, 0, 0, 0], 0)
    assert run("predictive") == ([10, 10, 10, 10], 40)
