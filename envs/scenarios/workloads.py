"""The `[workload]` table of a scenario: which generator, and that generator's own parameters.

The parameters are the fields of the generator's class, under their names, so that a scenario can
say whatever the class can. Lengths are a number, a pair `[low, high]`, or a table with the fields
of `LogNormal` (median, sigma, high, low) or `Geometric` (mean, high). A field that may be None is
None if it is left out.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from prefixgym.envs.workload.arrivals import Arrivals, Gamma, Poisson
from prefixgym.envs.workload.chat import MultiTurnChat
from prefixgym.envs.workload.lengths import Geometric, LogNormal
from prefixgym.envs.workload.shared_prompts import SharedPrompts
from prefixgym.envs.workload.tape import Workload

GENERATORS: dict[str, Any] = {"shared-prompts": SharedPrompts, "chat": MultiTurnChat}

_TABLES: tuple[Any, ...] = (LogNormal, Geometric)
_SET_BY_SCENARIO = ("num_requests", "arrivals", "block_size")


def build_workload(
    generator: str,
    parameters: Mapping[str, Any],
    *,
    num_requests: int,
    rate: float,
    arrival_cv: float,
    block_size: int,
) -> Workload:
    """An instance of a generator's class.

    Args:
        generator: a key of `GENERATORS`.
        parameters: the class's other fields, as TOML gives them.
        num_requests: requests of an episode.
        rate: requests/s.
        arrival_cv: coefficient of variation of the gaps between arrivals; 1 is Poisson.
        block_size: tokens in a block.

    Raises:
        ValueError: a field that the class lacks, one it needs, or a value it refuses.
    """
    cls = GENERATORS[generator]
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in _SET_BY_SCENARIO}
    for key in parameters:
        if key not in fields:
            raise ValueError(f"{key}: no such key of {generator}, allowed: {', '.join(fields)}")
    values: dict[str, Any] = {}
    for key, field in fields.items():
        if key in parameters:
            values[key] = _from_toml(key, parameters[key])
        elif type(None) in typing.get_args(hints[key]):
            values[key] = None
        elif field.default is dataclasses.MISSING:
            raise ValueError(f"{key}: missing, {generator} needs it")
    arrivals: Arrivals = Poisson(rate) if arrival_cv == 1 else Gamma(rate, arrival_cv)
    workload: Workload = cls(
        num_requests=num_requests, arrivals=arrivals, block_size=block_size, **values
    )
    return workload


def _from_toml(key: str, value: Any) -> Any:
    """Pairs and tables become what the generators take; everything else is left as it is."""
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict):
        return value
    for table in _TABLES:
        names = {f.name: f for f in dataclasses.fields(table)}
        needed = {name for name, f in names.items() if f.default is dataclasses.MISSING}
        if needed <= value.keys() <= names.keys():
            try:
                return table(**value)
            except ValueError as error:
                raise ValueError(f"{key}.{error}") from None
    allowed = " or ".join(", ".join(f.name for f in dataclasses.fields(t)) for t in _TABLES)
    raise ValueError(f"{key}: found a table with {', '.join(value)}, allowed: {allowed}")
