"""Learned routers by name: `learned/NAME` ships with the package, `learned:PATH` is a file.

An entry point of routers, loaded whenever one is made, so it imports torch only for networks.
"""

import dataclasses

from prefixgym.agents.files import weights_file
from prefixgym.agents.linear_score import LinearWeightsRouter, is_linear
from prefixgym.baselines.router import Router, register_prefix


def learned_router(name: str) -> type[Router]:
    """The class of the router whose weights are called so.

    Raises:
        ValueError: there are no such weights.
    """
    try:
        path = weights_file(name)
    except ValueError as error:
        raise ValueError(f"router: {error}") from None
    kind = LinearWeightsRouter if is_linear(path) else _network()
    facts = {"name": name, "path": path, "__doc__": kind.__doc__}
    return dataclasses.dataclass(type(kind.__name__, (kind,), facts))


def _network() -> type[Router]:
    from prefixgym.agents.learned_router import WeightsRouter

    return WeightsRouter


register_prefix("learned", learned_router)
