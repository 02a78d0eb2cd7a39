from pathlib import Path

import polars as pl
import pytest

from prefixgym.envs.scenarios.registry import load_scenario, trace_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import Cell, evaluate


@pytest.fixture
def scenario(tiny: Path) -> Scenario:
    return load_scenario(str(tiny))


def test_one_row_an_episode_with_all_requests(scenario: Scenario) -> None:
    episodes = evaluate(Cell(scenario, 20.0, "round_robin", (20, 21, 22)))
    assert episodes["seed"].to_list() == [20, 21, 22]
    assert episodes["requests"].to_list() == [150] * 3
    assert episodes["rejected"].to_list() == [0.0] * 3
    assert episodes["hit_rate"].min() > 0.3  # type: ignore[operator]


def test_results_do_not_depend_on_the_other_seeds_of_a_batch(scenario: Scenario) -> None:
    together = evaluate(Cell(scenario, 20.0, "min_ttft", (20, 21, 22)))
    alone = evaluate(Cell(scenario, 20.0, "min_ttft", (21,)))
    assert together.filter(pl.col("seed") == 21).equals(alone)


def test_routers_that_look_at_nothing_play_their_plan(scenario: Scenario) -> None:
    assert evaluate(Cell(scenario, 20.0, "round_robin", (20,)))["imbalance"][0] < 1.2


def test_caches_are_used_by_a_router_that_sees_them(scenario: Scenario) -> None:
    seeds = (20, 21, 22)
    blind = evaluate(Cell(scenario, 20.0, "random", seeds))
    seeing = evaluate(Cell(scenario, 20.0, "min_ttft", seeds))
    assert seeing["hit_rate"].mean() > blind["hit_rate"].mean()  # type: ignore[operator]


def test_keys_change_with_what_changes_the_result_and_only_with_that(
    scenario: Scenario, tiny: Path
) -> None:
    key = Cell(scenario, 20.0, "cache_aware", (20,)).key
    default = {"cache_threshold": "0.3"}
    assert Cell(scenario, 20.0, "cache_aware", (20,), default).key == key
    renamed = load_scenario(str(tiny), {"description": "Another.", "rates": "[20, 80]"})
    assert Cell(renamed, 20.0, "cache_aware", (20,)).key == key
    others = [
        Cell(scenario, 21.0, "cache_aware", (20,)),
        Cell(scenario, 20.0, "loadaware", (20,)),
        Cell(scenario, 20.0, "cache_aware", (21,)),
        Cell(scenario, 20.0, "cache_aware", (20,), {"cache_threshold": "0.4"}),
        Cell(load_scenario(str(tiny), {"slo.ttft": "0.2"}), 20.0, "cache_aware", (20,)),
    ]
    assert len({key, *(other.key for other in others)}) == 1 + len(others)


def test_keys_of_a_trace_follow_its_content_not_its_place(trace: Path, tmp_path: Path) -> None:
    def key(path: Path) -> str:
        scenario = trace_scenario(path, [2.0]).model_copy(update={"name": "trace"})
        return Cell(scenario, 2.0, "random", (0,)).key

    moved = tmp_path / "moved.jsonl"
    moved.write_text(trace.read_text())
    assert key(moved) == key(trace)
    moved.write_text("".join(trace.read_text().splitlines(keepends=True)[:-1]))
    assert key(moved) != key(trace)
