"""Trainings are files, with single keys overridden; what is wrong in them is named."""

from pathlib import Path
from typing import Any

import pytest

from prefixgym.agents.linear_score import WEIGHED_COLUMNS, save_weights
from prefixgym.agents.scorer import COLUMNS
from prefixgym.experiments.training.config import (
    PPO,
    FlatOffTheShelf,
    OffTheShelf,
    make_training,
)
from prefixgym.experiments.training.judge import (
    Judge,
    Verdict,
    described_router,
    preference,
)


def test_a_training_survives_its_own_file(tmp_path: Path) -> None:
    overrides = {"clip": "0.1", "prior.ttft": "-5", "randomise.load": "[0.5, 2]", "slo.ttft": "1"}
    training = make_training(PPO, None, overrides | {"rate": 30.0})
    assert training.prior["ttft"] == -5.0
    assert training.prior["hit"] == PPO().prior["hit"]
    assert training.randomise.load == (0.5, 2.0)
    assert training.load_scenario().slo.ttft == 1.0  # type: ignore[union-attr]
    path = tmp_path / "mine.toml"
    path.write_text(training.toml())
    assert make_training(PPO, path, {}) == training
    assert make_training(PPO, path, {"seed": "7"}).seed == 7


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"clipp": "1"}, r"--set: clipp: no such key, allowed: scenario, .*clip"),
        ({"clip": "-1"}, r"--set: clip: found -1, input should be greater than 0"),
        ({"prior.ttf": "1"}, r"prior: found \['ttf'\], allowed: available, hit"),
        ({"clusters": "12"}, r"clusters: found 12, must be a multiple of rollouts_per_arrivals"),
        ({"randomise.lod": "[1, 2]"}, r"randomise.lod: no such key, allowed: load"),
        ({"credit": '"all"'}, r"credit: found 'all', input should be 'attributed'"),
        ({"handcrafted": "[]"}, r"handcrafted: found none"),
    ],
)
def test_what_is_wrong_is_named(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_training(PPO, None, overrides)


def test_a_prior_may_be_the_weights_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "found.safetensors"
    weights = dict.fromkeys(WEIGHED_COLUMNS, 0.0) | {"hit": 0.5, "backlog": -2.0}
    save_weights(file, weights, {})
    training = make_training(PPO, None, {"prior": f'"learned:{file}"', "sharpness": "10"})
    row = dict(zip(COLUMNS, training.prior_weights or [], strict=True))
    assert {k: v for k, v in row.items() if v} == {"hit": 5.0, "backlog": -20.0}
    file.unlink()  # what is written down needs no file
    written = tmp_path / "config.toml"
    written.write_text(training.toml())
    assert make_training(PPO, written, {}) == training
    for name, expected in [("learned/nobody", "learned/generalist"), ("learned:none", "no file")]:
        with pytest.raises(ValueError, match=f"prior: found '{name}'.*{expected}"):
            make_training(PPO, None, {"prior": f'"{name}"'})


def test_a_flat_network_has_neither_prior_nor_attention() -> None:
    assert make_training(FlatOffTheShelf, None, {}).choices == {"net_arch": [64, 64]}
    with pytest.raises(ValueError, match=r"prior: found {'hit': 1}, .* at most 0 items"):
        make_training(FlatOffTheShelf, None, {"prior.hit": "1"})
    with pytest.raises(ValueError, match="attention: found True, input should be False"):
        make_training(FlatOffTheShelf, None, {"attention": "true"})


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("clip = = 1")
    with pytest.raises(ValueError, match=r"bad.toml: not a readable TOML file"):
        make_training(OffTheShelf, path, {})


def test_routers_are_described_with_their_parameters() -> None:
    router: Any = described_router("loadaware:beta=0.25")
    assert (router.name, router.beta) == ("loadaware", 0.25)
    assert described_router("min_ttft").name == "min_ttft"
    with pytest.raises(ValueError, match=r"router: found 'nope'"):
        described_router("nope")


def test_the_tail_is_held_against_the_best_handcrafted_router() -> None:
    judge: Any = Judge(None, 1.0, [], tail_limit=1.1)  # type: ignore[arg-type]
    judge.handcrafted["good"] = Verdict({"attainment": 0.9, "ttft_p99": 1.0})
    judge.handcrafted["slow"] = Verdict({"attainment": 0.8, "ttft_p99": 9.0})
    assert judge.limit == 1.1
    assert judge.allows(Verdict({"attainment": 0.1, "ttft_p99": 1.1}))
    assert not judge.allows(Verdict({"attainment": 1.0, "ttft_p99": 1.2}))


def test_a_tail_beyond_the_limit_is_never_preferred() -> None:
    pairs = [(0.9, 1.0), (0.8, 0.5), (0.99, 3.0), (1.0, 9.0)]  # best first
    order = [Verdict({"attainment": a, "ttft_p99": t}) for a, t in pairs]
    for i, one in enumerate(order):
        for j, other in enumerate(order):
            assert (preference(one, 1.1) > preference(other, 1.1)) == (i < j)
