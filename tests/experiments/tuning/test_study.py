"""A search finds better parameters, the same for one seed, also where it was killed midway."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.goodput_objective import GoodputObjective
from prefixgym.experiments.tuning import study
from prefixgym.experiments.tuning.spaces import defaults, suggest
from prefixgym.experiments.tuning.study import Tuned, Tuning, tune

RATE = 240.0  # requests/s: defaults miss many objectives


def tuning_on(tiny: Path, trials: int = 14, seed: int = 0) -> Tuning:
    scenario = load_scenario(str(tiny), {}).with_num_requests(80)
    return Tuning(scenario, rate=RATE, trials=trials, rungs=2, episodes=2, seed=seed)


def in_folder(path: Path, tuning: Tuning, router: str = "loadaware") -> Tuned:
    path.mkdir(exist_ok=True)
    return tune(tuning, router, path)


def test_scores_are_those_of_the_routers_on_the_training_episodes(
    tiny: Path, tmp_path: Path
) -> None:
    tuning = tuning_on(tiny)
    found = in_folder(tmp_path, tuning)
    score = GoodputObjective(tuning.scenario, tuning.rate, len(tuning.seeds))
    for parameters, expected in (({}, found.default_score), (found.parameters, found.score)):
        scores = score(make_router("loadaware", parameters), tuning.seeds)
        assert scores.mean() == pytest.approx(expected, abs=1e-12)
    assert found.score > found.default_score
    assert found.parameters.keys() == defaults("loadaware").keys()
    assert found.trials == 14
    assert 0 < found.given_up < 14


def test_an_interrupted_search_ends_as_one_that_was_not(tiny: Path, tmp_path: Path) -> None:
    whole = in_folder(tmp_path / "whole", tuning_on(tiny))
    in_folder(tmp_path / "parts", tuning_on(tiny, trials=4))
    assert in_folder(tmp_path / "parts", tuning_on(tiny)) == whole
    other = in_folder(tmp_path / "other", tuning_on(tiny, seed=1))
    assert other.default_score == whole.default_score
    assert other.parameters != whole.parameters


def _die_within_a_trial(tiny: Path, folder: Path, call: int) -> None:
    calls = 0

    def dying(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return suggest(*arguments)  # type: ignore[arg-type]

    setattr(study, "suggest", dying)  # noqa: B010  (mypy sees no such export)
    in_folder(folder, tuning_on(tiny))


@pytest.mark.parametrize("call", [1, 13])  # in the trial of the defaults, and much later
def test_a_killed_process_loses_its_trial_and_nothing_else(
    call: int, tiny: Path, tmp_path: Path
) -> None:
    killed = tmp_path / "killed"
    process = multiprocessing.get_context("spawn").Process(
        target=_die_within_a_trial, args=(tiny, killed, call)
    )
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert in_folder(killed, tuning_on(tiny)) == in_folder(tmp_path / "whole", tuning_on(tiny))


def test_a_journal_of_another_search_is_not_gone_on_with(tiny: Path, tmp_path: Path) -> None:
    in_folder(tmp_path, tuning_on(tiny, trials=1))
    with pytest.raises(ValueError, match=r"loadaware\.journal: its search has another seed"):
        in_folder(tmp_path, tuning_on(tiny, seed=5))
