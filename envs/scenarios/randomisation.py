"""Domain randomisation: episodes whose load, instances and objectives differ from each other.

A router that is trained on one cluster at one load learns that cluster. Here every episode draws
its own conditions, from the generator of its environment and therefore whatever runs beside it. The
number of instances that a learner sees stays N: those that an episode lacks are there as padding,
unavailable and with rows of zeros.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec


def _ascending(found: tuple[float, float]) -> tuple[float, float]:
    low, high = found
    if not 0 < low <= high < math.inf:
        raise ValueError(f"found {list(found)}, must be [low, high] with 0 < low <= high")
    return found


Factor = Annotated[tuple[float, float], AfterValidator(_ascending)]
"""[low, high] of a factor that is drawn uniformly in its logarithm."""


class Randomisation(BaseModel):
    """What differs from episode to episode; what is left out stays as the scenario has it.

    Attributes:
        load: factor on the arrival rate.
        instances: at least so many of the scenario's instances are there. Their number is drawn
            uniformly from here to N, and then which ones they are.
        profiles: names; each instance gets one of them, with its default host overhead. It keeps
            its `kv_blocks` if the scenario states them, else it gets what the profile holds.
        kv_blocks: factor on the KV capacity of all instances.
        slo: factor on all objectives.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    load: Factor | None = None
    instances: int | None = Field(default=None, ge=1)
    profiles: tuple[str, ...] = ()
    kv_blocks: Factor | None = None
    slo: Factor | None = None

    @field_validator("profiles")
    @classmethod
    def _profiles_exist(cls, found: tuple[str, ...]) -> tuple[str, ...]:
        for name in found:
            profile(name)
        return found

    @property
    def anything(self) -> bool:
        """Whether any episode differs from another."""
        return self != Randomisation()


def make_randomisation(choice: Randomisation | Mapping[str, Any]) -> Randomisation:
    """The randomisation that is chosen, by itself or by its fields; ValueError if there is none."""
    if isinstance(choice, Randomisation):
        return choice
    try:
        return Randomisation.model_validate(dict(choice))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, ("randomise", *first["loc"])))
        if first["type"] == "extra_forbidden":
            raise ValueError(
                f"{key}: no such key, allowed: {', '.join(Randomisation.model_fields)}"
            ) from None
        reason = first["ctx"]["error"] if first["type"] == "value_error" else first["msg"]
        raise ValueError(f"{key}: found {first['input']!r}, {reason}") from None


@dataclass(frozen=True)
class Conditions:
    """What one episode is played under, drawn by `Conditioner`.

    Attributes:
        load: factor on the arrival rate.
        slo: factor on all objectives.
        kv_blocks: blocks of KV cache of each instance, int64 [N]; 0 for one that is not there.
        profile: index of each instance's profile in `Randomisation.profiles`, int64 [N]; −1 for the
            scenario's own.
    """

    load: float
    slo: float
    kv_blocks: NDArray[np.int64]
    profile: NDArray[np.int64]


class Conditioner:
    """Draws the conditions of episodes on one cluster.

    Args:
        randomisation: what differs.
        cluster: what it differs from.

    Raises:
        ValueError: more instances are asked for than the cluster has.

    Attributes:
        largest: the cluster with the most KV blocks that any episode gives an instance.
    """

    def __init__(self, randomisation: Randomisation, cluster: ClusterSpec) -> None:
        self._randomisation = randomisation
        self._num_instances = count = len(cluster.instances)
        at_least = randomisation.instances
        if at_least is not None and at_least > count:
            raise ValueError(
                f"randomisation.instances: found {at_least}, the scenario has {count} instances"
            )
        self._at_least = count if at_least is None else at_least
        variants = _variants(randomisation, cluster)  # [N][profiles, or 1]
        self._blocks = np.array(
            [[v.num_blocks(cluster.block_size) for v in row] for row in variants]
        )
        self._cost = np.array([[v.profile.step_cost() for v in row] for row in variants])
        self._block_size = cluster.block_size
        most = self._scaled(self._blocks.max(1), (randomisation.kv_blocks or (1.0, 1.0))[1])
        self.largest = replace(
            cluster,
            instances=tuple(
                replace(instance, kv_blocks=int(blocks))
                for instance, blocks in zip(cluster.instances, most, strict=True)
            ),
        )

    @staticmethod
    def _scaled(blocks: NDArray[np.int64], factor: float) -> NDArray[np.int64]:
        return np.maximum(np.rint(blocks * factor).astype(np.int64), 1)

    def draw(self, generator: np.random.Generator) -> Conditions:
        """The conditions of the next episode.

        Every call takes equally many numbers, so that what one thing is does not depend on whether
        another is randomised.
        """
        n, randomisation = self._num_instances, self._randomisation
        numbers = generator.random(4 + 2 * n)
        load, kv_blocks, slo, size = numbers[:4]
        order, choice = numbers[4 : 4 + n].argsort(), numbers[4 + n :]
        present = order < self._at_least + int(size * (n - self._at_least + 1))
        variant = (choice * self._blocks.shape[1]).astype(np.int64)
        blocks = self._scaled(
            self._blocks[np.arange(n), variant], _factor(randomisation.kv_blocks, kv_blocks)
        )
        return Conditions(
            load=_factor(randomisation.load, load),
            slo=_factor(randomisation.slo, slo),
            kv_blocks=np.where(present, blocks, 0),
            profile=variant if randomisation.profiles else np.full(n, -1),
        )

    def cost(self, conditions: Conditions) -> NDArray[np.void]:
        """STEP_COST records [N] of the instances under these conditions."""
        n = self._num_instances
        cost = self._cost[np.arange(n), np.maximum(conditions.profile, 0)]
        cost["kv_capacity"] = np.maximum(conditions.kv_blocks, 1) * self._block_size
        return cost


def _variants(randomisation: Randomisation, cluster: ClusterSpec) -> list[list[InstanceSpec]]:
    """What each instance may be."""
    if not randomisation.profiles:
        return [[instance] for instance in cluster.instances]
    profiles = [profile(name) for name in randomisation.profiles]
    return [[replace(instance, profile=p) for p in profiles] for instance in cluster.instances]


def _factor(limits: tuple[float, float] | None, number: float) -> float:
    """The factor that a number in [0, 1) stands for, uniform in its logarithm."""
    if limits is None:
        return 1.0
    low, high = limits
    return float(low * (high / low) ** number)
