"""What is compiled ahead is what episodes call."""

import subprocess
import sys

_PLAY = """
import numpy as np
from prefixgym.envs import decisions, knowing
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.simulation import Simulation

for name in ("crash-8", "shared-prompts-8"):
    scenario = load_scenario(name)
    simulation = Simulation(**scenario.build(scenario.rates[0])._asdict())
    simulation.reset([0])
    for _ in range(3):
        simulation.step(np.array([0]))
simulation.reset([0])
simulation.play(np.zeros((1, scenario.num_requests), np.int64))
d = decisions
kernels = (d.step_range, d.incident_range, d.reset_range, knowing.know_range)
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels))
"""


def test_episodes_find_all_large_kernels_compiled() -> None:
    subprocess.run([sys.executable, "-m", "prefixgym.envs.compilation"], check=True)
    played = subprocess.run(
        [sys.executable, "-c", _PLAY], check=True, capture_output=True, text=True
    )
    assert played.stdout == "0\n"
