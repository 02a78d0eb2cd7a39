"""What would be scored if one instance held more of the prompt, or had a longer queue."""

from pathlib import Path

import numpy as np
import pytest
import torch

from prefixgym.agents.learned_router import LearnedRouter
from prefixgym.agents.linear_score import WEIGHED_COLUMNS, linear_score
from prefixgym.agents.scorer import COLUMNS, InstanceScorer
from prefixgym.baselines.router import make_router
from prefixgym.envs.observation import REQUEST_FIELDS
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.evaluate import played
from prefixgym.experiments.training.moment import Moment, typical
from prefixgym.experiments.training.onlooker import Onlooker
from prefixgym.experiments.training.score_surface import lead, score_surface, scores_of

NOTHING = dict.fromkeys(WEIGHED_COLUMNS, 0.0)


@pytest.fixture
def moment(tiny: Path) -> Moment:
    onlooker = Onlooker([10])
    played(make_router("min_ttft"), load_scenario(str(tiny), {}), 80.0, [10], onlooker)
    return onlooker.behaviour().typical


def test_what_follows_from_hits_and_queues_follows(moment: Moment) -> None:
    hit, backlog = np.array([0.0, 0.5, 0.5]), np.array([0.1, 0.1, 0.3])
    request, instances = moment.varied(0, hit, backlog)
    column = {name: instances[:, 0, COLUMNS.index(name)] for name in COLUMNS}
    np.testing.assert_allclose(column["hit"], hit, atol=1e-3)
    slo = moment.slo_ttft
    np.testing.assert_allclose(column["backlog"], backlog / (backlog + slo), rtol=1e-5)
    prefill = column["prefill"] * slo / (1 - column["prefill"])
    assert prefill[1] == pytest.approx(prefill[0] / 2, rel=2e-3)
    ttft = column["ttft"] * slo / (1 - column["ttft"])
    np.testing.assert_allclose(ttft, prefill + backlog, rtol=1e-5)
    best_hit = request[:, [field.name for field in REQUEST_FIELDS].index("best_hit")]
    others = instances[:, 1:, COLUMNS.index("hit")].max(1)
    np.testing.assert_allclose(best_hit, np.maximum(column["hit"], others), rtol=1e-6)
    assert (instances[:, 1:] == instances[:1, 1:]).all()


def test_the_typical_moment_is_nearest_to_the_medians(moment: Moment) -> None:
    moments = [Moment(moment.view) for _ in range(3)]
    found = typical(moments, np.array([[0.0, 0.9], [0.2, 0.5], [1.0, 0.4]]))
    assert found is moments[1]


def test_a_lead_is_over_the_best_other_instance(moment: Moment) -> None:
    by_hit = scores_of(linear_score(NOTHING | {"hit": 2.0}))
    hit = np.array([0.0, 0.4, 0.8])
    _, instances = moment.varied(1, hit, np.zeros(3))
    other = 2.0 * float(instances[0, 0, COLUMNS.index("hit")])
    expected = 2.0 * hit - other
    np.testing.assert_allclose(lead(by_hit, moment, 1, hit, np.zeros(3)), expected, atol=3e-3)


def test_networks_and_linear_scores_are_drawn_and_others_are_not(moment: Moment) -> None:
    torch.manual_seed(0)
    for router in (LearnedRouter(InstanceScorer(4)), linear_score(NOTHING | {"ttft": -1.0})):
        figure = score_surface(router, moment, "here")
        assert f"{moment.prompt_tokens:,} tokens" in figure.axes[0].get_title()
    with pytest.raises(TypeError, match="router: found min_ttft, which scores no observations"):
        scores_of(make_router("min_ttft"))
