from pathlib import Path

import polars as pl
import pytest

from prefixgym.envs.scenarios.knee import KneeSection, ladder
from prefixgym.envs.scenarios.registry import load_scenario, scenario_names, scenario_path
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.knee import COMPARED_ROUTERS, find_knee, with_knee


def test_knee_is_found_on_validation_seeds_and_others_are_compared_there(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def knee_at_37(cell: Cell) -> pl.DataFrame:
        assert cell.seeds == (10, 11, 12)
        able = cell.rate <= 37 or cell.router == "loadaware"
        return pl.DataFrame({"attainment": [1.0 if able else 0.0] * 3})

    monkeypatch.setattr("prefixgym.experiments.knee.evaluate", knee_at_37)
    seen: list[tuple[str, float]] = []
    scenario = load_scenario(str(tiny))
    found = find_knee(scenario, "random", 3, lambda cell, share: seen.append((cell.router, share)))
    assert 37 / 1.02 <= found.rate <= 37
    assert (found.router, found.attainment, found.episodes) == ("random", 0.9, 3)
    assert found.compared == dict.fromkeys(COMPARED_ROUTERS, 1.0)
    assert ("random", 0.0) in seen


def test_routers_that_never_fail_have_no_knee(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "prefixgym.experiments.knee.evaluate", lambda cell: pl.DataFrame({"attainment": [1.0]})
    )
    with pytest.raises(ValueError, match="tiny: min_ttft attains 90% at every rate: no knee"):
        find_knee(load_scenario(str(tiny)))


def test_writing_changes_the_ladder_and_the_knee_alone(tiny: Path) -> None:
    knee = KneeSection(
        router="random", attainment=0.9, rate=10.0, episodes=4, compared={"random": 0.91}
    )
    before = load_scenario(str(tiny))
    text = with_knee(tiny.read_text(), "tiny", knee)
    tiny.write_text(text)
    after = load_scenario(str(tiny))
    assert after.knee == knee
    assert after.rates == ladder(10.0) == (6.0, 8.0, 10.0, 11.0, 12.0)
    assert after.model_copy(update={"knee": None, "rates": before.rates}) == before
    assert with_knee(text, "tiny", knee) == text
    with pytest.raises(ValueError, match="tiny: has no line `rates = "):
        with_knee("[cluster]\n", "tiny", knee)


@pytest.mark.parametrize("name", scenario_names())
def test_built_in_files_are_as_the_command_writes_them(name: str) -> None:
    knee = load_scenario(name).knee
    assert knee is not None
    assert set(knee.compared) == set(COMPARED_ROUTERS)
    assert knee.compared[knee.router] >= knee.attainment
    text = scenario_path(name).read_text(encoding="utf-8")
    assert with_knee(text, name, knee) == text


@pytest.mark.parametrize("name", ["shared-prompts-8", "long-documents-8"])
def test_recorded_knees_hold(name: str) -> None:
    scenario = load_scenario(name)
    knee = scenario.knee
    assert knee is not None

    def attainment(share: float) -> float:
        seeds = tuple(scenario.seeds.validation.range()[:2])
        return float(
            evaluate(Cell(scenario, share * knee.rate, knee.router, seeds))["attainment"].mean()  # type: ignore[arg-type]
        )

    assert attainment(0.8) > knee.attainment > attainment(1.3)
