"""PPO learns, and a training that was interrupted ends as one that was not."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.scorer import COLUMNS, InstanceScorer
from prefixgym.agents.weights import load_weights
from prefixgym.experiments.training.config import PPO, make_training
from prefixgym.experiments.training.judge import Judge, Verdict
from prefixgym.experiments.training.ppo import Learner, train, updates_made
from prefixgym.experiments.training.run_folder import RunFolder
from prefixgym.experiments.training.session import run_ppo

SMALL: dict[str, Any] = {
    "rate": 60.0,
    "steps": 2000,
    "num_requests": 60,
    "clusters": 8,
    "rollouts_per_arrivals": 4,
    "rollout": 16,
    "wait": 24,
    "minibatch": 32,
    "hidden": 8,
    "evaluate_every": 500,
    "checkpoint_every": 4,
    "validation_episodes": 1,
    "test_episodes": 2,
    "handcrafted": ["min_ttft"],
}


def small(tiny: Path, **changes: Any) -> PPO:
    return make_training(PPO, None, {"scenario": f'"{tiny}"'} | SMALL | changes)


class _KilledError(Exception):
    pass


@pytest.mark.parametrize("credit", ["attributed", "goodput", "shaped"])
def test_an_interrupted_training_ends_as_one_that_was_not(
    credit: str, tiny: Path, tmp_path: Path
) -> None:
    training = small(tiny, credit=f'"{credit}"')
    judge = Judge(training.load_scenario(), 60.0, [10])
    judge.handcrafted["min_ttft"] = Verdict({"attainment": 0.5, "ttft_p99": 100.0})
    end: list[dict[str, torch.Tensor]] = []

    def to_the_end(path: Path, kill_at: tuple[int, ...]) -> RunFolder:
        folder = RunFolder(path, training, "ppo")

        def on_update(update: int, notes: dict[str, float], *_: object) -> None:
            if kill_at and update == kill_at[0]:
                raise _KilledError

        try:
            learner = train(training, folder, judge, on_update, lambda scorer, seconds: None)
            end.append(learner.tensors())
        except _KilledError:
            to_the_end(path, kill_at[1:])
        return folder

    assert training.updates == 16
    whole = to_the_end(tmp_path / "whole", ())
    # After a checkpoint, with some updates to be done again; and before any.
    parts = to_the_end(tmp_path / "parts", (2, 7, 10))
    assert end[0].keys() == end[1].keys()
    for name, tensor in end[0].items():
        assert tensor.equal(end[1][name]), name
    untimed = [
        [
            {k: v for k, v in row.items() if k not in ("charts/seconds", "charts/SPS")}
            for row in folder.curve()
        ]
        for folder in (whole, parts)
    ]
    for rows in untimed:
        for row in rows:
            row.pop("charts/share_of_time_playing")
    assert untimed[0] == untimed[1]
    assert [row["update"] for row in untimed[0]] == list(range(1, 17))
    assert updates_made(parts) == 16


def test_it_unlearns_a_bad_prior(tiny: Path) -> None:
    """Told to queue where most prefill waits, it finds out that this is wrong."""
    training = small(
        tiny,
        rate=150.0,
        steps=40_000,
        clusters=16,
        rollout=64,
        wait=64,
        minibatch=128,
        learning_rate=0.01,
        prior={"backlog": 2.0},
        hidden=16,
    )
    learner = Learner(training)
    shares = [learner.update()["serving/rollout_attainment"] for _ in range(training.updates)]
    learner.clusters.close()
    first, last = sum(shares[1:5]) / 4, sum(shares[-4:]) / 4
    assert last > first + 0.1


def test_the_best_weights_are_kept_reported_and_routed_by(tiny: Path, tmp_path: Path) -> None:
    told: list[int] = []
    found = run_ppo(small(tiny), tmp_path / "run", told.append)
    assert told == [128] * 16
    assert found.summary["router"].to_list() == ["learned", "min_ttft"]
    assert found.summary["seeds"].to_list() == [2, 2]
    scorer, card = load_weights(tmp_path / "run" / "best.safetensors")
    assert isinstance(scorer, InstanceScorer)
    assert scorer.head.in_features == 8
    assert card.table["learned"]["attainment"] == found.summary["attainment"][0]
    assert str(tiny) in card.scenario
    # Once finished it is only read again.
    again = run_ppo(small(tiny), tmp_path / "run", told.append)
    assert len(told) == 16
    assert again.summary["attainment"].to_list() == found.summary["attainment"].to_list()


def test_what_is_kept_gets_better_by_the_judges_rule(tiny: Path, tmp_path: Path) -> None:
    """Where nothing is within the limit on the tail, a shorter tail is better."""
    training = small(tiny)
    for limit, path in ((100.0, tmp_path / "within"), (1e-6, tmp_path / "beyond")):
        judge = Judge(training.load_scenario(), 60.0, [10])
        judge.handcrafted["min_ttft"] = Verdict({"attainment": 0.5, "ttft_p99": limit})
        kept: list[InstanceScorer] = []
        train(
            training,
            RunFolder(path, training, "ppo"),
            judge,
            lambda *_: None,
            lambda scorer, _, kept=kept: kept.append(copy.deepcopy(scorer)),  # type: ignore[misc]
        )
        verdicts = [judge.verdict(LearnedRouter(scorer)) for scorer in kept]
        assert all(judge.allows(verdict) == (limit == 100.0) for verdict in verdicts)
        for worse, better in itertools.pairwise(verdicts):
            if limit == 100.0:
                assert better.attainment > worse.attainment
            else:
                assert better.tail < worse.tail


def test_a_folder_holds_one_training(tiny: Path, tmp_path: Path) -> None:
    RunFolder(tmp_path / "run", small(tiny), "ppo")
    with pytest.raises(ValueError, match=r"holds another training, with other clip, steps: choose"):
        RunFolder(tmp_path / "run", small(tiny, steps=1, clip=0.1), "ppo")


def test_untrained_weights_are_the_prior(tiny: Path) -> None:
    learner = Learner(small(tiny, prior={"ttft": -1.5}, sharpness=2.0))
    request, instances = map(torch.from_numpy, learner.clusters.seen)
    expected = -3.0 * instances[:, :, COLUMNS.index("ttft")]
    torch.testing.assert_close(learner.actor(request, instances), expected)
    learner.clusters.close()
