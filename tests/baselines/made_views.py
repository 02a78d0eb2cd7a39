"""Views built by hand, without a simulator, for decisions worked by hand."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.view.view import EVENT_VIEW, HOLD, INSTANCE_VIEW, REQUEST_VIEW, View

BLOCK = 512


def cluster_of(num_instances: int, frontend_latency: float = 0.0) -> ClusterSpec:
    instance = InstanceSpec(profile=cast(Any, None), kv_blocks=100)
    return ClusterSpec((instance,) * num_instances, BLOCK, frontend_latency)


def view_of(
    cluster: ClusterSpec,
    requests: NDArray[np.void],
    block_ids: NDArray[np.int64],
    instances: NDArray[np.void],
    events: Sequence[Sequence[tuple[float, int, int, int]]] = (),
    num_slots: int = 64,
) -> View:
    """A view of these arrays; events (time, slot, instance, kind) of each environment, no holds."""
    num_envs = len(requests)
    heard = np.zeros((num_envs, 4 * num_slots), EVENT_VIEW)
    num_events = np.zeros(num_envs, np.int64)
    for e, row in enumerate(events):
        heard[e, : len(row)] = list(row)
        num_events[e] = len(row)
    holds = np.zeros(instances.shape, HOLD)
    return View(cluster, requests, block_ids, instances, heard, num_events, holds, num_slots)


def one_view(
    num_instances: int,
    ids: list[int] | None = None,
    request: dict[str, float] | None = None,
    **instances: ArrayLike,
) -> View:
    """A decision of one environment; columns that are not given are 0, every instance is up."""
    ids = [0, 1] if ids is None else ids
    requests = np.zeros(1, REQUEST_VIEW)
    requests["num_blocks"] = len(ids)
    requests["prompt_tokens"] = max(1, len(ids) * BLOCK)
    requests["slo_ttft"] = requests["slo_tpot"] = 1.0
    for name, value in (request or {}).items():
        requests[name] = value
    rows = np.zeros((1, num_instances), INSTANCE_VIEW)
    rows["available"] = 1
    for name, column in instances.items():
        rows[name] = column
    block_ids = np.full((1, 8), -1, np.int64)
    block_ids[0, : len(ids)] = ids
    return view_of(cluster_of(num_instances), requests, block_ids, rows)


def router_for(num_instances: int, name: str, seed: int = 0, **parameters: Any) -> Router:
    router = make_router(name, parameters)
    router.reset(cluster_of(num_instances), [seed])
    return router


def decide(router: Router, view: View) -> int:
    (choice,) = router.route(view)
    return int(choice)
