"""How fast episodes are generated: requests per second of every generator, on one core."""

import functools
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from prefixgym.envs.scenarios.workloads import GENERATORS, build_workload
from prefixgym.envs.workload.tape import Tape, Workload
from prefixgym.experiments.bench.speed import Measurement, best_seconds

POOL = Path("../shared/traces/servegen/language_m-small.clients.jsonl.gz")
"""Where the project's own machines keep a pool of ServeGen's clients."""

# What generators need that have no defaults.
_PARAMETERS: dict[str, dict[str, Any]] = {
    "shared-prompts": {
        "num_groups": 150,
        "prompts_per_group": 5,
        "system_tokens": 6000,
        "question_tokens": 1200,
        "output_tokens": 1000,
    },
    "servegen": {"path": str(POOL)},
}


def generation(requests: int = 5000, repeats: int = 10) -> list[Measurement]:
    """Requests/s of each generator with its defaults, episode by episode.

    What a generator works out once for all episodes is left out. ServeGen's is measured where the
    pool is.
    """
    found = []
    for name in GENERATORS:
        if name == "servegen" and not POOL.exists():
            continue
        workload = build_workload(
            name,
            _PARAMETERS.get(name, {}),
            num_requests=requests,
            rate=20.0,
            arrivals=None,
            block_size=64,
        )
        rate = requests / best_seconds(functools.partial(_next_tape, workload, count()), repeats)
        found.append(
            Measurement(
                f"generator {name}, episodes of {requests:,}",
                rate,
                "requests/s",
                ">= 500,000",
                rate >= 500_000,
            )
        )
    return found


def _next_tape(workload: Workload, seeds: Iterator[int]) -> Tape:
    return workload.tape(next(seeds))
