"""Observations of a `View`, written by the kernel that the environments use."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.view.view import View


class Seen(NamedTuple):
    """Of the view's arrays, those that `write_observation` reads."""

    requests: NDArray[np.void]  # REQUEST_VIEW [E]
    shown_instances: NDArray[np.void]  # INSTANCE_VIEW [E, N]


def seen_in(view: View) -> Seen:
    """The arrays of this view, not copied."""
    return Seen(view.requests, view.instances)
