"""The `arrivals` table of a scenario's workload: how requests come, at the rate of the load.

    arrivals = { process = "poisson" }                       # if left out
    arrivals = { process = "gamma", cv = 2.0 }               # or "weibull"
    arrivals = { process = "poisson", diurnal = { period = 600.0, amplitude = 0.5 } }
    arrivals = { process = "poisson", bursts = { every = 60.0, duration = 5.0, factor = 4.0 } }

The keys are the fields of the classes, see `workload/arrivals.py` and `workload/varying_load.py`;
`diurnal` and `bursts` may go together. Times are seconds at every load.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from prefixgym.envs.workload.arrivals import Arrivals, Gamma, Poisson, Renewal, Weibull
from prefixgym.envs.workload.varying_load import Bursts, Diurnal, VaryingLoad

PROCESSES: dict[str, Any] = {"poisson": Poisson, "gamma": Gamma, "weibull": Weibull}
LOADS: dict[str, Any] = {"diurnal": Diurnal, "bursts": Bursts}


def build_arrivals(table: Mapping[str, Any], rate: float) -> Arrivals:
    """The process that `table` describes, at `rate` arrivals/s.

    Raises:
        ValueError: an unknown process or key, one that is missing, or a value that is refused.
    """
    name = table.get("process", "poisson")
    if name not in PROCESSES:
        raise ValueError(f"arrivals.process: found {name!r}, allowed: {', '.join(PROCESSES)}")
    own = {key: value for key, value in table.items() if key not in ("process", *LOADS)}
    process: Renewal = _build("arrivals", PROCESSES[name], own, name, rate=rate)
    loads = {
        key: _build(f"arrivals.{key}", cls, table[key], key)
        for key, cls in LOADS.items()
        if key in table
    }
    return VaryingLoad(process, **loads) if loads else process


def _build(place: str, cls: Any, table: Any, name: str, **given: float) -> Any:
    """An object of `cls` with the fields that `table` names, besides those `given`."""
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name not in given}
    if not isinstance(table, Mapping):
        raise ValueError(f"{place}: found {table!r}, must be a table with {', '.join(fields)}")
    for key in table:
        if key not in fields:
            allowed = ", ".join([*fields, *(("process", *LOADS) if given else ())])
            raise ValueError(f"{place}.{key}: no such key of {name}, allowed: {allowed}")
    for key, field in fields.items():
        if key not in table and field.default is dataclasses.MISSING:
            raise ValueError(f"{place}.{key}: missing, {name} needs it")
    return cls(**given, **{key: _tuples(value) for key, value in table.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
