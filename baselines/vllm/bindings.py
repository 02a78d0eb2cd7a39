"""Which instance each session is bound to: the table of routers that keep sessions together."""

import numpy as np
from numpy.typing import NDArray

UNBOUND = -1

BINDING = np.dtype(
    [
        ("instance", np.int32),  # UNBOUND if none
        ("in_flight", np.int32),  # requests of the session that have not ended
        ("used", np.float64),  # s, when its router last saw it used
    ],
    align=True,
)


def bindings(num_envs: int, num_sessions: int = 64) -> NDArray[np.void]:
    """BINDING records, shape [num_envs, num_sessions], all UNBOUND."""
    table = np.zeros((num_envs, num_sessions), BINDING)
    table["instance"] = UNBOUND
    return table


def with_sessions(table: NDArray[np.void], sessions: NDArray[np.int64]) -> NDArray[np.void]:
    """The table itself, or a larger one that has a row for each of `sessions`, shape [E]."""
    num_envs, capacity = table.shape
    most = int(sessions.max()) + 1
    if most <= capacity:
        return table
    return np.hstack([table, bindings(num_envs, max(most, 2 * capacity) - capacity)])
