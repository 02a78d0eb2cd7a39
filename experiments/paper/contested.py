"""The load of each setting of a study at which routers can be told apart.

    python -m prefixgym.experiments.paper.contested STUDY [SWEEP…]

prints, for each setting, the highest rate at which the best of a few handcrafted routers still
attains `WANTED`: there is something left to gain, and little is lost that could be saved. A sweep
with one rate for all its settings has that of its last one. The rates stand in the studies as
constants; nothing looks for them again.
"""

import sys

import numpy as np

from prefixgym.experiments.capacity import find_capacity
from prefixgym.experiments.evaluate import Cell, evaluate
from prefixgym.experiments.paper.registry import study_called
from prefixgym.experiments.paper.study import Setting, Sweep
from prefixgym.experiments.scenario_tables import middle_rate

WANTED = 0.97
ROUTERS = ("smetric", "llmd_affinity", "min_ttft")
EPISODES = 2


def contested_rate(sweep: Sweep, setting: Setting, requests: int | None = None) -> float:
    """Requests/s, to three significant digits; on the first validation seeds.

    Args:
        sweep, setting: of the study.
        requests: of an episode, by default as the setting has it.
    """
    scenario = sweep.scenario_at(setting, requests)
    seeds = tuple(scenario.seeds.of("validation")[:EPISODES])

    def attainment(rate: float) -> float:
        found = []
        for router in ROUTERS:
            episodes = evaluate(Cell(scenario, rate, router, seeds))
            found.append(float(np.mean(episodes["attainment"].to_numpy())))
            if found[-1] >= WANTED:  # the others need not be asked
                break
        return max(found)

    start = setting.rate or sweep.rate or middle_rate(scenario)
    return float(f"{find_capacity(attainment, start, WANTED):.3g}")


def main(study: str, *names: str) -> None:
    """Print a line a setting; those that are the same scenario have one rate."""
    known: dict[str, float] = {}
    for sweep in study_called(study).sweeps:
        apart = [setting for setting in sweep.settings if setting.rate is not None]
        for setting in apart or sweep.settings[-1:]:
            if names and sweep.name not in names:
                continue
            same = str(sweep.scenario_at(setting).identity())
            if same not in known:
                known[same] = contested_rate(sweep, setting)
            print(f"{sweep.name}: {setting.label}: {known[same]:g} requests/s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
