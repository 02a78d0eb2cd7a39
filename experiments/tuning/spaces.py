"""Where each router's parameters are searched: one table, in the routers' own names.

Ranges hold what the real router's documentation and its users set, up to values at which a
parameter no longer matters. What only says how large a memory is, what a real deployment cannot
change, and what is beyond this environment (rejection) is left at its default, and so are routers
without anything to tune. Every default lies within its range, so that tuning starts from it.
"""

from dataclasses import dataclass
from typing import Literal

import optuna

from prefixgym.baselines.router import router_class

Value = bool | int | float | str


@dataclass(frozen=True)
class Number:
    """A range of ints or floats, by the type of the router's default.

    Attributes:
        low, high: both may be chosen.
        scale: `linear`, or `log` for what matters by its order of magnitude.
    """

    low: float
    high: float
    scale: Literal["linear", "log"] = "linear"


@dataclass(frozen=True)
class Choice:
    """Some values without an order.

    Attributes:
        values: all of them.
    """

    values: tuple[Value, ...]


Space = dict[str, Number | Choice]

_FLAG = Choice((False, True))
_SHARE = Number(0.0, 1.0)
_WEIGHT = Number(0.0, 4.0)
_BALANCE: Space = {
    "balance_abs_threshold": Number(1, 128, "log"),
    "balance_rel_threshold": Number(1.0, 4.0),
}
_CACHE_AWARE: Space = {"cache_threshold": _SHARE, **_BALANCE}
_LLMD: Space = {
    "queue_scorer": _WEIGHT,
    "kv_cache_utilization_scorer": _WEIGHT,
    "prefix_cache_scorer": _WEIGHT,
    "running_requests_size_scorer": _WEIGHT,
    "token_load_scorer": _WEIGHT,
    "queue_threshold_tokens": Number(10_000, 10_000_000, "log"),
    "active_request_scorer": _WEIGHT,
}
_DYNAMO: Space = {
    "router_temperature": Number(0.0, 1.0),
    "overlap_score_credit": Number(0.0, 2.0),
    "prefill_load_scale": Number(0.25, 32.0, "log"),
    "decode_active_request_weight": Number(0.0, 64.0),
}
_FLEXLB: Space = {
    "cost_formula_compute_ms": Number(0.01, 2.0, "log"),
    "cost_formula_hit_ms": Number(0.0, 0.5),
    "flexlb_batch_enabled": _FLAG,
    "flexlb_batch_size_max": Number(1, 32, "log"),
    "flexlb_batch_fixed_wait_ms": Number(1, 500, "log"),
    "hysteresis_bias_percent": Number(0, 50),
}
_AIBRIX: Space = {
    "pod_running_request_imbalance_abs_count": Number(1, 64, "log"),
    "standard_deviation_factor": Number(0, 5),
}
_BETA = Number(0.05, 8.0, "log")
_OBSERVED = Number(-2.0, 2.0)
_TUNED_COST = Number(0.01, 100.0, "log")

