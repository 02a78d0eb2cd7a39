"""The studies by name."""

from prefixgym.experiments.paper import (
    faults,
    information,
    loss,
    replicas,
    staleness,
    transfer,
)
from prefixgym.experiments.paper.study import Study

_MODULES = (staleness, loss, replicas, faults, transfer, information)

STUDIES = {module.STUDY.name: module.STUDY for module in _MODULES}


def study_called(name: str) -> Study:
    """The study with this name; ValueError if there is none."""
    if name not in STUDIES:
        raise ValueError(f"study: found {name!r}, allowed: {', '.join(STUDIES)}")
    return STUDIES[name]
