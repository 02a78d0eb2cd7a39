"""Labels are the teacher's decisions in the situations that the actor got into."""

from pathlib import Path

import numpy as np
import pytest

from prefixgym.agents.linear_score import LinearScore, weight_row, weights_of
from prefixgym.baselines.references.lookahead import Lookahead
from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.imitation.labelling import label


@pytest.fixture
def scenario(tiny: Path) -> Scenario:
    return load_scenario(str(tiny), {}).with_num_requests(40)


def test_a_clones_labels_are_what_the_teacher_decided(scenario: Scenario) -> None:
    teacher = LinearScore()
    found = label(teacher, None, scenario, 60.0, [3, 4])
    assert len(found) == 80
    rows = found.instances.astype(np.float64) @ weight_row(weights_of(teacher))
    assert found.actions.tolist() == rows.argmax(1).tolist()


def test_the_actor_decides_what_comes_and_the_teacher_what_is_right(scenario: Scenario) -> None:
    teacher, actor = LinearScore(), make_router("round_robin")
    found = label(teacher, actor, scenario, 60.0, [3, 4])
    rows = found.instances.astype(np.float64) @ weight_row(weights_of(teacher))
    assert found.actions.tolist() == rows.argmax(1).tolist()
    alone = label(teacher, None, scenario, 60.0, [3, 4])
    assert (found.instances != alone.instances).any()
    by_actor = label(actor, None, scenario, 60.0, [3, 4])
    assert (found.instances == by_actor.instances).all()


def test_look_ahead_labels_what_another_router_plays(scenario: Scenario) -> None:
    teacher = Lookahead(horizon=5, candidates=2)
    found = label(teacher, make_router("round_robin"), scenario, 60.0, [3, 4])
    assert len(found) == 80
    assert set(found.actions.tolist()) == {0, 1}


def test_several_routers_side_by_side_have_no_one_teacher() -> None:
    scenario = load_scenario("replicas-8", {}).with_num_requests(5)
    with pytest.raises(ValueError, match=r"replicas-8: found \d+ routers side by side"):
        label(LinearScore(), None, scenario, 20.0, [0])
