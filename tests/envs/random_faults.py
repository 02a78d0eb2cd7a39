"""What may happen to a small random episode: faults, an autoscaler, impatient clients."""

from typing import Any, get_args

import numpy as np

from prefixgym.envs.clients import Clients
from prefixgym.envs.cluster.faults import Autoscaler, Fault, Kind
from prefixgym.envs.view.knowledge import Health, Index, Knowledge, Replicas, Snapshots, Telemetry

LONGEST = 0.12  # s: most random episodes are over by then


def _times(rng: np.random.Generator, whole_ms: bool, most: float = LONGEST) -> float:
    """A time above 0, often at the same instant as something else."""
    ms = most * 1000 * rng.random() ** 2  # early, when there is something to happen to
    return (np.ceil(ms) if whole_ms else max(ms, 1e-6)) / 1000


def random_faults(
    rng: np.random.Generator, num_instances: int, whole_ms: bool, *, joins: bool
) -> tuple[Fault, ...]:
    """Up to five faults; no instance joins twice."""
    kinds: list[Kind] = [kind for kind in get_args(Kind) if kind != "join"]
    found: list[Fault] = []
    left = list(range(num_instances))
    for _ in range(int(rng.integers(1, 6))):
        chosen = rng.permutation(num_instances)[: int(rng.integers(0, num_instances + 1))]
        kind = kinds[int(rng.integers(len(kinds)))]
        details: dict[str, Any] = {"instances": tuple(chosen.tolist())}
        if joins and left and rng.random() < 0.2:
            kind = "join"
            details["instances"] = (left.pop(int(rng.integers(len(left)))),)
        elif kind != "flush" and rng.random() < 0.7:
            details["lasts"] = _times(rng, whole_ms, 0.04)
        if kind == "slow":
            details["factor"] = float(rng.choice([1.5, 2.0, 7.3]))
        if kind == "drain":
            details["grace"] = float(rng.choice([0.0, 0.003, 0.02, 1.0]))
        at = 0.0 if rng.random() < 0.1 else _times(rng, whole_ms)
        if found and kind != "join" and rng.random() < 0.4:  # no peace for those just hit
            details["instances"] = found[-1].instances
            at = found[-1].at + _times(rng, whole_ms, 0.01)
        stagger = float(rng.choice([0.0, 0.0, 0.001, 0.0137]))
        found.append(Fault(kind=kind, at=at, stagger=stagger, **details))
    return tuple(found)


def random_autoscaler(rng: np.random.Generator, num_instances: int) -> Autoscaler:
    first = int(rng.integers(1, num_instances + 1))
    low, high = sorted(rng.choice([0.2, 0.5, 1.0, 2.0, 5.0], 2, replace=False).tolist())
    return Autoscaler(
        first=first,
        least=int(rng.integers(1, first + 1)),
        interval=float(rng.choice([0.004, 0.01])),
        high=high,
        low=low,
        startup=float(rng.choice([0.0, 0.004, 0.0101])),
        grace=float(rng.choice([0.0, 0.005, 0.1])),
    )


def random_clients(rng: np.random.Generator) -> Clients:
    return Clients(
        timeout=None if rng.random() < 0.5 else float(rng.choice([0.001, 0.004, 0.02])),
        cancel=float(rng.choice([0.0, 0.3, 1.0])),
        cancel_after=float(rng.choice([0.003, 0.03])),
        retries=int(rng.integers(0, 4)),
        retry_delay=float(rng.choice([0.0, 0.001, 0.01])),
        leak=float(rng.choice([0.0, 0.5, 1.0])),
    )


def random_replicas(rng: np.random.Generator) -> Replicas:
    count = int(rng.choice([1, 1, 2, 3]))
    return Replicas(
        count=count,
        shares=tuple(rng.integers(1, 5, count).tolist()) if rng.random() < 0.5 else (),
        load_sync=float(rng.choice([0.0, 0.003, 0.01])),
    )


def random_knowledge(
    rng: np.random.Generator, report: float, poll: float, *, disturbed: bool
) -> Knowledge:
    """Snapshots and polls every `report` and `poll` seconds; 0: the truth at once."""
    index = Index(forget_down=bool(rng.integers(0, 2)))
    if report > 0:
        index = index.model_copy(
            update={"source": "snapshots", "snapshots": Snapshots(interval=report)}
        )
    if not disturbed:
        return Knowledge(index=index, telemetry=Telemetry(interval=poll))
    return Knowledge(
        index=index,
        telemetry=Telemetry(interval=poll),
        health=Health(
            interval=float(rng.choice([0.002, 0.005, 0.0173])), failures=int(rng.integers(1, 4))
        ),
        replicas=random_replicas(rng),
    )
