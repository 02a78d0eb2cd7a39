"""Service-level objectives."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Slo:
    """What a request of one class must meet to count as good.

    Attributes:
        ttft: s, most time from arrival to the first token.
        tpot: s, most mean time per output token after the first. A single-token answer has none and
            passes (vLLM's `bench serve --goodput`).
    """

    ttft: float
    tpot: float

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            if not getattr(self, name) > 0:
                raise ValueError(f"slo.{name}: found {getattr(self, name)}, must be above 0 s")