SPACES: dict[str, Space] = {
    "aibrix_prefix_cache": _AIBRIX,
    "aibrix_prefix_cache_chart": _AIBRIX,
    "aibrix_preble": {
        "target_gpu": Choice(("A6000", "V100")),
        "decoding_length": Number(1, 1000, "log"),
        "sliding_window_period": Number(0.25, 5.0, "log"),
        "pod_running_request_imbalance_abs_count": Number(1, 64, "log"),
    },
    "cache_aware": _CACHE_AWARE,
    "cache_aware_struct": _CACHE_AWARE,
    "cache_aware_zmq": _CACHE_AWARE | {"hit_load_abs_threshold": Number(0, 64)},
    "cacheroute": {
        "period": Number(2.0, 120.0, "log"),
        "prefix_blocks": Number(1, 16),
        "warm_keys": Number(8, 1024, "log"),
    },
    "dualmap": {
        "hash_prefix_blocks": Number(1, 16),
        "pending_prefill_token_budget": Number(0, 65_536),
    },
    "dynamo": _DYNAMO,
    "dynamo_approximate": _DYNAMO | {"router_ttl_secs": Number(10.0, 1800.0, "log")},
    "dynamo_classic": {
        "router_temperature": Number(0.0, 1.0),
        "overlap_score_weight": Number(0.0, 8.0),
    },
    "flexlb": _FLEXLB
    | {
        "cost_hotspot_multiplier": Number(0.0, 6.0),
        "cost_imbalance_multiplier": Number(0.0, 6.0),
        "score_tie_threshold_ms": Number(0, 100),
    },
    "flexlb_shortest_ttft": _FLEXLB | {"shortest_ttft_candidate_pool_ratio": Number(0.05, 1.0)},
    "gie_tree": {"queue_threshold": Number(1, 256, "log")},
    "gorgo": {"prefill_weight": _TUNED_COST, "load_weight": _TUNED_COST},
    "gorgo_2d": {
        "prefill_rate": _TUNED_COST,
        "queue_rate": _TUNED_COST,
        "queue_weight": _TUNED_COST,
    },
    "kvaware": {
        "kv_aware_threshold": Number(1, 8192, "log"),
        "fallback": Choice(("session", "qps")),
    },
    "linear_score": {
        "hit": _OBSERVED,
        "prefill": _OBSERVED,
        "backlog": _OBSERVED,
        "ttft": _OBSERVED,
        "requests": _OBSERVED,
        "context": _OBSERVED,
        "running": _OBSERVED,
        "kv_usage": _OBSERVED,
        "decoding": _OBSERVED,
        "queue": _OBSERVED,
        "step": _OBSERVED,
        "prefilling": _OBSERVED,
        "tpot": _OBSERVED,
    },
    "llmd_affinity": {
        "affinity_threshold": _SHARE,
        "max_ttft_penalty_ms": Number(10.0, 20_000.0, "log"),
        "peak_prefill_throughput": Number(1000.0, 100_000.0, "log"),
    },
    "llmd_approximate": _LLMD,
    "llmd_latency": {
        "ttft_weight": Number(0.05, 1.0),
        "tpot_weight": _SHARE,
        "headroom_selection_strategy": Choice(("least", "most")),
        "affinity_gate_tau_global": _SHARE,
        "affinity_gate_tau": _SHARE,
        "max_ttft_penalty_ms": Number(10.0, 20_000.0, "log"),
        "epsilon_explore_sticky": Number(0.0, 0.1),
    },
    "llmd_no_hit_lru": _LLMD | {"no_hit_lru_scorer": _WEIGHT},
    "llmd_precise": _LLMD,
    "lmetric": {
        "queued_prefill": _FLAG,
        "hotspot_detection": _FLAG,
        "class_prefix_blocks": Number(1, 16),
        "window_requests": Number(100, 5000, "log"),
    },
    "loadaware": {"beta": _BETA, "fallback": Choice(("session", "qps"))},
    "loadaware_tokens": {"beta": _BETA, "fallback": Choice(("session", "qps"))},
    "lodestar": {
        "theta": Number(100, 4000, "log"),
        "gpu_kv_saturation_threshold": Number(0.3, 1.0),
        "prefix_blocks": Number(1, 16),
    },
    "power_of_two": {"load": Choice(("telemetry", "ledger", "expected_wait"))},
    "preble": {
        "window": Number(10.0, 600.0, "log"),
        "enable_eviction": _FLAG,
        "decode_ratio": _SHARE,
        "th_bal": Number(1.0, 4.0),
        "requests_per_gpu": Number(0, 100),
        "decode_seconds": Number(0.1, 20.0, "log"),
    },
    "prefix_hash": {
        "prefix_token_count": Number(64, 8192, "log"),
        "load_factor": Number(1.0, 4.0),
        "balance_abs_threshold": Number(0, 64),
    },
    "prefixaware": {"prefix_min_match_length": Number(0, 4096)},
    "probabilistic": {
        "top_k": Number(0, 8),
        "tolerance": _SHARE,
        "temperature": Number(0.0, 1.0),
        "affinity": Choice(("session", "prefix")),
    },
    "sgl_router_cache_aware": {
        "cache_affinity_min_matched_tokens": Number(1, 8192, "log"),
        "cache_affinity_min_match_ratio": _SHARE,
        "cache_switch_margin_tokens": Number(0, 8192),
        "pressure_guard": _FLAG,
        "pressure_abs_threshold_tokens": Number(64, 65_536, "log"),
        "pressure_rel_threshold": Number(1.0, 4.0),
        "affinity": Choice(("prefer", "balanced")),
    },
    "smetric": {"HIT_RATIO": _SHARE, "SLACK": Number(0.0, 4.0)},
    "smg_cache_aware": _CACHE_AWARE
    | {
        "balance_token_usage_threshold": _SHARE,
        "overload_token_usage_threshold": Number(0.1, 1.0),
        "overlap_decay": Number(0.0, 4.0),
        "selection_temperature": Number(0.0, 2.0),
    },
    "smg_cache_aware_hash": _BALANCE | {"balance_token_usage_threshold": _SHARE},
    "smg_least_load": {
        "kv_pressure_weight": Number(0.0, 2.0),
        "mean_prefill_tokens": Number(64, 8192, "log"),
        "default_throughput": Number(100.0, 20_000.0, "log"),
        "load_check_interval_secs": Number(0, 10),
    },
    "vllm_cache_aware": _CACHE_AWARE,
}
"""Of each router that can be tuned."""


def space_of(router: str) -> Space:
    """The parameters that are searched; ValueError if there is nothing to tune."""
    router_class(router)
    if router not in SPACES:
        raise ValueError(
            f"router: found {router!r}, which has nothing to tune; allowed: {', '.join(SPACES)}"
        )
    return SPACES[router]


def defaults(router: str) -> dict[str, Value]:
    """The defaults of the parameters that are searched."""
    return {name: getattr(router_class(router), name) for name in space_of(router)}


def suggest(trial: optuna.Trial, router: str) -> dict[str, Value]:
    """Parameters for one trial."""
    found: dict[str, Value] = {}
    kinds = defaults(router)
    for name, where in space_of(router).items():
        if isinstance(where, Choice):
            chosen = trial.suggest_categorical(name, where.values)
            assert chosen is not None  # optuna allows it, `Choice` does not
            found[name] = chosen
        elif isinstance(kinds[name], int):
            low, high = int(where.low), int(where.high)
            found[name] = trial.suggest_int(name, low, high, log=where.scale == "log")
        else:
            log = where.scale == "log"
            found[name] = trial.suggest_float(name, where.low, where.high, log=log)
    return found
