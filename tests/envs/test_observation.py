"""The kernel writes what the table of observation fields says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.cluster.step_time import prefill_ticks, step_ticks
from prefixgym.envs.observation import (
    INSTANCE_FIELDS,
    OBSERVATION_FIELDS,
    REQUEST_FIELDS,
    observation_table,
)
from prefixgym.envs.vector import PrefixRoutingVectorEnv
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
}


def raw_of_profile(cluster: ClusterSpec, i: int, name: str) -> float:
    """The two speeds, which the profile alone decides."""
    costs = np.array([cluster.instances[i].profile.step_cost()])
    ticks = {
        "prefill_speed": lambda: prefill_ticks(costs[0], 4096, 0, 8192),
        "decode_speed": lambda: step_ticks(costs[0], 0, 0.0, 16, 16 * 2048, 16),
    }[name]()
    return float(ticks) / 1e12


def value_of(normalisation: str, x: float, view: View, e: int, i: int) -> float:
    """The formula in the field's own text, evaluated."""
    request = view.requests[e]
    names = {
        "x": x,
        "prompt": request["prompt_tokens"],
        "slo_ttft": request["slo_ttft"],
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
        raws = [
            raw_of_profile(view.cluster, i, f.name)
            if f.name.endswith("_speed")
            else RAW["instances", f.name](request, row)
            for f in INSTANCE_FIELDS
        ]
        formulas = [f.normalisation for f in INSTANCE_FIELDS]
        table.append(
            [value_of(text, x, view, e, i) for text, x in zip(formulas, raws, strict=True)]
        )
    return np.array(first), np.array(table)


ALL_AVAILABLE_ONE_CLASS = {"available", "slo_ttft", "slo_tpot"}


@pytest.mark.parametrize(
    ("scenario", "constant"),
    [
        ("shared-prompts-8", {"prompt_tokens", "prefill_speed", "decode_speed"}),
        ("chat-16-mixed", set()),
    ],
)
def test_every_column_is_what_its_field_says(scenario: str, constant: set[str]) -> None:
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
