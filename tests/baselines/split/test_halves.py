"""A router for each half of a request: what each sees, hears and decides."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from prefixgym.baselines.router import Router, make_router, router_class
from prefixgym.baselines.split.halves import Halves, in_halves
from prefixgym.envs.cluster.spec import Role
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.view.view import DISPATCHED, ENDED, FIRST_TOKEN, View
from prefixgym.experiments.evaluate import Cell, evaluate, play

RATE = 20.0
SEEDS = (0, 1, 2)


def scenario(*roles: Role) -> Scenario:
    """split-8 with an instance for each role."""
    found = load_scenario("split-8").with_num_requests(300)
    group = found.cluster.instances[0].model_copy(update={"count": 1, "kv_blocks": 300})
    groups = tuple(group.model_copy(update={"role": role}) for role in roles)
    cluster = found.cluster.model_copy(update={"instances": groups})
    return found.model_copy(update={"cluster": cluster})


def outcomes(router: Router, found: Scenario) -> list[NDArray[np.void]]:
    setup = found.build(RATE)
    simulation = Simulation(**setup._asdict(), num_envs=len(SEEDS), record=True)
    play(simulation, router, setup.cluster, SEEDS)
    return [np.sort(simulation.outcomes(e), order="row") for e in range(len(SEEDS))]


@dataclass
class Counting(Router):
    """Counts its requests by what it hears, and holds that against the ledger of its view."""

    name = "counting"
    source = "this test"
    family = "test"
    answers: ClassVar[int] = 0

    def reset(self, cluster: object, seeds: object) -> None:
        self.requests: NDArray[np.int64] | None = None
        self.unanswered: NDArray[np.int64] | None = None
        self.turn = 0

    def route(self, view: View) -> NDArray[np.int64]:
        if self.requests is None or self.unanswered is None:
            self.requests = np.zeros(view.instances.shape, np.int64)
            self.unanswered = np.zeros(view.instances.shape, np.int64)
        for e in range(view.num_envs):
            for event in view.events[e, : view.num_events[e]]:
                i, kind = event["instance"], event["kind"]
                self.requests[e, i] += int(kind == DISPATCHED) - int(kind == ENDED)
                self.unanswered[e, i] += int(kind == DISPATCHED) - int(kind == FIRST_TOKEN)
                Counting.answers += kind == FIRST_TOKEN
        assert self.requests.tolist() == view.instances["requests"].tolist()
        assert (self.unanswered >= 0).all()
        assert (self.unanswered <= self.requests).all()
        self.turn += 1
        return np.arange(self.turn, self.turn + view.num_envs) % view.instances.shape[1]


@pytest.mark.parametrize(
    "roles",
    [("prefill", "prefill", "decode"), ("prefill", "decode", "decode")],
)
def test_each_half_hears_of_all_that_its_ledger_counts(roles: tuple[Role, ...]) -> None:
    found = scenario(*roles)
    Counting.answers = 0
    for ended in outcomes(Halves(Counting(), Counting()), found):
        assert len(ended) == 300
    assert Counting.answers > 300


def test_each_goes_where_its_half_may_be_done() -> None:
    for ended in outcomes(make_router("random"), scenario("decode", "prefill", "decode")):
        assert set(ended["instance"].tolist()) == {1}
        assert set(ended["decoder"].tolist()) == {0, 2}


def test_one_router_for_both_halves_is_a_pair_of_its_kind() -> None:
    found = scenario("prefill", "prefill", "decode", "decode")
    for one, pair in zip(
        outcomes(make_router("cache_aware"), found),
        outcomes(make_router("pd:cache_aware+cache_aware"), found),
        strict=True,
    ):
        np.testing.assert_array_equal(one, pair)


def test_the_two_halves_draw_different_numbers() -> None:
    found = scenario("prefill", "prefill", "decode", "decode")
    for ended in outcomes(make_router("pd:random+random"), found):
        same = (ended["instance"] == ended["decoder"] - 2).mean()
        assert 0.4 < same < 0.6


def test_what_is_short_without_its_cached_prefix_stays_where_it_decodes() -> None:
    found = scenario("prefill", "decode", "decode")
    for ended in outcomes(make_router("pd:least_load+llmd_precise", {"threshold": 500}), found):
        stays = ended["instance"] == ended["decoder"]
        assert 0.1 < stays.mean() < 0.9
        assert (ended["prompt_tokens"][~stays] >= 500).all()
    for ended in outcomes(make_router("pd:least_load+llmd_precise"), found):
        assert (ended["instance"] != ended["decoder"]).all()


def test_pairs_are_routers_by_name() -> None:
    pair = router_class("pd:llmd_precise+power_of_two")
    assert set(pair.knows) == {
        *router_class("llmd_precise").knows,
        *router_class("power_of_two").knows,
    }
    with pytest.raises(ValueError, match=r"found 'pd:random', allowed: pd:PREFILL\+DECODE"):
        router_class("pd:random")
    with pytest.raises(ValueError, match="found 'nobody', allowed: "):
        router_class("pd:random+nobody")
    with pytest.raises(ValueError, match="threshold: found -1, allowed: at least 0"):
        make_router("pd:random+random", {"threshold": -1})


def test_clusters_without_roles_have_no_halves() -> None:
    found = load_scenario("chat-8").with_num_requests(10)
    router = make_router("random")
    assert in_halves(router, found.build(RATE).cluster) is router
    with pytest.raises(ValueError, match="found a cluster without roles"):
        evaluate(Cell(found, RATE, "pd:random+random", (0,)))
    with pytest.raises(ValueError, match="found 'lookahead', which knows no roles"):
        evaluate(Cell(scenario("prefill", "decode"), RATE, "lookahead", (0,)))


def test_holding_back_reaches_the_instances_of_the_pool() -> None:
    found = scenario("decode", "prefill")

    @dataclass
    class Patient(Router):
        name = "patient"

        def route(self, view: View) -> NDArray[np.int64]:
            view.holds["release"] = view.requests["time"][:, None] + 0.05
            return np.zeros(view.num_envs, np.int64)

    held = outcomes(Halves(Patient(), make_router("random")), found)
    free = outcomes(Halves(make_router("random"), make_router("random")), found)
    for a, b in zip(held, free, strict=True):
        assert a["ttft"].min() > 0.05
        assert a["ttft"].mean() > b["ttft"].mean()
