"""What no router knows: references may look at the simulation itself."""

from dataclasses import dataclass
from typing import ClassVar

from prefixgym.baselines.router import Router, Source
from prefixgym.envs.simulation import Simulation


@dataclass
class Reference(Router):
    """A router that is shown the simulation in which it decides.

    Whoever plays it calls `watch` before `reset`, which comes after the simulation's own reset.
    """

    knows: ClassVar[tuple[Source, ...]] = ("truth",)

    def watch(self, simulation: Simulation) -> None:
        """Look at this simulation from the next reset on."""
        self._watched = simulation

    @property
    def watched(self) -> Simulation:
        """The simulation; ValueError if none was shown."""
        simulation: Simulation | None = getattr(self, "_watched", None)
        if simulation is None:
            raise ValueError(
                f"{self.name}: decides by the true state, but was shown no simulation; "
                "`prefixgym evaluate` and `leaderboard` show it, streamed replays cannot"
            )
        return simulation
