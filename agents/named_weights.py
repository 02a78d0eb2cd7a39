"""Learned routers by name: `learned/NAME` ships with the package, `learned:PATH` is a file.

An entry point of routers, loaded whenever one is made, so it imports torch only for networks.
"""

import dataclasses
from pathlib import Path

from prefixgym.agents import files
from prefixgym.agents.linear_score import LinearWeightsRouter, is_linear
from prefixgym.baselines.router import Router, register_prefix


def learned_router(name: str) -> type[Router]:
    """The class of the router whose weights are called so.

    Raises:
        ValueError: there are no such weights.
    """
    path = _path_of(name)
    kind = LinearWeightsRouter if is_linear(path) else _network()
    facts = {"name": name, "path": path, "__doc__": kind.__doc__}
    return dataclasses.dataclass(type(kind.__name__, (kind,), facts))


def _network() -> type[Router]:
    from prefixgym.agents.learned_router import WeightsRouter

    return WeightsRouter


def _path_of(name: str) -> Path:
    if name.startswith("learned:"):
        path = Path(name.removeprefix("learned:"))
    elif name.removeprefix("learned/") in files.shipped_names():
        path = files.shipped_folder() / f"{name.removeprefix('learned/')}{files.ENDING}"
    else:
        shipped = [f"learned/{known}" for known in files.shipped_names()] or ["none is shipped"]
        raise ValueError(
            f"router: found {name!r}, allowed: learned:PATH with weights that `prefixgym train` "
            f"wrote, or learned/NAME ({', '.join(shipped)})"
        )
    if not path.is_file():
        raise ValueError(f"router: found {name!r}, but {path} is no file")
    return path


register_prefix("learned", learned_router)
