"""SGLang's expected wait, worked by hand: alone, and between two draws."""

from typing import Any

import numpy as np
import pytest
from made_views import decide, one_view, router_for

from prefixgym.baselines.router import Router


def send(router: Router, *, prompt: int = 1000, time: float = 0.0, **more: Any) -> int:
    index = more.pop("index", 0)
    num_instances = len(next(iter(more.values())))
    request = {"prompt_tokens": prompt, "time": time, "index": index}
    return decide(router, one_view(num_instances, request=request, **more))


def choose(**more: Any) -> int:
    return send(router_for(2, "smg_least_load"), **more)


def test_queued_tokens_over_throughput() -> None:
    # 4000 / 1000 = 4 s against 3000 / 500 = 6 s.
    assert choose(waiting_tokens=[4000, 3000], throughput=[1000.0, 500.0]) == 0
    # Nothing generated: 2000 tokens/s, 3 s against 4 s.
    assert choose(waiting_tokens=[6000, 4000], throughput=[0.0, 1000.0]) == 0
    # No tokens reported, but 3 requests: 3072 tokens against 3000.
    assert choose(waiting=[3, 0], waiting_tokens=[0, 3000]) == 1
    assert choose(waiting=[3, 0], waiting_tokens=[2000, 3000]) == 0


def test_kv_usage_costs_a_pole_at_one() -> None:
    # 0.15 · 0.75 / 0.25 = 0.45 s = 900 tokens at 2000 tokens/s.
    assert choose(kv_usage=[0.75, 0.0], waiting_tokens=[0, 899]) == 1
    assert choose(kv_usage=[0.75, 0.0], waiting_tokens=[0, 901]) == 0
    # At most 0.999: 0.15 · 999 = 149.85 s = 299,700 tokens.
    assert choose(kv_usage=[1.0, 0.0], waiting_tokens=[0, 299_699]) == 1
    assert choose(kv_usage=[1.0, 0.0], waiting_tokens=[0, 299_701]) == 0


def test_what_was_sent_since_the_poll_counts_until_the_next() -> None:
    router = router_for(3, "smg_least_load")
    stale: dict[str, Any] = {"waiting_tokens": [0, 500, 1800]}
    sent = [send(router, time=k * 1.0, **stale) for k in range(4)]
    # Waits in tokens: 0 500 1800 · 1000 500 1800 · 1000 1500 1800 · 2000 1500 1800.
    assert sent == [0, 1, 0, 1]
    # What the engines say now is not known before 10 s.
    assert send(router, time=9.9, waiting_tokens=[9000, 9000, 0]) == 2  # 2000 2500 1800
    assert send(router, time=10.0, waiting_tokens=[9000, 100, 9000]) == 1
    assert send(router, time=10.1, waiting_tokens=[0, 0, 0], prompt=9000) == 1  # 1100
    assert send(router, time=10.2, waiting_tokens=[0, 0, 0]) in (0, 2)


def test_an_interval_of_zero_polls_at_every_decision() -> None:
    router = router_for(2, "smg_least_load", load_check_interval_secs=0)
    assert [send(router, waiting_tokens=[0, 1]) for _ in range(5)] == [0] * 5


def test_equal_waits_are_drawn() -> None:
    picks = [choose(waiting_tokens=[7, 7], index=k) for k in range(400)]
    assert abs(np.mean(picks) - 0.5) < 0.1


def test_a_full_queue_is_ruled_out_with_what_was_sent_since() -> None:
    def router() -> Router:
        return router_for(2, "smg_least_load", max_waiting_requests=2)

    columns: dict[str, Any] = {"waiting": [1, 0], "waiting_tokens": [1, 400_000]}
    once = router()
    assert [send(once, **columns) for _ in range(2)] == [0, 1]
    assert send(router(), waiting=[2, 0], waiting_tokens=[1, 400_000]) == 1
    assert send(router_for(2, "smg_least_load"), waiting=[99, 0], waiting_tokens=[1, 9]) == 0


@pytest.mark.parametrize(
    ("load", "columns"),
    [
        ("telemetry", {"waiting": [1, 0], "running": [1, 1]}),
        ("tokens", {"waiting_tokens": [100, 0], "kv_usage": [0.0, 0.001]}),  # 51 tokens
        ("kv_usage", {"kv_usage": [0.2, 0.1]}),
        ("expected_wait", {"waiting_tokens": [100, 0]}),
        ("ledger", {"requests": [2, 1]}),
    ],
)
def test_power_of_two_compares_its_load(load: str, columns: dict[str, Any]) -> None:
    router = router_for(2, "power_of_two", load=load)
    assert send(router, **columns) == 1
    turned = {name: column[::-1] for name, column in columns.items()}
    assert send(router_for(2, "power_of_two", load=load), **turned) == 0


def test_power_of_two_by_expected_wait_credits_what_it_sends() -> None:
    router = router_for(2, "power_of_two", load="expected_wait")
    assert [send(router, waiting_tokens=[0, 500], index=k) for k in range(3)] == [0, 1, 0]
