"""Compile the simulator's large kernels ahead: `python -m prefixgym.envs.compilation`.

A process that needs them compiles one after the other, and processes that start together all
compile the same ones. Here each kernel is compiled once, two at a time; every process finds them
on disk afterwards (`prefixgym.envs.jit`).
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np

from prefixgym.envs.decisions import CONTINUE, ONE_STEP, incident_range, reset_range, step_range
from prefixgym.envs.knowing import know_range
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.simulation import Simulation


def _steps(simulation: Simulation) -> None:
    simulation.run(step_range, np.array([[CONTINUE]]), ONE_STEP)


def _between_steps(simulation: Simulation) -> None:
    simulation.run(know_range)
    simulation.run(incident_range)
    simulation.run(reset_range, np.array([False]))


_SHARES: tuple[Callable[[Simulation], None], ...] = (_steps, _between_steps)
"""What is compiled side by side; each share takes about as long as the other."""


def _compile(share: int) -> None:
    scenario = load_scenario("shared-prompts-8")
    # No episode has begun: the kernels find nothing to do. All scenarios share them.
    _SHARES[share](Simulation(**scenario.build(scenario.rates[0])._asdict()))


def compile_kernels() -> None:
    """Compile what is not on disk yet."""
    with ProcessPoolExecutor(len(_SHARES), mp_context=get_context("spawn")) as pool:
        list(pool.map(_compile, range(len(_SHARES))))


if __name__ == "__main__":
    compile_kernels()
