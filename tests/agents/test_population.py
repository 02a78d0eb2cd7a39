"""A population routes as its members do one by one."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from prefixgym.agents.learned_router import Observer
from prefixgym.agents.linear_score import LinearScore, weight_row, weights_of
from prefixgym.agents.population import LinearPopulation, NetworkPopulation, Population
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.vector import PrefixRoutingVectorEnv
from prefixgym.envs.view.view import View

MEMBERS, EPISODES = 3, 2


def linear() -> Population:
    return LinearPopulation(weights_of(LinearScore()))


def network() -> Population:
    torch.manual_seed(0)
    prior = weight_row(weights_of(LinearScore())).tolist()
    return NetworkPopulation(InstanceScorer(4, prior=prior))


def scattered(population: Population) -> NDArray[np.float64]:
    origin = population.origin
    return origin + np.random.default_rng(0).normal(size=(MEMBERS, len(origin)))


def observed(view: View, cluster: ClusterSpec) -> NDArray[np.float32]:
    """What is observed of each instance, [E, N, F]."""
    return Observer(cluster, view.num_envs)(view)[1]


@pytest.mark.parametrize("make", [linear, network])
def test_each_member_routes_its_own_environments_as_it_would_alone(
    make: Callable[[], Population],
) -> None:
    population = make()
    population.members = scattered(population)
    env = PrefixRoutingVectorEnv(MEMBERS * EPISODES, "chat-8", rate=60.0, num_requests=40)
    simulation, seeds = env.episodes.simulation, list(range(MEMBERS * EPISODES))
    env.reset(seed=0)
    population.reset(simulation.cluster, seeds)
    routers = [population.router(member) for member in population.members]
    for router in routers:
        router.reset(simulation.cluster, seeds)
    differs = False
    for _ in range(40):
        together = population.route(simulation.view)
        alone = np.array([router.route(simulation.view) for router in routers])
        mine = alone[np.repeat(np.arange(MEMBERS), EPISODES), seeds]
        # Equal instances stay equal but for the last bits of a product.
        rows = observed(simulation.view, simulation.cluster)
        same = rows[seeds, together] == pytest.approx(rows[seeds, mine], abs=1e-6)
        assert same if isinstance(population, NetworkPopulation) else (together == mine).all()
        differs |= (alone != alone[0]).any()
        env.step(together)
    assert differs


@pytest.mark.parametrize("make", [linear, network])
def test_a_search_starts_at_the_prior(make: Callable[[], Population]) -> None:
    population = make()
    env = PrefixRoutingVectorEnv(2, "chat-8", rate=60.0, num_requests=30)
    simulation = env.episodes.simulation
    env.reset(seed=0)
    prior = LinearScore()
    for router in (population, prior):
        router.reset(simulation.cluster, [0, 1])
    for _ in range(30):
        chosen = population.route(simulation.view)
        assert chosen.tolist() == prior.route(simulation.view).tolist()
        env.step(chosen)


def test_a_network_is_its_parameters_one_after_the_other() -> None:
    population = NetworkPopulation(InstanceScorer(4))
    member = scattered(population)[1]
    made = NetworkPopulation(population.network(member)).origin
    assert made.tolist() == member.astype(np.float32).tolist()


def test_what_a_search_starts_from_has_a_digest() -> None:
    scorer = InstanceScorer(4, prior=weight_row(weights_of(LinearScore())).tolist())
    first = NetworkPopulation(scorer).digest
    assert NetworkPopulation(scorer).digest == first
    assert scorer.prior is not None
    scorer.prior[1] += 1
    assert NetworkPopulation(scorer).digest != first


def test_environments_must_divide_among_members() -> None:
    population = linear()
    population.members = scattered(population)
    env = PrefixRoutingVectorEnv(4, num_requests=5)
    with pytest.raises(ValueError, match="seeds: found 4, must be a multiple of the 3 members"):
        population.reset(env.episodes.simulation.cluster, [0, 1, 2, 3])
