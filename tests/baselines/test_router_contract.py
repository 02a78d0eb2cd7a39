"""What holds for every handcrafted router, and the registry."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import STEPS, play, random_views
from made_views import view_of

import prefixgym.baselines  # noqa: F401  (fills the registry)
from prefixgym.baselines.router import make_router, register, router_class, router_names

VARIANTS: dict[str, list[dict[str, Any]]] = {
    "power_of_two": [{}, {"load": "ledger"}, {"load": "expected_wait"}],
    "bucket": [{}, {"bucket_adjust_interval_secs": 1, "balance_abs_threshold": 3000}],
    "manual": [{}, {"assignment_mode": "min_group", "max_idle_secs": 2}],
    "smg_cache_aware": [{"balance_abs_threshold": 0, "selection_temperature": 0.5}],
    "smg_cache_aware_hash": [{"cache_boundaries": "64, 256", "balance_abs_threshold": 0}],
    "sgl_router_cache_aware": [
        {"cache_affinity_min_matched_tokens": 1, "affinity": "balanced", "worker_queue_limit": 4}
    ],
    "flexlb": [
        {},
        {"flexlb_batch_enabled": False},
        {"prefill_predictor_type": "learning", "flexlb_batch_algorithm": "slo_budget"},
    ],
    # Tables of a few blocks.
    "aibrix_prefix_cache": [{}, {"prefix_cache_block_number": 256}],
    "llmd_approximate": [{}, {"auto_tune": False, "lru_capacity_per_server": 4}],
    "llmd_affinity": [{"exploration_probability": 0.5, "affinity_threshold": 0.3}],
    "llmd_latency": [{}, {"predictor": "none"}],
    "preble": [{}, {"window": 3, "requests_per_gpu": 1, "decode_ratio": 0.9}],
    "kvaware": [{}, {"fallback": "qps", "kv_aware_threshold": 100}],
    "loadaware": [{}, {"fallback": "qps"}],
    "ttft": [{}, {"fallback": "qps"}],
    "prefixaware": [{}, {"prefix_min_match_length": 300}],
    "consistent_hash": [{}, {"failover": "first"}],
    "kv_aware": [{}, {"router_temperature": 500.0, "kv_aware_session_affinity_ttl_secs": 2}],
    "vllm_cache_aware": [
        {"balance_abs_threshold": 3, "eviction_interval": 2, "max_tree_size": 1800}
    ],
    # Windows that a few requests fill.
    "lmetric": [{"class_prefix_blocks": 1, "window_requests": 4}],
    "dualmap": [{"hash_prefix_blocks": 1, "window_requests": 4}],
    "cacheroute": [
        {"prefix_blocks": 1, "period": 2, "warm_keys": 2, "q_cap": 1, "window_requests": 9}
    ],
    "probabilistic": [{"top_k": 3, "tolerance": 0.7}, {"router": "smetric", "affinity": "prefix"}],
    # Small enough that sweeps and both branches of the balance test occur.
    "cache_aware": [{}, {"balance_abs_threshold": 3, "eviction_interval": 2, "max_tree_size": 900}],
}
CASES = [
    (name, parameters)
    for name in router_names()
    if "truth" not in router_class(name).knows  # it is not in the views made here
    for parameters in VARIANTS.get(name, [{}])
]


@pytest.mark.parametrize(("name", "parameters"), CASES)
@settings(max_examples=15)
@given(
    num_envs=st.integers(2, 5),
    num_instances=st.integers(1, 6),
    seed=st.integers(0, 2**32 - 1),
    up=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_environments_are_independent_choices_are_allowed_and_repeat(
    name: str, parameters: dict[str, Any], num_envs: int, num_instances: int, seed: int, up: float
) -> None:
    router = make_router(name, parameters)
    views = random_views(num_envs, num_instances, seed, up)
    seeds = [seed + e for e in range(num_envs)]
    together = play(router, views, seeds)
    assert together.shape == (STEPS, num_envs)
    assert together.dtype == np.int64
    for view, chosen in zip(views, together, strict=True):
        for e in range(num_envs):
            if chosen[e] == num_instances:
                assert router.may_reject
                continue
            assert 0 <= chosen[e] < num_instances
            assert view.available[e, chosen[e]] or not view.available[e].any()
    for e in range(num_envs):
        row = slice(e, e + 1)
        alone = [
            view_of(v.cluster, v.requests[row], v.block_ids[row], v.instances[row]) for v in views
        ]
        assert play(router, alone, seeds[row])[:, 0].tolist() == together[:, e].tolist()
    assert (play(router, views, seeds) == together).all()
    assert (play(make_router(name, parameters), views, seeds) == together).all()


def test_the_routers_are_registered() -> None:
    routers = {
        "random", "round_robin", "least_load", "power_of_two", "session_affinity", "prefix_hash",
        "cache_aware", "cache_aware_struct", "kvaware", "loadaware", "min_ttft", "greedy_dump",
    }  # fmt: skip
    assert routers <= set(router_names())


@pytest.mark.parametrize("name", router_names())
def test_every_parameter_can_come_from_a_command_line(name: str) -> None:
    router = make_router(name)
    assert router_class(name).source
    words = {field.name: str(getattr(router, field.name)) for field in dataclasses.fields(router)}
    assert make_router(name, words) == router


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("nonsense", {}, "router: found 'nonsense', allowed: .*round_robin"),
        ("loadaware", {"bta": 1}, "loadaware.bta: no such parameter, allowed: .*beta"),
        ("random", {"seed": 1}, "random.seed: no such parameter, allowed: none"),
        ("loadaware", {"beta": "much"}, "loadaware.beta: found 'much', expected float"),
        ("loadaware", {"beta": "nan"}, "loadaware.beta: found 'nan', expected float"),
        ("loadaware", {"beta": None}, "loadaware.beta: found None, expected float"),
        ("kvaware", {"kv_aware_threshold": 0.5}, "kv_aware_threshold: found 0.5, expected int"),
        (
            "kvaware",
            {"kv_aware_threshold": -1},
            "kv_aware_threshold: found -1, allowed: at least 0",
        ),
        ("kvaware", {"fallback": "x"}, "kvaware.fallback: found 'x', allowed: session, qps"),
        ("power_of_two", {"load": 3}, "power_of_two.load: found 3, expected str"),
        ("power_of_two", {"load": "kv"}, "power_of_two.load: found 'kv', allowed: telemetry, led"),
        ("cache_aware", {"cache_threshold": "2"}, "cache_threshold: found 2.0, allowed: 0 to 1"),
        ("prefix_hash", {"virtual_nodes": True}, "virtual_nodes: found True, expected int"),
        ("session_affinity", {"virtual_nodes": "0"}, "virtual_nodes: found 0, allowed: at least 1"),
    ],
)
def test_bad_names_and_parameters_give_one_clear_error(
    name: str, parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_router(name, parameters)


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="'random' is registered twice"):
        register(router_class("random"))
