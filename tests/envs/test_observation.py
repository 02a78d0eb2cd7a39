"""The kernel writes what the table of observation fields says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.cluster.step_time import prefill_ticks, step_ticks
from prefixgym.envs.observation import (
    INSTANCE_FIELDS,
    OBSERVATION_FIELDS,
    REQUEST_FIELDS,
    observation_table,
)
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.vector import PrefixRoutingVectorEnv
from prefixgym.envs.view.experience import MEMORY
from prefixgym.envs.view.view import View

# The raw quantity behind each field, from a request's and an instance's row of the view.
RAW: dict[tuple[str, str], Callable[[Any, Any], float]] = {
    ("request", "prompt_tokens"): lambda r, _: r["prompt_tokens"],
    ("request", "gap"): lambda r, _: r["gap"],
    ("request", "slo_ttft"): lambda r, _: r["slo_ttft"],
    ("request", "slo_tpot"): lambda r, _: r["slo_tpot"],
    ("request", "best_hit"): lambda _, rows: rows["hit_tokens"].max(),
    ("instances", "available"): lambda _, i: i["available"],
    ("instances", "hit"): lambda _, i: i["hit_tokens"],
    ("instances", "prefill"): lambda _, i: i["prefill_seconds"],
    ("instances", "backlog"): lambda _, i: i["backlog_seconds"],
    ("instances", "ttft"): lambda _, i: i["backlog_seconds"] + i["prefill_seconds"],
    ("instances", "requests"): lambda _, i: i["requests"],
    ("instances", "prefill_requests"): lambda _, i: i["prefill_requests"],
    ("instances", "context"): lambda _, i: i["context_tokens"],
    ("instances", "waiting"): lambda _, i: i["waiting"],
    ("instances", "running"): lambda _, i: i["running"],
    ("instances", "kv_usage"): lambda _, i: i["kv_usage"],
    ("instances", "decoding"): lambda _, i: i["requests"] - i["prefill_requests"],
    ("instances", "pace"): lambda _, i: ratio(i["running"], i["throughput"]),
    ("instances", "prefilling"): lambda _, i: i["recent_prefill_seconds"] / MEMORY,
    ("instances", "tpot"): lambda _, i: ratio(i["recent_decode_seconds"], i["recent_tokens"]),
    ("instances", "slowness"): lambda _, i: ratio(
        i["recent_wait_seconds"], i["recent_booked_seconds"]
    ),
}


def ratio(x: float, y: float) -> float:
    return x / y if y > 0 else 0.0


def of_profile(cluster: ClusterSpec, i: int) -> dict[str, Callable[[Any, Any], float]]:
    """Likewise, of what depends on the instance's profile too."""
    cost = np.array([cluster.instances[i].profile.step_cost()])[0]

    def decode_step(sequences: int, context: int) -> float:
        return float(step_ticks(cost, 0, 0.0, sequences, context, sequences)) / TICKS_PER_SECOND

    def step(request: Any, row: Any) -> float:
        per_sequence = (decode_step(33, 0) - decode_step(1, 0)) / 32
        per_token = (decode_step(16, 32768) - decode_step(16, 0)) / 32768
        decoding = row["requests"] - row["prefill_requests"]
        context = row["context_tokens"] + request["prompt_tokens"]
        return decode_step(1, 0) + per_sequence * decoding + per_token * context

    prefill = float(prefill_ticks(cost, 4096, 0, 8192)) / TICKS_PER_SECOND
    return {
        "queue": lambda _, row: (row["waiting_tokens"] + row["prefilling_tokens"]) / 4096 * prefill,
        "step": step,
        "prefill_speed": lambda *_: prefill,
        "decode_speed": lambda *_: decode_step(16, 16 * 2048),
    }


