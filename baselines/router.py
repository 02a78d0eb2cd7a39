"""The contract of every router, handcrafted or learned, and the registry of names."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.rng import stream_key
from prefixgym.envs.view.view import View

NOWHERE = -1
"""In place of an instance: the request of this environment has gone to none."""

ROUTER_STREAM = 100
"""The stream of an environment's seed that its router draws from; workloads use lower ones."""


Source = Literal["ring", "history", "index", "ledger", "telemetry", "truth"]
"""What a router may decide by, beside the request itself (DESIGN §6).

`ring`: a hash of a key; `history`: its own past choices; `index`: the cached blocks that instances
reported (`hit_tokens` and what is predicted from it); `ledger`: its own requests in flight;
`telemetry`: polled engine state; `truth`: what no router knows, for references only.
"""


@dataclasses.dataclass
class Router:
    """A routing policy that acts for a batch of environments at once.

    Subclasses are dataclasses: their fields are the parameters, each a bool, int, float or str with
    the real router's name and default. What a router remembers is made in `reset`. Decisions in one
    environment never depend on the environments beside it, and an unavailable instance is chosen
    only where no instance is available.
    """

    name: ClassVar[str]
    """How the router is called on the command line and in tables."""
    source: ClassVar[str]
    """Where its rule comes from: paper, repository and version."""
    family: ClassVar[str]
    """Which project or group of routers it belongs to."""
    knows: ClassVar[tuple[Source, ...]] = ()
    """What it decides by."""
    may_reject: ClassVar[bool] = False
    """Whether it may decide N, the number of instances: turn the request away."""

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Forget everything; `seeds` has one seed for each environment of the coming batch."""

    def route(self, view: View) -> NDArray[np.int64]:
        """The chosen instance for each environment's request, shape [E]."""
        raise NotImplementedError

    def overhear(
        self,
        requests: NDArray[np.void],
        block_ids: NDArray[np.int64],
        chosen: NDArray[np.int64],
    ) -> None:
        """Other routers of the deployment have sent requests to instances: remember that, too.

        Called between decisions, see `prefixgym.baselines.replicated`. What a router remembers of
        its own choices it remembers of these, but not what it counts until a request's end, of
        which it will not hear. The default is to remember nothing.

        Args:
            requests: REQUEST_VIEW records as they were then, shape [E].
            block_ids: their prompts, [E, B] as in `View`.
            chosen: where they went, [E]; NOWHERE: nothing is to be told in this environment.
        """

    def plan(self, num_requests: int, first: int = 0) -> NDArray[np.int64] | None:
        """Decisions first, first + 1, … of an episode at once, shape [E, num_requests].

        Only for routers that look at nothing; None (the default) for those that need a view. A plan
        equals what `route` would choose as long as every instance is available.
        """
        return None

    def require(self, parameter: str, holds: bool, allowed: str) -> None:
        """For `__post_init__`: raise ValueError unless the value of `parameter` is allowed."""
        if not holds:
            found = getattr(self, parameter)
            raise ValueError(f"{self.name}.{parameter}: found {found!r}, allowed: {allowed}")


def router_keys(seeds: Sequence[int]) -> NDArray[np.uint64]:
    """One key for each environment's random draws and hashes, shape [E]."""
    return np.array([stream_key(seed, ROUTER_STREAM) for seed in seeds], np.uint64)


R = TypeVar("R", bound=type[Router])

_REGISTRY: dict[str, type[Router]] = {}


def register(router: R) -> R:
    """Class decorator: make a router known under its name."""
    if unknown := set(router.knows) - set(get_args(Source)):
        allowed = ", ".join(get_args(Source))
        raise ValueError(f"{router.name}.knows: found {sorted(unknown)}, allowed: {allowed}")
    if router.name in _REGISTRY:
        raise ValueError(f"router {router.name!r} is registered twice")
    _REGISTRY[router.name] = router
    return router


_PREFIXES: dict[str, Callable[[str], type[Router]]] = {}


def register_prefix(prefix: str, find: Callable[[str], type[Router]]) -> None:
    """Make names that start with `prefix/` or `prefix:` known: `find` gives their classes.

    For routers that are files, of which there is no list: `router_names` does not name them. A name
    means the same in every process, so that it can be sent to workers.
    """
    if prefix in _PREFIXES:
        raise ValueError(f"router prefix {prefix!r} is registered twice")
    _PREFIXES[prefix] = find


ENTRY_POINTS = "prefixgym.routers"
"""Group of the entry points by which other packages name modules that register routers."""


@functools.cache
def _load_entry_points() -> None:
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            entry.load()
        except Exception as error:
            raise ValueError(
                f"entry point {entry.name} of {ENTRY_POINTS}: found {entry.value!r}, which cannot "
                f"be imported ({type(error).__name__}: {error})"
            ) from error


def router_names() -> list[str]:
    """Names of all routers, in order of registration."""
    _load_entry_points()
    return list(_REGISTRY)


def router_class(name: str) -> type[Router]:
    """The class of the router called `name`."""
    _load_entry_points()
    prefix = re.split("[/:]", name, maxsplit=1)[0]
    if prefix in _PREFIXES and prefix != name:
        return _PREFIXES[prefix](name)
    try:
        return _REGISTRY[name]
    except KeyError:
        families = [f"{known}/…" for known in _PREFIXES]
        allowed = ", ".join([*_REGISTRY, *families])
        raise ValueError(f"router: found {name!r}, allowed: {allowed}") from None


def make_router(name: str, parameters: Mapping[str, Any] | None = None) -> Router:
    """A router by name, with some of its parameters set.

    Values may be strings (from a command line); they are converted to the parameter's type.

    Raises:
        ValueError: unknown router or parameter, or a value of the wrong kind or out of range.
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
    converters: dict[type, Callable[[Any], Any]] = {
        bool: _to_bool,
        int: _to_int,
        float: _to_float,
        str: _to_str,
    }
    try:
        return converters[kind](value)
    except (TypeError, ValueError):
        raise ValueError(f"{key}: found {value!r}, expected {kind.__name__}") from None


def _to_bool(value: Any) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    word = str(value).lower()
    if word not in words:
        raise ValueError
    return words[word]


def _to_int(value: Any) -> int:
    number = int(value)
    if isinstance(value, bool) or (isinstance(value, float) and number != value):
        raise ValueError
    return number


def _to_float(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or math.isnan(number):
        raise ValueError
    return number


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
