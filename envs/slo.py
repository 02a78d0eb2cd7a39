"""Service-level objectives."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Slo:
    """What a request of one class must meet to count as good.

    Attributes:
        ttft: s, most time from arrival to the first token, for a prompt of no length.
        tpot: s, most mean time per output token after the first. A single-token answer has none and
            passes (vLLM's `bench serve --goodput`).
        ttft_per_token: s that each prompt token adds to `ttft`. With one objective for all lengths,
            long prompts fail always and are worth dropping (`simulators.md` §4).
    """

    ttft: float
    tpot: float
    ttft_per_token: float = 0.0

    def __post_init__(self) -> None:
        for name in ("ttft", "tpot"):
            if not getattr(self, name) > 0:
                raise ValueError(f"slo.{name}: found {getattr(self, name)}, must be above 0 s")
        if not self.ttft_per_token >= 0:
            raise ValueError(
                f"slo.ttft_per_token: found {self.ttft_per_token}, must be at least 0 s"
            )
