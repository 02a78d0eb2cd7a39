"""The studies: what they compare, and what they say was published."""

import math

import pytest

from prefixgym.baselines.router import router_class
from prefixgym.experiments.paper.learned import with_trace
from prefixgym.experiments.paper.registry import (
    STUDIES,
    all_results,
    result_called,
    study_called,
)
from prefixgym.experiments.paper.study import FIELD, FIELDS, Study, trials_of

EACH = pytest.mark.parametrize(
    "study", [with_trace(study, None)[0] for study in STUDIES.values()], ids=STUDIES
)


def test_the_studies_of_issues_5_and_6_are_there() -> None:
    assert {"staleness", "loss", "replicas", "faults", "transfer", "information"} <= set(STUDIES)
    with pytest.raises(ValueError, match="study: found 'stale', allowed: staleness, loss"):
        study_called("stale")


def test_all_results_have_names_and_questions_of_their_own() -> None:
    results = all_results()
    assert {"loadaware", "cachegen", *STUDIES} <= {result.name for result in results}
    assert len({result.name for result in results}) == len(results)
    for result in results:
        assert result.question.endswith("?")
        assert result_called(result.name).name == result.name


def test_the_field_has_eight_routers_or_more_of_either_kind() -> None:
    with_index = ["index" in router_class(arm.router).knows for arm in FIELD]
    assert len(FIELD) >= 8
    assert 3 <= sum(with_index) <= len(FIELD) - 3


@EACH
def test_settings_differ_and_published_points_stand_at_one_of_them(study: Study) -> None:
    assert any(sweep.arms is field for sweep in study.sweeps for field in FIELDS)
    for sweep in study.sweeps:
        labels = [setting.label for setting in sweep.settings]
        assert len(set(labels)) == len(labels)
        assert {point.setting for point in sweep.points} <= set(labels)
        different = {(str(sweep.scenario_at(s).identity()), s.rate) for s in sweep.settings}
        assert len(different) == len(labels), sweep.name


@EACH
def test_everything_that_is_to_happen_happens_within_the_episodes(study: Study) -> None:
    for trial in trials_of(study, num_seeds=1):
        scenario = trial.cell.scenario
        arrivals = scenario.num_requests / trial.cell.rate
        for fault in scenario.faults:
            turns = len(fault.instances) or len(scenario.build(trial.cell.rate).cluster.instances)
            last = fault.at + (turns - 1) * fault.stagger + (fault.lasts or 0.0)
            assert last < arrivals, (trial.sweep.name, trial.setting.label)


@EACH
def test_only_what_a_router_decides_by_makes_it_run_again(study: Study) -> None:
    for trial in trials_of(study, num_seeds=1):
        first = trial.sweep.settings[0]
        own = trial.sweep.scenario_at(first if trial.stands_in else trial.setting)
        assert trial.cell.scenario == own
        if trial.stands_in:
            assert trial.sweep.varies not in router_class(trial.arm.router).knows
    for sweep in study.sweeps:
        if sweep.varies is not None:
            rest = {_without(sweep.scenario_at(s).identity(), sweep.varies) for s in sweep.settings}
            assert len(rest) == 1, f"{sweep.name} varies more than the {sweep.varies}"


def _without(identity: dict[str, object], section: str) -> str:
    knowledge = identity["knowledge"]
    assert isinstance(knowledge, dict)
    return str(identity | {"knowledge": {k: v for k, v in knowledge.items() if k != section}})


@pytest.mark.parametrize(
    ("study", "figures"),
    [
        ("staleness", {14.0, 354.0, 0.542, 31.08, 8730.0}),
        ("replicas", {0.66, 0.95, 0.472, 0.063}),
    ],
)
def test_published_figures_are_there_with_a_tolerance(study: str, figures: set[float]) -> None:
    claims = STUDIES[study].claims
    assert figures <= {claim.published for claim in claims}
    for claim in claims:
        if claim.because.startswith("below saturation"):  # its rate is not published
            continue
        assert claim.low < claim.published < claim.high
        assert claim.because


def test_others_can_be_compared_where_the_field_is() -> None:
    study = STUDIES["staleness"]
    other = study.with_routers(["random"])
    for before, after in zip(study.sweeps, other.sweeps, strict=True):
        labels = [arm.label for arm in after.arms]
        assert labels == (["random"] if before.arms is FIELD else [a.label for a in before.arms])


def test_each_trial_has_the_seeds_and_requests_that_were_asked_for() -> None:
    for trial in trials_of(STUDIES["faults"], num_seeds=2, requests=77):
        assert trial.cell.seeds == (2_000_000, 2_000_001)
        assert trial.cell.scenario.num_requests == 77
        assert math.isfinite(trial.cell.rate)
