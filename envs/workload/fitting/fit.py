"""What a fit is: a generator, its parameters, and how requests arrive."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import to_seconds
from prefixgym.envs.workload.arrivals import Arrivals, Gamma, Poisson
from prefixgym.envs.workload.statistics.summary import Study
from prefixgym.envs.workload.tape import Workload

_POISSON_CV = (0.9, 1.1)


@dataclass(frozen=True)
class Fit:
    """A generator fitted to a trace.

    Attributes:
        generator: its class.
        family: its name in scenario files.
        parameters: its other keyword arguments.
        rate: requests/s of the trace.
        arrival_cv: coefficient of variation of the gaps between arrivals; 1 is Poisson.
        block_size: tokens in a block of the trace.
        notes: what was found on the way, a line each, for people.
    """

    generator: Any
    family: str
    parameters: dict[str, Any]
    rate: float
    arrival_cv: float
    block_size: int
    notes: tuple[str, ...] = field(default=())

    @property
    def arrivals(self) -> Arrivals:
        """The process at the trace's rate."""
        if self.arrival_cv == 1:
            return Poisson(self.rate)
        return Gamma(self.rate, self.arrival_cv)

    def at_rate(self, rate: float) -> "Fit":
        """The same at another rate."""
        return replace(self, rate=rate)

    def workload(self, num_requests: int) -> Workload:
        """The generator, for episodes of so many requests."""
        workload: Workload = self.generator(
            num_requests=num_requests,
            arrivals=self.arrivals,
            block_size=self.block_size,
            **self.parameters,
        )
        return workload


def fit_arrivals(study: Study, rows: NDArray[np.bool_] | None = None) -> tuple[float, float]:
    """Rate and `arrival_cv` of a trace; a CV within 10 % of 1 is taken for Poisson.

    Args:
        study: the trace. If it was recorded in batches, they are spread already.
        rows: those whose arrivals are the process's own, [R]; None: all.

    Raises:
        ValueError: all requests arrive at once.
    """
    arrival = study.line.tape.requests["arrival"]
    span = float(to_seconds(arrival[-1] - arrival[0]))
    if span == 0:
        raise ValueError("arrivals: all requests arrive at once, there is no rate to fit")
    gaps = np.diff(arrival if rows is None else arrival[rows])
    cv = float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.any() else 1.0
    low, high = _POISSON_CV
    return len(arrival) / span, 1.0 if low <= cv <= high else float(f"{cv:.3g}")
