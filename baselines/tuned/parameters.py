"""Tuned parameters that come with the package: `prefixgym tune` writes these files.

One TOML file a scenario, one table a router, each with all that the search spent and found.
"""

import tomllib
from importlib.resources import files
from typing import Any


def tuned_scenarios() -> list[str]:
    """Scenarios that routers were tuned on, sorted."""
    names = (path.name for path in files("prefixgym.baselines.tuned").iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def tuned_tables(scenario: str) -> dict[str, dict[str, Any]]:
    """What is known of each tuned router: `parameters`, scores, and what the search spent.

    Raises:
        ValueError: no router was tuned on that scenario.
    """
    if scenario not in (known := tuned_scenarios()):
        raise ValueError(
            f"scenario: found {scenario!r}, routers were tuned on: {', '.join(known) or 'none'}"
        )
    text = (files("prefixgym.baselines.tuned") / f"{scenario}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def tuned_parameters(scenario: str) -> dict[str, dict[str, Any]]:
    """The parameters for `make_router` by router."""
    return {router: table["parameters"] for router, table in tuned_tables(scenario).items()}
