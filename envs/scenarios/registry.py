"""Scenarios by name or by path, with single values overridden by dotted keys."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prefixgym.envs.scenarios.schema import Scenario, explain

_FOLDER = Path(__file__).resolve().parent


def scenario_names() -> list[str]:
    """Names of the built-in scenarios, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def load_scenario(name: str, overrides: Mapping[str, str] | None = None) -> Scenario:
    """The scenario with this name, or in the TOML file at this path.

    Args:
        name: one of `scenario_names()`, or a path that ends in `.toml`.
        overrides: dotted keys and their values as TOML text, lists indexed from 0, for example
            `{"cluster.instances.0.count": "16"}`. Text that is not TOML counts as a string.

    Raises:
        ValueError: unknown name, unreadable file, unknown key, or a value that is not allowed. The
            message names the file, the key, what was found and what is allowed.
    """
    path = Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        allowed = f"{', '.join(scenario_names())}, or the path of a .toml file"
        raise ValueError(f"scenario: found {name!r}, allowed: {allowed}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: not a readable TOML file: {error}") from None
    try:
        for key, text in (overrides or {}).items():
            _override(document, key, text)
        return Scenario.model_validate(document)
    except ValidationError as error:
        raise ValueError(f"{path.name}: {explain(error)}") from None
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None


def _override(document: dict[str, Any], key: str, text: str) -> None:
    """Set one value of a parsed TOML document in place; the schema judges keys of tables."""
    *parents, leaf = key.split(".")
    node: Any = document
    for part in parents:
        node = (
            node.setdefault(part, {}) if isinstance(node, dict) else node[_index(node, part, key)]
        )
    if isinstance(node, dict):
        node[leaf] = _value(text)
    else:
        node[_index(node, leaf, key)] = _value(text)


def _index(node: Any, part: str, key: str) -> int:
    if not isinstance(node, list):
        raise ValueError(f"{key}: found {part!r} below {node!r}, which has no keys")
    if not part.isdecimal() or int(part) >= len(node):
        raise ValueError(f"{key}: found index {part!r}, allowed: 0 to {len(node) - 1}")
    return int(part)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
