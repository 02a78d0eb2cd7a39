"""A fitted generator as a scenario file, to train and compare routers on."""

import math
from collections.abc import Mapping
from typing import Any

from prefixgym.envs.scenarios.registry import REPLAY_INSTANCES, REPLAY_SEEDS, REPLAY_SLO
from prefixgym.envs.workload.fitting.fit import Fit
from prefixgym.experiments.toml_text import toml_text

_LADDER = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
_MOST_REQUESTS = 10_000


def fitted_scenario(fit: Fit, name: str, trace: str, requests: int) -> str:
    """The TOML text of a scenario, with the cluster and objectives of `prefixgym replay`.

    Args:
        fit: the generator.
        name: of the scenario: lower-case letters, digits and hyphens.
        trace: what it was fitted to, for people.
        requests: rows of the trace; episodes have as many, 10,000 at most.
    """
    rates = dict.fromkeys(float(f"{factor * fit.rate:.3g}") for factor in _LADDER)
    workload: dict[str, Any] = {
        "generator": fit.family,
        "num_requests": min(requests, _MOST_REQUESTS),
    }
    if fit.arrival_cv != 1:
        workload["arrivals"] = {"process": "gamma", "cv": fit.arrival_cv}
    # Infinity is every generator's default where it is allowed.
    workload |= {k: v for k, v in fit.parameters.items() if v is not None and v != math.inf}
    source = f"Fitted to {trace}: {'; '.join(fit.notes)}. Objectives: Mooncake (arXiv 2407.00079)."
    lines = [
        "# Written by `prefixgym trace fit`. The rates surround the trace's own; place them around",
        "# your cluster's knee: `prefixgym scenarios knee FILE --write`.",
        f"name = {toml_text(name)}",
        f'description = "Requests like those of {trace}, made by the {fit.family} generator."',
        f"source = {toml_text(source)}",
        f"rates = {toml_text(list(rates))}  # requests/s",
        "",
        "[cluster]",
        f"block_size = {fit.block_size}  # tokens",
        "",
        "[[cluster.instances]]",
        *_table(REPLAY_INSTANCES),
        "",
        "[workload]",
        *_table(workload),
        "",
        "[slo]  # s, s a token",
        *_table(REPLAY_SLO),
        "",
        "[seeds]",
        *_table(REPLAY_SEEDS),
        "",
    ]
    return "\n".join(lines)


def _table(values: Mapping[str, Any]) -> list[str]:
    """A line for each key."""
    return [f"{key} = {toml_text(value)}" for key, value in values.items()]
