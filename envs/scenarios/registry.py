"""Scenarios by name, by path or for a trace, with single values overridden by dotted keys."""

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prefixgym.envs.scenarios.schema import Scenario, explain
from prefixgym.envs.scenarios.workloads import recorded_block_size

_FOLDER = Path(__file__).resolve().parent

# What a scenario made from a trace has besides its requests, see `trace_scenario`.
REPLAY_INSTANCES: Mapping[str, Any] = {"profile": "llama-3.1-70b/h100/tp4", "count": 10}
REPLAY_SLO: Mapping[str, float] = {"ttft": 30.0, "tpot": 0.100}
REPLAY_SEEDS: Mapping[str, Mapping[str, int]] = {
    "train": {"first": 0, "count": 1_000_000},
    "validation": {"first": 1_000_000, "count": 1000},
    "test": {"first": 2_000_000, "count": 1000},
}


def scenario_names() -> list[str]:
    """Names of the built-in scenarios, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def scenario_path(name: str) -> Path:
    """Where the scenario with this name is, or would be; a path that ends in `.toml` is itself."""
    return Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"


def load_scenario(name: str, overrides: Mapping[str, str] | None = None) -> Scenario:
    """The scenario with this name, or in the TOML file at this path.

    Args:
        name: one of `scenario_names()`, or a path that ends in `.toml`.
        overrides: dotted keys and their values as TOML text, lists indexed from 0, for example
            `{"cluster.instances.0.count": "16"}`. Text that is not TOML counts as a string. The
            index after a list's last one adds to it. A number for `cluster.instances` is the count
            of the only group.

    Raises:
        ValueError: unknown name, unreadable file, unknown key, or a value that is not allowed. The
            message names the file, the key, what was found and what is allowed.
    """
    path = scenario_path(name)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        allowed = f"{', '.join(scenario_names())}, or the path of a .toml file"
        raise ValueError(f"scenario: found {name!r}, allowed: {allowed}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: not a readable TOML file: {error}") from None
    return _validated(document, overrides or {}, path.name)


def trace_scenario(
    path: str | Path,
    rates: Sequence[float],
    overrides: Mapping[str, str] | None = None,
    **options: Any,
) -> Scenario:
    """A scenario that replays a trace on ten instances.

    Llama-3.1-70B on 4 × H100 and Mooncake's own objectives, 30 s and 100 ms (`simulators.md` §4):
    its prompts of up to 126,000 tokens take 10 s of prefill alone.

    Args:
        path: the trace.
        rates: load ladder in requests/s; `recorded_rate` tells the recorded one.
        overrides: as for `load_scenario`.
        options: how to read it, see `read_trace`.
    """
    workload: dict[str, Any] = {"generator": "trace", "path": str(path), **options}
    stem = Path(Path(path).name.removesuffix(".gz")).stem
    document = {
        "name": re.sub("[^a-z0-9-]+", "-", stem.lower()).strip("-"),
        "description": f"Replay of {path}.",
        "source": f"Requests: {path}. Objectives: Mooncake (arXiv 2407.00079).",
        "rates": list(rates),
        "cluster": {
            "block_size": recorded_block_size(path, **options),
            "instances": [dict(REPLAY_INSTANCES)],
        },
        "workload": workload,
        "slo": dict(REPLAY_SLO),
        "seeds": {part: dict(seeds) for part, seeds in REPLAY_SEEDS.items()},
    }
    return _validated(document, overrides or {}, Path(path).name)


def _validated(document: dict[str, Any], overrides: Mapping[str, str], file: str) -> Scenario:
    try:
        for key, text in overrides.items():
            _override(document, key, text)
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{file}: {explain(error)}") from None
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None


def _override(document: dict[str, Any], key: str, text: str) -> None:
    """Set one value of a parsed TOML document in place; the schema judges keys of tables."""
    value = toml_value(text)
    if key == "cluster.instances" and isinstance(value, int):
        key = _only_count(document, value)
    parts = key.split(".")
    node: Any = document
    for part, below in itertools.pairwise(parts):
        node = _entry(node, part, key, [] if below.isdecimal() else {})
    _entry(node, parts[-1], key, None)  # makes room
    node[int(parts[-1]) if isinstance(node, list) else parts[-1]] = value


def _entry(node: Any, part: str, key: str, new: Any) -> Any:
    """What stands there in a table or list, `new` if there was nothing."""
    if isinstance(node, dict):
        return node.setdefault(part, new)
    if not isinstance(node, list):
        raise ValueError(f"{key}: found {part!r} below {node!r}, which has no keys")
    if not part.isdecimal() or int(part) > len(node):
        raise ValueError(f"{key}: found index {part!r}, allowed: 0 to {len(node)}")
    if int(part) == len(node):
        node.append(new)
    return node[int(part)]


def _only_count(document: Mapping[str, Any], count: int) -> str:
    """The key of the number of instances, where all of them are alike."""
    match document:
        case {"cluster": {"instances": [_]}}:
            return "cluster.instances.0.count"
        case {"cluster": {"instances": [_, _, *_] as groups}}:
            keys = " or ".join(f"cluster.instances.{i}.count" for i in range(len(groups)))
            raise ValueError(
                f"cluster.instances: found {count} for {len(groups)} groups of different "
                f"instances, set {keys}"
            )
        case _:
            return "cluster.instances"  # the schema says what should be there


def toml_value(text: str) -> Any:
    """A value as TOML spells it; what is none in TOML is a string as it stands."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
