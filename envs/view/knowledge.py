"""How fresh a router's knowledge is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Knowledge:
    """Delays of what instances tell the router; responses to requests always arrive at once.

    Instances take turns: instance i of N reports i/N of an interval later than instance 0, as
    unsynchronised processes would.

    Attributes:
        report_interval: s between two reports of an instance's cached blocks; 0 = immediate.
        telemetry_interval: s between two polls of an instance's queue and memory; 0 = immediate.
    """

    report_interval: float = 0.0
    telemetry_interval: float = 0.0

    def __post_init__(self) -> None:
        for name in ("report_interval", "telemetry_interval"):
            if not getattr(self, name) >= 0:
                raise ValueError(
                    f"knowledge.{name}: found {getattr(self, name)} s, "
                    "must be 0 (immediate) or more"
                )
