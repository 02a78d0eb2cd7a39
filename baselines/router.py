"""The contract of every router, handcrafted or learned, and the registry of names."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.view.view import View


@dataclasses.dataclass
class Router:
    """A routing policy that acts for a batch of environments at once.

    Subclasses are dataclasses: their fields are the parameters, under the real router's names and
    defaults. Decisions in one environment never depend on the environments beside it.
    """

    name: ClassVar[str]
    """How the router is called on the command line and in tables."""
    source: ClassVar[str]
    """Where its rule comes from: paper, repository and version."""

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Forget everything; `seeds` has one seed for each environment of the coming batch."""

    def route(self, view: View) -> NDArray[np.int64]:
        """The chosen instance for each environment's request, shape [E]."""
        raise NotImplementedError

    def plan(self, num_requests: int) -> NDArray[np.int64] | None:
        """All decisions of an episode at once, shape [E, num_requests].

        Only for routers that look at nothing; None (the default) for those that need a view.
        """
        return None


R = TypeVar("R", bound=type[Router])

_REGISTRY: dict[str, type[Router]] = {}


def register(router: R) -> R:
    """Class decorator: make a router known under its name."""
    if router.name in _REGISTRY:
        raise ValueError(f"router {router.name!r} is registered twice")
    _REGISTRY[router.name] = router
    return router


def router_names() -> list[str]:
    """Names of all routers, in order of registration."""
    return list(_REGISTRY)


def router_class(name: str) -> type[Router]:
    """The class of the router called `name`."""
    try:
        return _REGISTRY[name]
    except KeyError:
        raise ValueError(f"router: found {name!r}, allowed: {', '.join(_REGISTRY)}") from None


def make_router(name: str, parameters: Mapping[str, Any] | None = None) -> Router:
    """A router by name, with some of its parameters set.

    Values may be strings (from a command line); they are converted to the parameter's type.

    Raises:
        ValueError: unknown router or parameter, or a value of the wrong kind.
    """
    router = router_class(name)
    fields = {field.name: field for field in dataclasses.fields(router)}
    values: dict[str, Any] = {}
    for key, value in (parameters or {}).items():
        if key not in fields:
            allowed = ", ".join(fields) or "none"
            raise ValueError(f"{name}.{key}: no such parameter, allowed: {allowed}")
        values[key] = _convert(f"{name}.{key}", value, type(fields[key].default))
    return router(**values)


def _convert(key: str, value: Any, kind: type) -> Any:
    converters: dict[type, Callable[[Any], Any]] = {bool: _to_bool, int: int, float: float, str: str}
    try:
        return converters[kind](value)
    except ValueError:
        raise ValueError(f"{key}: found {value!r}, expected {kind.__name__}") from None


def _to_bool(value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    return words[str(value).lower()] if str(value).lower() in words else _refuse_bool(value)


def _refuse_bool(value: Any) -> bool:
    raise ValueError(f"not a boolean: {value!r}")
