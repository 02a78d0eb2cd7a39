"""Domain randomisation: what is drawn, that episodes are really played so, and what is refused."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode

from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.observation import INSTANCE_FIELDS, instance_constants
from prefixgym.envs.routing import PrefixRoutingEnv
from prefixgym.envs.scenarios.randomisation import (
    Conditioner,
    Conditions,
    Randomisation,
    make_randomisation,
)
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.simulation import Simulation
from prefixgym.envs.slo import Slo
from prefixgym.envs.vector import PrefixRoutingVectorEnv
from prefixgym.envs.vector_checker import check_vector_env

PROFILES = ("llama-3.1-70b/h100/tp4", "llama-3.1-8b/a100/tp1", "dynamo-mocker/polynomial")
EVERYTHING: dict[str, Any] = {
    "load": [0.5, 2.0],
    "instances": 2,
    "profiles": list(PROFILES),
    "kv_blocks": [0.02, 1.5],
    "slo": [0.5, 3.0],
}
ARGUMENTS: dict[str, Any] = {
    "scenario": load_scenario(
        "chat-8",
        {
            "cluster.instances.0.count": "5",
            "knowledge.index.source": "engine",
            "knowledge.telemetry.interval": "0",
        },
    ),
    "rate": 20.0,
    "num_requests": 30,
    "randomise": EVERYTHING,
}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_checker_passes_and_singles_are_equal(mode: AutoresetMode) -> None:
    arguments = ARGUMENTS | {
        "num_requests": 8,
        "rate": 200.0,
        "reward": {"mode": "attributed", "tardiness": 0.1},
        "allow_reject": True,
        "discount_time": 10.0,
    }
    check_vector_env(
        lambda num_envs: PrefixRoutingVectorEnv(num_envs, autoreset_mode=mode, **arguments),
        lambda: PrefixRoutingEnv(**arguments),
        num_envs=4,
    )


def test_a_randomised_episode_is_one_on_the_cluster_that_was_drawn() -> None:
    env = PrefixRoutingVectorEnv(6, autoreset_mode="Disabled", **ARGUMENTS)
    generator = np.random.default_rng(0)
    seen = []
    observation, info = env.reset(seed=1)
    drawn = info["randomisation"]
    twins = []
    for e in range(6):
        present = np.flatnonzero(drawn["kv_blocks"][e])
        twins.append(twin_of({k: v[e] for k, v in drawn.items() if k[0] != "_"}, present, e + 1))
    for _ in range(30):
        masks = info["action_mask"]
        actions = np.array([generator.choice(np.flatnonzero(mask)) for mask in masks])
        view = env.episodes.simulation.view
        table = observation["instances"].reshape(6, 5, len(INSTANCE_FIELDS))
        good = []
        for e, (twin, present) in enumerate(twins):
            assert masks[e].tolist() == [int(i in present) for i in range(5)]
            assert not table[e][masks[e] == 0].any()
            for name in view.instances.dtype.names or ():
                mine = view.instances[name][e, present]
                assert (mine == twin.view.instances[name][0]).all(), name
            assert (view.requests[e] == twin.view.requests[0]).all()
            twin.step(np.searchsorted(present, actions[e])[None])
            good.append(float(twin.good[0]))
            speeds = instance_constants(twin.cluster)
            expected = speeds[:, 1] / (speeds[:, 1] + 0.1)
            np.testing.assert_allclose(table[e, present, -2], expected, rtol=1e-6)
        observation, rewards, _, _, info = env.step(actions)
        assert rewards.tolist() == good
        seen += good
    assert env.episodes.simulation.done.all()
    assert 0 < sum(seen) < 6 * 30


def twin_of(drawn: dict[str, Any], present: Any, seed: int) -> tuple[Simulation, Any]:
    """The same episode on a cluster of only those instances that are there."""
    scenario = ARGUMENTS["scenario"].with_num_requests(30)
    cluster, workload, slos = scenario.build(drawn["rate"])[:3]
    instances = tuple(
        replace(
            cluster.instances[i],
            kv_blocks=int(drawn["kv_blocks"][i]),
            profile=profile(PROFILES[drawn["profile"][i]]),
        )
        for i in present
    )
    scaled = [Slo(s.ttft * drawn["slo"], s.tpot * drawn["slo"]) for s in slos]
    simulation = Simulation(
        ClusterSpec(instances, cluster.block_size, cluster.frontend_latency), workload, scaled
    )
    train = scenario.seeds.of("train")
    simulation.reset([train[int(np.random.default_rng(seed).integers(len(train)))]])
    return simulation, present


def draws(randomisation: dict[str, Any], count: int = 400) -> list[Conditions]:
    cluster = ARGUMENTS["scenario"].build(20.0).cluster
    conditioner = Conditioner(make_randomisation(randomisation), cluster)
    return [conditioner.draw(np.random.default_rng(seed)) for seed in range(count)]


def test_draws_fill_their_ranges() -> None:
    found = draws(EVERYTHING)
    for name, (low, high) in (("load", (0.5, 2.0)), ("slo", (0.5, 3.0))):
        factors = np.log([getattr(one, name) for one in found])
        assert np.log(low) <= factors.min() < np.log(low) + 0.05
        assert np.log(high) - 0.05 < factors.max() <= np.log(high)
        assert factors.mean() == pytest.approx(np.log(low * high) / 2, abs=0.1)
    there = np.array([one.kv_blocks > 0 for one in found])
    assert np.bincount(there.sum(1)).tolist()[:2] == [0, 0]
    assert (np.bincount(there.sum(1))[2:] > 60).all()  # 2 to 5 of 5, a quarter each
    assert there.mean(0) == pytest.approx([0.7] * 5, abs=0.1)  # whichever they are
    which = np.array([one.profile for one in found])
    assert (np.bincount(which.ravel(), minlength=3) > 550).all()
    capacity = [profile(name).kv_capacity_tokens // 256 for name in PROFILES]
    share = np.array([one.kv_blocks / np.array(capacity)[one.profile] for one in found])[there]
    assert 0.019 < share.min() < 0.025
    assert 1.4 < share.max() < 1.501


def test_what_is_left_out_stays_as_it_is_and_changes_nothing_else() -> None:
    base = draws({})
    own = [ARGUMENTS["scenario"].build(20.0).cluster.kv_blocks(i) for i in range(5)]
    for one in base:
        assert (one.load, one.slo) == (1.0, 1.0)
        assert one.kv_blocks.tolist() == own
        assert one.profile.tolist() == [-1] * 5
    everything = draws(EVERYTHING)
    for name in ("load", "slo"):
        alone = draws({name: EVERYTHING[name]})
        assert [getattr(one, name) for one in alone] == [getattr(one, name) for one in everything]


def test_equal_seeds_draw_the_same_whatever_runs_beside() -> None:
    env = PrefixRoutingEnv(**ARGUMENTS)
    batch = PrefixRoutingVectorEnv(3, threads=2, **ARGUMENTS)
    found = batch.reset(seed=8)[1]["randomisation"]
    for e in range(3):
        for key, value in env.reset(seed=8 + e)[1]["randomisation"].items():
            assert data_equivalence(found[key][e], np.asarray(value)[()], exact=True)
    batch.close()
    assert env.reset()[1]["randomisation"]["rate"] != env.reset()[1]["randomisation"]["rate"]


def test_routing_to_an_instance_that_is_not_there_is_refused() -> None:
    env, batch = PrefixRoutingEnv(**ARGUMENTS), PrefixRoutingVectorEnv(2, **ARGUMENTS)
    seed = 0
    while env.reset(seed=seed)[1]["action_mask"].all():
        seed += 1
    missing = int(np.argmin(env.action_masks()))
    message = f"found {missing}, an instance that is not available; info.'action_mask'. tells"
    with pytest.raises(ValueError, match="action: " + message):
        env.step(np.int64(missing))
    masks = batch.reset(seed=seed)[1]["action_mask"]
    actions = masks.argmax(1)
    actions[0] = missing
    with pytest.raises(
        ValueError, match=f"actions: found {missing} for sub-environment 0, an inst"
    ):
        batch.step(actions)


def test_a_scenario_may_say_what_differs(tmp_path: Any) -> None:
    scenario = load_scenario(
        "shared-prompts-8", {"randomisation.slo": "[1, 2]", "randomisation.instances": "8"}
    )
    env = PrefixRoutingEnv(scenario, num_requests=3)
    assert env.episodes.randomisation == Randomisation(slo=(1, 2), instances=8)
    assert 1 <= env.reset(seed=0)[1]["randomisation"]["slo"] <= 2
    assert (
        "randomisation" not in PrefixRoutingEnv(scenario, num_requests=3, randomise={}).reset()[1]
    )
    assert "randomisation" not in PrefixRoutingEnv(num_requests=3).reset()[1]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"rate": 3}, "randomise.rate: no such key, allowed: load, instances, profiles, kv_b"),
        ({"load": [2, 1]}, r"randomise.load: found .*, must be \[low, high\] with 0 < low <= high"),
        ({"load": 2}, "randomise.load: found 2, "),
        ({"instances": 0}, "randomise.instances: found 0, .* greater than or equal to 1"),
        ({"instances": 6}, "randomisation.instances: found 6, the scenario has 5 instances"),
        ({"profiles": ["gpt"]}, "randomise.profiles: found .*profile: found 'gpt'"),
    ],
)
def test_a_bad_choice_gives_one_clear_error(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixRoutingEnv(**ARGUMENTS | {"randomise": choice})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("randomisation.instances", "9", "randomisation.instances: found 9, .* has 8 instances"),
        ("randomisation.slo", "[0, 1]", r"randomisation.slo: found \[0.0, 1.0\], must be"),
        ("randomisation.pace", "1", "randomisation.pace: no such key, allowed: load, instances"),
    ],
)
def test_a_bad_table_gives_one_clear_error(key: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"shared-prompts-8.toml: {message}"):
        load_scenario("shared-prompts-8", {key: value})
