"""The paper's results by name: studies, which are simulated, and others."""

from prefixgym.experiments.paper import (
    cachegen,
    faults,
    information,
    loadaware,
    loss,
    mooncake_cache,
    prfaas,
    replicas,
    staleness,
    transfer,
)
from prefixgym.experiments.paper.published import Result
from prefixgym.experiments.paper.simulated import result_of
from prefixgym.experiments.paper.study import Study

_MODULES = (staleness, loss, replicas, faults, transfer, information)

STUDIES = {module.STUDY.name: module.STUDY for module in _MODULES}

_MODULES_WITH_RESULTS = (loadaware, cachegen, prfaas, mooncake_cache)

RESULTS = {module.RESULT.name: module.RESULT for module in _MODULES_WITH_RESULTS}
"""Those that are no studies."""


def all_results() -> list[Result]:
    """Every one, the quick ones first."""
    return [*RESULTS.values(), *map(result_of, STUDIES.values())]


def result_called(name: str) -> Result:
    """The result with this name; ValueError if there is none."""
    return RESULTS[name] if name in RESULTS else result_of(study_called(name))


def study_called(name: str) -> Study:
    """The study with this name; ValueError if there is none."""
    if name in RESULTS:
        raise ValueError(f"study: found {name!r}, which compares no routers")
    if name not in STUDIES:
        raise ValueError(f"study: found {name!r}, allowed: {', '.join([*STUDIES, *RESULTS])}")
    return STUDIES[name]
