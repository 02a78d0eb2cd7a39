"""How many keys lose their home when an instance leaves or joins, router by router.

Of N instances, one owns about 1/N of the keys. A consistent hash moves these and no others. Real
routers that hash modulo the number of instances (Lodestar's, see its docstring) move nearly all.
"""

from typing import Any

import numpy as np
import pytest
from made_views import BLOCK, cluster_of, view_of
from numpy.typing import NDArray

from prefixgym.baselines.router import Router, make_router
from prefixgym.envs.view.view import INSTANCE_VIEW, REQUEST_VIEW

KEYS = 2000
N = 8

# Routers whose home is a hash of the session or of the prefix alone, as long as nothing is loaded
# and nothing is cached.
HOMES: list[tuple[str, dict[str, Any]]] = [
    ("session_affinity", {}),
    ("consistent_hash", {}),
    ("consistent_hash", {"failover": "first"}),
    ("rendezvous_hash", {}),
    ("prefix_hash", {}),
    ("kvaware", {}),
    ("probabilistic", {"affinity": "session"}),
    ("probabilistic", {"affinity": "prefix"}),
]


def homes(router: Router, absent: tuple[int, ...] = ()) -> NDArray[np.int64]:
    """Where each of KEYS sessions, each with a prompt of its own, would go, int64 [KEYS]."""
    requests = np.zeros(KEYS, REQUEST_VIEW)
    requests["session"] = np.arange(KEYS)
    requests["num_blocks"] = 1
    requests["prompt_tokens"] = BLOCK
    requests["slo_ttft"] = requests["slo_tpot"] = 1.0
    instances = np.zeros((KEYS, N), INSTANCE_VIEW)
    instances["available"] = 1
    instances["available"][:, list(absent)] = 0
    block_ids = np.arange(KEYS)[:, None]
    return router.route(view_of(cluster_of(N), requests, block_ids, instances))


def router_of(name: str, parameters: dict[str, Any]) -> Router:
    """One for KEYS environments, so that it decides on all sessions at once."""
    router = make_router(name, parameters)
    router.reset(cluster_of(N), [0] * KEYS)
    return router


@pytest.mark.parametrize(("name", "parameters"), HOMES)
@pytest.mark.parametrize("leaving", [0, 3])
def test_only_the_keys_of_a_leaving_instance_move(
    name: str, parameters: dict[str, Any], leaving: int
) -> None:
    router = router_of(name, parameters)
    before, after = homes(router), homes(router, (leaving,))
    lost = before == leaving
    # 1/8 of 2,000 keys, give or take the unevenness of 160 points an instance (8 %) and chance.
    assert 0.6 / N < lost.mean() < 1.4 / N
    assert (after != leaving).all()
    np.testing.assert_array_equal(before[~lost], after[~lost])
    heirs = np.bincount(after[lost], minlength=N)
    if parameters.get("failover") == "first":  # all that it had is a burden for one
        assert np.count_nonzero(heirs) == 1
    else:
        assert np.count_nonzero(heirs) == N - 1


@pytest.mark.parametrize(("name", "parameters"), HOMES)
def test_a_joining_instance_takes_its_share_and_nothing_else_moves(
    name: str, parameters: dict[str, Any]
) -> None:
    router = router_of(name, parameters)
    before, after = homes(router, (N - 1,)), homes(router)
    moved = before != after
    assert 0.6 / N < moved.mean() < 1.4 / N
    assert (after[moved] == N - 1).all()


@pytest.mark.parametrize(("name", "parameters"), HOMES)
def test_keys_are_at_home_again_when_the_instance_is_back(
    name: str, parameters: dict[str, Any]
) -> None:
    router = router_of(name, parameters)
    before = homes(router)
    homes(router, (2, 5))
    np.testing.assert_array_equal(homes(router), before)
