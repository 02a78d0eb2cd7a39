"""The studies by name."""

from prefixgym.experiments.paper import faults, loss, replicas, staleness
from prefixgym.experiments.paper.study import Study

STUDIES = {study.STUDY.name: study.STUDY for study in (staleness, loss, replicas, faults)}


def study_called(name: str) -> Study:
    """The study with this name; ValueError if there is none."""
    if name not in STUDIES:
        raise ValueError(f"study: found {name!r}, allowed: {', '.join(STUDIES)}")
    return STUDIES[name]
