"""Every range is one that its router takes, around the router's own default."""

import dataclasses

import optuna
import pytest

from prefixgym.baselines.router import make_router, router_class, router_names
from prefixgym.experiments.tuning.spaces import SPACES, Choice, defaults, space_of, suggest

PARAMETERS = [(router, name) for router, space in SPACES.items() for name in space]


@pytest.mark.parametrize(("router", "name"), PARAMETERS)
def test_a_range_holds_the_default_and_nothing_that_the_router_refuses(
    router: str, name: str
) -> None:
    fields = {field.name: field.default for field in dataclasses.fields(router_class(router))}
    default, where = fields[name], SPACES[router][name]
    if isinstance(where, Choice):
        assert default in where.values
        ends = where.values
    else:
        assert isinstance(default, (int, float))
        assert where.low <= default <= where.high
        assert where.low < where.high
        assert where.scale == "linear" or where.low > 0
        ends = (type(default)(where.low), type(default)(where.high))
        assert ends == (where.low, where.high)
    for end in ends:
        assert getattr(make_router(router, {name: end}), name) == end


@pytest.mark.parametrize("router", SPACES)
def test_proposals_make_routers_and_defaults_are_a_proposal(router: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    study.enqueue_trial(defaults(router))
    first = suggest(study.ask(), router)
    assert first == defaults(router)
    for _ in range(20):
        found = suggest(study.ask(), router)
        assert found.keys() == SPACES[router].keys()
        make_router(router, found)


def test_routers_of_every_family_with_parameters_are_there() -> None:
    families = {router_class(name).family for name in SPACES}
    tunable = {
        router_class(name).family
        for name in router_names()
        if dataclasses.fields(router_class(name)) and "truth" not in router_class(name).knows
    }
    assert families == tunable


def test_a_router_without_a_range_is_named() -> None:
    with pytest.raises(ValueError, match="found 'round_robin', which has nothing to tune; allowed"):
        space_of("round_robin")
    with pytest.raises(ValueError, match="router: found 'nope', allowed"):
        space_of("nope")