def value_of(normalisation: str, x: float, view: View, e: int, i: int) -> float:
    """The formula in the field's own text, evaluated."""
    request = view.requests[e]
    names = {
        "x": x,
        "prompt": request["prompt_tokens"],
        "slo_ttft": request["slo_ttft"],
        "slo_tpot": request["slo_tpot"],
        "kv_capacity": view.cluster.kv_blocks(i) * view.cluster.block_size,
    }
    formula = {"0 or 1": "x"}.get(
        normalisation, normalisation.replace("KV capacity", "kv_capacity")
    )
    return float(eval(formula, {"__builtins__": {}}, names))


def expected_observation(view: View, e: int) -> tuple[NDArray[Any], NDArray[Any]]:
    request, rows = view.requests[e], view.instances[e]
    first = [
        value_of(f.normalisation, RAW["request", f.name](request, rows), view, e, 0)
        for f in REQUEST_FIELDS
    ]
    table = []
    for i, row in enumerate(rows):
        profile = of_profile(view.cluster, i)
        raws = [
            (profile.get(f.name) or RAW["instances", f.name])(request, row) for f in INSTANCE_FIELDS
        ]
        formulas = [f.normalisation for f in INSTANCE_FIELDS]
        table.append(
            [value_of(text, x, view, e, i) for text, x in zip(formulas, raws, strict=True)]
        )
    return np.array(first), np.array(table)


ALL_AVAILABLE_ONE_CLASS = {"available", "slo_ttft", "slo_tpot"}


@pytest.mark.parametrize(
    ("name", "short", "constant"),
    [
        (
            "shared-prompts-8",
            {"workload.output_tokens": "2"},
            {"prompt_tokens", "prefill_speed", "decode_speed"},
        ),
        ("chat-16-mixed", {"workload.output_tokens.median": "3"}, set()),
    ],
)
def test_every_column_is_what_its_field_says(
    name: str, short: dict[str, str], constant: set[str]
) -> None:
    scenario = load_scenario(name, short)  # some requests end before the last one comes
    env = PrefixRoutingVectorEnv(
        2, scenario, rate=400.0, num_requests=150, autoreset_mode="SameStep"
    )
    generator = np.random.default_rng(0)
    observation, _ = env.reset(seed=0)
    seen = []
    for _ in range(160):
        view = env.episodes.simulation.view
        tables = observation["instances"].reshape(2, -1, len(INSTANCE_FIELDS))
        for e in range(2):
            request, table = expected_observation(view, e)
            np.testing.assert_allclose(observation["request"][e], request, rtol=1e-6)
            np.testing.assert_allclose(tables[e], table, rtol=1e-6)
            seen += [np.concatenate([np.tile(request, (len(table), 1)), table], axis=1)]
        for values in observation.values():
            assert values.dtype == np.float32
            assert (values >= 0).all()
            assert (values <= 1).all()
        observation = env.step(generator.integers(0, len(table), 2))[0]
    columns = np.concatenate(seen)
    unmoved = {
        field.name
        for k, field in enumerate((*REQUEST_FIELDS, *INSTANCE_FIELDS))
        if len(np.unique(columns[:, k])) == 1
    }
    assert unmoved == ALL_AVAILABLE_ONE_CLASS | constant


def test_the_documentation_has_this_table(repository: Path) -> None:
    """If this fails: python -m prefixgym.envs.observation prints the table to paste."""
    assert observation_table() in (repository / "docs" / "environment.md").read_text()


def test_fields_have_distinct_names_in_the_order_of_the_space() -> None:
    names = [(field.part, field.name) for field in OBSERVATION_FIELDS]
    assert len(set(names)) == len(names)
    assert (*REQUEST_FIELDS, *INSTANCE_FIELDS) == OBSERVATION_FIELDS
    space = PrefixRoutingVectorEnv(1, num_requests=1).single_observation_space
    assert space["request"].shape == (len(REQUEST_FIELDS),)  # type: ignore[index]
    assert space["instances"].shape == (8 * len(INSTANCE_FIELDS),)  # type: ignore[index]
