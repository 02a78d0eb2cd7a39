"""What happens to instances: restarts, crashes, drains, slow ones, and an autoscaler.

Parts of a scenario file, see `prefixgym.envs.scenarios.schema`. Times are seconds since the
episode's start.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["restart", "crash", "drain", "join", "slow", "flush", "silence"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Fault(_Section):
    """One thing that happens to some instances.

    - `restart`: the process ends and comes back `lasts` later. The cache is lost, requests in
      flight fail at once, and every router knows.
    - `crash`: the same without a word: requests in flight, and those still sent there, hang until a
      health check finds it down, or until it is back, which breaks their connections.
    - `drain`: routers send nothing there any more. Once its last request has ended, or after
      `grace`, it leaves, and comes back `lasts` later with an empty cache.
    - `join`: the instance is absent from the start, and comes at `at`.
    - `slow`: its steps take `factor` times as long.
    - `flush`: its cache is emptied of all blocks that no request in its batch uses.
    - `silence`: it serves, but its publisher is dead: no snapshots, events or telemetry.

    Attributes:
        kind: one of the above.
        at: s, when it begins.
        instances: their numbers; all by default.
        lasts: s until it is over; left out: for ever.
        stagger: s by which each instance's turn comes later than the one before it in the list.
        factor: of a slow instance.
        grace: s that a draining instance waits for its requests.
    """

    kind: Kind
    at: float = Field(ge=0)
    instances: tuple[int, ...] = ()
    lasts: float | None = Field(default=None, gt=0)
    stagger: float = Field(default=0.0, ge=0)
    factor: float = Field(default=1.0, ge=1, le=1000)
    grace: float = Field(default=30.0, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> "Fault":
        if self.kind in ("join", "flush") and self.lasts is not None:
            raise ValueError(f"lasts: found {self.lasts}, but a {self.kind} is a moment")
        if (self.kind == "slow") != (self.factor != 1.0):
            raise ValueError(
                f"factor: found {self.factor} with {self.kind}, must be above 1 with slow and only "
                "there"
            )
        if len(set(self.instances)) < len(self.instances):
            raise ValueError(f"instances: found {list(self.instances)}, one of them twice")
        return self


class Autoscaler(_Section):
    """A simple autoscaler: one instance more or less, by the mean number of requests in each.

    Every `interval` it counts the requests in flight per serving instance. Above `high` the absent
    instance with the lowest number joins `startup` later; below `low` the serving one with the
    highest number is drained.

    Attributes:
        first: instances that serve at the start: 0 … first - 1.
        least: it keeps at least so many.
        interval: s between two decisions.
        high: requests per serving instance.
        low: requests per serving instance.
        startup: s until a new instance serves.
        grace: s that a drained one waits for its requests.
    """

    first: int = Field(ge=1)
    least: int = Field(default=1, ge=1)
    interval: float = Field(default=15.0, gt=0)
    high: float = Field(gt=0)
    low: float = Field(ge=0)
    startup: float = Field(default=30.0, ge=0)
    grace: float = Field(default=30.0, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> "Autoscaler":
        if self.low >= self.high:
            raise ValueError(f"low: found {self.low}, must be below high, {self.high}")
        if self.least > self.first:
            raise ValueError(f"least: found {self.least}, must be at most first, {self.first}")
        return self


def check_faults(
    faults: Sequence[Fault], autoscaler: Autoscaler | None, num_instances: int
) -> None:
    """ValueError if they name instances that a cluster does not have, or exclude each other."""
    has = f"the cluster has {num_instances} instances"
    for k, fault in enumerate(faults):
        for instance in fault.instances:
            if not 0 <= instance < num_instances:
                raise ValueError(f"faults.{k}.instances: found {instance}, {has}")
        if fault.kind == "join" and autoscaler is not None:
            raise ValueError(f"faults.{k}.kind: found 'join' beside an autoscaler")
    if autoscaler is not None and autoscaler.first > num_instances:
        raise ValueError(f"autoscaler.first: found {autoscaler.first}, {has}")
