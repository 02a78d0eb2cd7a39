"""Weights survive a file together with their card, and routers are made of them by name."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from prefixgym.agents import files
from prefixgym.agents.files import checksum
from prefixgym.agents.flat_scorer import FlatScorer
from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.scorer import COLUMNS, InstanceScorer
from prefixgym.agents.weights import Card, card_of, load_weights, save_weights
from prefixgym.baselines.router import make_router, router_class, router_names
from prefixgym.envs.observation import REQUEST_FIELDS
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.evaluate import Cell, evaluate, evaluate_router


def saved(folder: Path, name: str = "net", **choices: Any) -> tuple[Path, InstanceScorer]:
    torch.manual_seed(0)
    scorer = InstanceScorer(8, **choices)
    for parameter in scorer.parameters():
        torch.nn.init.normal_(parameter)
    path = folder / f"{name}.safetensors"
    table = {"learned": {"attainment": 0.5}}
    save_weights(path, scorer, card_of(scorer, command="prefixgym train", seed=3, table=table))
    return path, scorer


@pytest.mark.parametrize(
    "choices", [{}, {"attention": True}, {"prior": np.linspace(-1, 1, len(COLUMNS)).tolist()}]
)
def test_a_network_survives_a_file_with_its_card(choices: dict[str, Any], tmp_path: Path) -> None:
    path, scorer = saved(tmp_path, **choices)
    again, card = load_weights(path)
    request, instances = torch.rand(4, len(REQUEST_FIELDS)), torch.rand(4, 6, len(COLUMNS))
    assert again(request, instances).equal(scorer(request, instances))
    assert (card.hidden, card.attention) == (8, "attention" in choices)
    assert card.prior == ("prior" in choices)
    assert (card.command, card.seed) == ("prefixgym train", 3)
    assert card.table["learned"]["attainment"] == 0.5


def test_a_flat_network_survives_a_file_with_its_card(tmp_path: Path) -> None:
    scorer, path = FlatScorer(6, 8), tmp_path / "flat.safetensors"
    save_weights(path, scorer, card_of(scorer, seed=3))
    again, card = load_weights(path)
    request, instances = torch.rand(4, len(REQUEST_FIELDS)), torch.rand(4, 6, len(COLUMNS))
    assert again(request, instances).equal(scorer(request, instances))
    assert (card.network, card.num_instances, card.hidden, card.seed) == ("flat", 6, 8, 3)
    router = make_router(f"learned:{path}")
    assert isinstance(router, LearnedRouter)
    with pytest.raises(ValueError, match="instances: found 8, this flat network is for 6 only"):
        evaluate_router(router, load_scenario("chat-8").with_num_requests(2), 60.0, (0,))


def test_its_name_routes_as_the_network_and_keys_change_with_the_file(tmp_path: Path) -> None:
    path, scorer = saved(tmp_path)
    name = f"learned:{path}"
    scenario = load_scenario("chat-8").with_num_requests(200)
    cell = Cell(scenario, 60.0, name, (0, 1))
    found = evaluate(cell).drop("router")
    assert found.equals(
        evaluate_router(LearnedRouter(scorer), scenario, 60.0, (0, 1)).drop("router")
    )
    assert not found.equals(evaluate(Cell(scenario, 60.0, "min_ttft", (0, 1))).drop("router"))
    assert re.fullmatch(r"[\w.-]+", cell.key)
    before = cell.key
    other, _ = saved(tmp_path, "other", attention=True)
    path.write_bytes(other.read_bytes())
    assert cell.key != before


def test_weights_can_be_pinned(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    digits = checksum(path)
    router: Any = make_router(f"learned:{path}", {"weights": digits[:6]})
    assert router.weights == digits
    with pytest.raises(ValueError, match=f"weights: found 'abc', allowed: {digits}"):
        make_router(f"learned:{path}", {"weights": "abc"})


def test_shipped_weights_have_short_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, "chat")
    monkeypatch.setattr(files, "shipped_folder", lambda: tmp_path)
    assert router_class("learned/chat").name == "learned/chat"
    assert "learned/chat" not in router_names()
    with pytest.raises(ValueError, match=r"found 'learned/char', allowed: .*learned/chat"):
        make_router("learned/char")


def test_all_shipped_weights_load() -> None:
    for name in files.shipped_names():
        make_router(f"learned/{name}")


def test_what_is_wrong_with_a_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ValueError, match=r"but .*x\.safetensors is no file"):
        make_router(f"learned:{path}")
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=r"x\.safetensors: not a readable safetensors file"):
        load_weights(path)
    save_file({"w": torch.ones(2)}, path)
    with pytest.raises(ValueError, match=r"found metadata \[\], expected `card`"):
        load_weights(path)
    save_file({"w": torch.ones(2)}, path, {"card": "{"})
    with pytest.raises(ValueError, match="its card cannot be read"):
        load_weights(path)
    _, scorer = saved(tmp_path)
    save_weights(path, scorer, Card(16, False, False))
    with pytest.raises(ValueError, match="found other weights than its card says"):
        load_weights(path)
    save_weights(path, scorer, Card(8, False, False, "flat"))
    with pytest.raises(ValueError, match="found network 'flat' with num_instances None, allowed:"):
        load_weights(path)
    save_weights(path, scorer, card_of(scorer, columns=("available", "hit")))
    with pytest.raises(ValueError, match="was trained on the columns available, hit; observations"):
        load_weights(path)
