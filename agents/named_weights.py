"""Learned routers by name: `learned/NAME` ships with the package, `learned:PATH` is a file.

An entry point of routers, loaded whenever one is made, so it imports torch only for such names.
"""

import dataclasses
from pathlib import Path

from prefixgym.baselines.router import Router, register_prefix


def learned_router(name: str) -> type[Router]:
    """The class of the router whose weights are called so.

    Raises:
        ValueError: there are no such weights.
    """
    from prefixgym.agents.learned_router import WeightsRouter

    facts = {"name": name, "path": _path_of(name), "__doc__": WeightsRouter.__doc__}
    made = type("WeightsRouter", (WeightsRouter,), facts)
    return dataclasses.dataclass(made)


def _path_of(name: str) -> Path:
    from prefixgym.agents.weights import ENDING, shipped_folder, shipped_names

    if name.startswith("learned:"):
        path = Path(name.removeprefix("learned:"))
    elif name.removeprefix("learned/") in shipped_names():
        path = shipped_folder() / f"{name.removeprefix('learned/')}{ENDING}"
    else:
        shipped = ", ".join(f"learned/{known}" for known in shipped_names()) or "none is shipped"
        raise ValueError(
            f"router: found {name!r}, allowed: learned:PATH with weights that `prefixgym train` "
            f"wrote, or learned/NAME ({shipped})"
        )
    if not path.is_file():
        raise ValueError(f"router: found {name!r}, but {path} is no file")
    return path


register_prefix("learned", learned_router)
