"""How clients behave that wait too long, or whose request has failed."""

from pydantic import BaseModel, ConfigDict, Field


class Clients(BaseModel):
    """Clients who cancel, give up and try again; by default they do neither.

    Attributes:
        timeout: s without a first token after which a client gives up; left out: never.
        cancel: share of requests whose client goes away in mid-course.
        cancel_after: s, mean of the exponential time after which those clients go away, counted
            from the arrival.
        retries: how often a client whose request failed sends it again. Its TTFT counts from the
            first arrival on.
        retry_delay: s between a failure and the next try.
        leak: share of the cancelled requests whose end the router is never told: what it booked for
            them stays booked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float | None = Field(default=None, gt=0)
    cancel: float = Field(default=0.0, ge=0, le=1)
    cancel_after: float = Field(default=5.0, gt=0)
    retries: int = Field(default=0, ge=0)
    retry_delay: float = Field(default=0.0, ge=0)
    leak: float = Field(default=0.0, ge=0, le=1)
