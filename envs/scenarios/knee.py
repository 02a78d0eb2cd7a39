"""The `[knee]` table of a scenario: the load at which a named router begins to fail.

Written by `prefixgym scenarios knee NAME --write`, together with the ladder of loads around it.
"""

from pydantic import BaseModel, ConfigDict, Field

LADDER = (0.6, 0.8, 1.0, 1.1, 1.2)
"""Loads of every built-in scenario, in parts of its knee."""


class KneeSection(BaseModel):
    """Where the load ladder stands, and how that was found.

    Attributes:
        router: whose capacity it is, with default parameters.
        attainment: share of requests that meet their objectives at the knee, and at no rate above.
        rate: the knee in requests/s, bisected to within 2 %.
        episodes: how many it was found on, one for each of the first validation seeds.
        compared: attainment of other routers at this rate, on the same requests.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    router: str
    attainment: float = Field(gt=0, le=1)
    rate: float = Field(gt=0)
    episodes: int = Field(ge=1)
    compared: dict[str, float] = {}


def ladder(knee: float) -> tuple[float, ...]:
    """The loads around a knee, requests/s, to three significant digits."""
    return tuple(float(f"{share * knee:.3g}") for share in LADDER)
