"""CMA-ES finds better routers, the same ones for one seed, and goes on where it was killed."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cmaes import CMA, SepCMA

from prefixgym.agents.linear_score import WEIGHED_COLUMNS, LinearScore, weight_row, weights_of
from prefixgym.agents.population import LinearPopulation, NetworkPopulation, Population
from prefixgym.agents.scorer import InstanceScorer
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.evolution import checkpoint
from prefixgym.experiments.evolution.checkpoint import Progress
from prefixgym.experiments.evolution.search import CHECKPOINT, Budget, Search, begin, evolve


def search_on(tiny: Path, **changes: int) -> Search:
    scenario = load_scenario(str(tiny), {}).with_num_requests(60)
    settings = {"members": 6, "episodes": 2, "judge_every": 2, "validation_episodes": 2}
    return Search(scenario, scenario, rate=80.0, **(settings | changes))


def linear() -> Population:
    """Far from good: it sends everything where most is to do."""
    return LinearPopulation(dict.fromkeys(WEIGHED_COLUMNS, 0.0) | {"backlog": 0.1, "hit": -0.1})


def network() -> Population:
    torch.manual_seed(0)
    prior = weight_row(weights_of(LinearScore())).tolist()
    return NetworkPopulation(InstanceScorer(2, prior=prior))


def run(search: Search, population: Population, generations: int, folder: Path) -> Progress:
    folder.mkdir(exist_ok=True)
    started = begin(search, population, folder)
    return evolve(search, population, Budget(generations), folder, started)


def assert_equal(one: Progress, other: Progress) -> None:
    assert one.generation == other.generation
    assert one.history == other.history
    assert one.optimizer.mean.tolist() == other.optimizer.mean.tolist()
    assert one.best.member.tolist() == other.best.member.tolist()
    assert one.best.generation == other.best.generation
    assert one.best.verdict == other.best.verdict


@pytest.mark.parametrize("make", [linear, network])
def test_an_interrupted_search_ends_as_one_that_was_not(
    make: Callable[[], Population], tiny: Path, tmp_path: Path
) -> None:
    whole = run(search_on(tiny), make(), 5, tmp_path / "whole")
    run(search_on(tiny), make(), 3, tmp_path / "parts")
    assert_equal(run(search_on(tiny), make(), 5, tmp_path / "parts"), whole)
    other = run(search_on(tiny, seed=1), make(), 5, tmp_path / "other")
    assert other.optimizer.mean.tolist() != whole.optimizer.mean.tolist()


def _die_in_the_third(tiny: Path, folder: Path) -> None:
    search, population = search_on(tiny), linear()
    started = begin(search, population, folder)

    def die(progress: Progress, verdict: object) -> None:
        if progress.generation == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    evolve(search, population, Budget(5), folder, started, die)


def test_a_killed_process_loses_nothing_that_was_written(tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    process = multiprocessing.get_context("spawn").Process(
        target=_die_in_the_third, args=(tiny, folder)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert run(search_on(tiny), linear(), 3, folder).generation == 3
    assert_equal(
        run(search_on(tiny), linear(), 5, folder),
        run(search_on(tiny), linear(), 5, tmp_path / "whole"),
    )


def test_fitness_rises_and_the_best_beats_the_start(tiny: Path, tmp_path: Path) -> None:
    found = run(search_on(tiny, members=10), linear(), 12, tmp_path / "run")
    mean = [row["fitness/mean"] for row in found.history[1:]]
    assert np.mean(mean[-3:]) > np.mean(mean[:3]) + 0.1
    start = begin(search_on(tiny, members=10), linear(), tmp_path / "none")
    assert start.best.generation == 0
    assert found.best.generation > 0
    assert found.best.verdict.attainment > start.best.verdict.attainment


def test_a_checkpoint_of_another_search_is_not_gone_on_with(tiny: Path, tmp_path: Path) -> None:
    run(search_on(tiny), linear(), 1, tmp_path)
    with pytest.raises(ValueError, match="its search has episodes = 2, found 3"):
        run(search_on(tiny, episodes=3), linear(), 1, tmp_path)
    with pytest.raises(ValueError, match="kind = 'linear_population', found 'network"):
        run(search_on(tiny), network(), 1, tmp_path)
    elsewhere = LinearPopulation(weights_of(LinearScore()))
    with pytest.raises(ValueError, match="its search has start = "):
        run(search_on(tiny), elsewhere, 1, tmp_path)


def test_a_half_written_checkpoint_is_not_seen(tiny: Path, tmp_path: Path) -> None:
    found = run(search_on(tiny), linear(), 2, tmp_path)
    (tmp_path / CHECKPOINT).with_suffix(".unfinished").write_bytes(b"half")
    again = checkpoint.read(tmp_path / CHECKPOINT, found.identity)
    assert again is not None
    assert_equal(again, found)


def test_time_ends_a_search_too(tiny: Path, tmp_path: Path) -> None:
    search, population = search_on(tiny), linear()
    started = begin(search, population, tmp_path)
    found = evolve(search, population, Budget(seconds=1e-6), tmp_path, started)
    assert found.generation == 1


@pytest.mark.parametrize("method", [CMA, SepCMA])
def test_a_checkpoint_keeps_every_bit_of_the_optimizer(
    method: type[CMA | SepCMA], tiny: Path, tmp_path: Path
) -> None:
    found = run(search_on(tiny), linear(), 1, tmp_path)
    found.optimizer = method(found.optimizer.mean, 0.3, population_size=4)
    asked = [found.optimizer.ask() for _ in range(4)]
    found.optimizer.tell([(member, float(k)) for k, member in enumerate(asked)])
    written = checkpoint.write(tmp_path / CHECKPOINT, found)
    again = checkpoint.read(tmp_path / CHECKPOINT, found.identity)
    assert again is not None
    for one in (written, again):
        assert type(one.optimizer) is method
        theirs, ours = one.optimizer.__getstate__(), found.optimizer.__getstate__()
        assert theirs.keys() == ours.keys()
        for name, value in ours.items():
            np.testing.assert_array_equal(theirs[name], value)
        one.optimizer.reseed_rng(1)
    assert written.optimizer.ask().tolist() == again.optimizer.ask().tolist()


def test_a_damaged_checkpoint_is_named(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT).write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match=r"checkpoint.safetensors: not a checkpoint of a training"):
        run(search_on(tiny), linear(), 1, tmp_path)
