"""`--set KEY=VALUE`: parameters of routers, and values of scenarios."""

from collections.abc import Sequence
from typing import Annotated

import typer

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A router parameter (beta=0.5) or a scenario value (cluster.instances=16). "
        "Repeatable.",
    ),
]

ScenarioSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="A scenario value (cluster.instances=16, slo.ttft=1.0). Repeatable.",
    ),
]


def scenario_settings(given: Sequence[str] | None) -> dict[str, str]:
    """Overrides for `load_scenario`.

    Raises:
        ValueError: a setting without a key or an equals sign.
    """
    overrides = {}
    for setting in given or ():
        key, equals, value = setting.partition("=")
        if not key or not equals:
            raise ValueError(f"--set: found {setting!r}, must be KEY=VALUE")
        overrides[key] = value
    return overrides


def split_settings(given: Sequence[str] | None) -> tuple[dict[str, str], dict[str, str]]:
    """Router parameters, and scenario overrides: what has a dot or is a key of scenario files.

    Raises:
        ValueError: as `scenario_settings`.
    """
    from prefixgym.envs.scenarios.schema import Scenario

    settings = scenario_settings(given)
    overrides = {
        key: value for key, value in settings.items() if "." in key or key in Scenario.model_fields
    }
    return {key: value for key, value in settings.items() if key not in overrides}, overrides
