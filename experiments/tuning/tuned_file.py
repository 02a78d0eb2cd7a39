"""The TOML file of what was tuned on one scenario: a table a router, with all that was spent.

A file may be added to: routers that are tuned again replace their own tables, others stay.
"""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prefixgym.baselines.router import make_router
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.evaluate import played
from prefixgym.experiments.goodput_objective import REWARD
from prefixgym.experiments.provenance import commit
from prefixgym.experiments.toml_text import toml_text
from prefixgym.experiments.tuning.study import Tuned, Tuning
from prefixgym.experiments.whole_files import replaced

HEADING = """\
# Written by `prefixgym tune`, not by hand. A table a router:
#   parameters   those that were searched, as found; others have their defaults
#   score        mean of (good - {price} * min(tardiness, {cap})) per request on the training
#                episodes, of the defaults and of what was found
#   validation   attainment and p99 TTFT in s on episodes that were not searched on
#   budget       trials (given up: pruned by the median), and the episodes of a whole trial
"""


def validated(
    tuned: Tuned, scenario: Scenario, rate: float, seeds: Sequence[int]
) -> dict[str, Any]:
    """Attainment and p99 TTFT of the defaults and of what was found on validation episodes."""
    found: dict[str, Any] = {"first_seed": seeds[0], "episodes": len(seeds)}
    found["requests"] = scenario.num_requests
    for name, parameters in (("default", {}), ("tuned", tuned.parameters)):
        _, episodes = played(make_router(tuned.router, parameters), scenario, rate, seeds)
        found[name] = {
            metric: round(float(np.mean([getattr(one, metric) for one in episodes])), 5)
            for metric in ("attainment", "ttft_p99")
        }
    return found


def table_of(tuned: Tuned, tuning: Tuning, validation: Mapping[str, Any]) -> dict[str, Any]:
    """All that the file says of one router."""
    return {
        "parameters": tuned.parameters,
        "score": {"default": round(tuned.default_score, 5), "tuned": round(tuned.score, 5)},
        "validation": dict(validation),
        "budget": {
            "rate": tuning.rate,
            "trials": tuned.trials,
            "given_up": tuned.given_up,
            "first_seed": tuning.seeds[0],
            "episodes": len(tuning.seeds),
            "requests": tuning.scenario.num_requests,
            "seed": tuning.seed,
            "commit": commit(),
        },
    }


def write(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Add tables to the file, which is made if it does not exist."""
    known: dict[str, Any] = {}
    if path.exists():
        known = tomllib.loads(path.read_text(encoding="utf-8"))
    lines = [HEADING.format(price=REWARD.tardiness, cap=REWARD.cap)]
    for router, table in sorted((known | dict(tables)).items()):
        lines.append(f"[{router}]")
        lines += [f"{key} = {toml_text(value)}" for key, value in table.items()]
        lines.append("")
    with replaced(path) as partial:
        partial.write_text("\n".join(lines), encoding="utf-8")
