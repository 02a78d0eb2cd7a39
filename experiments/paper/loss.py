"""What do lost messages cost, and what is each protection of an event index worth?"""

from collections.abc import Mapping

from prefixgym.experiments.paper.study import Setting, Study, Sweep

_LOSSES = {"0": 0.0, "0.1 %": 0.001, "1 %": 0.01, "5 %": 0.05}


def _losses(recover: bool) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            label,
            {
                "knowledge.index.delivery.loss": f"{loss}",
                "knowledge.index.events.recover": str(recover).lower(),
            },
        )
        for label, loss in _LOSSES.items()
    )


_EVENTS: Mapping[str, str] = {
    "knowledge.index.source": '"events"',
    "knowledge.index.delivery.delay": "0.010",
    "knowledge.index.delivery.jitter": "0.010",
}

_BAD_NETWORK = {
    **_EVENTS,
    "knowledge.index.delivery.jitter": "1.0",
    "knowledge.index.delivery.loss": "0.05",
    "knowledge.index.delivery.duplication": "0.05",
    # Each instance says once that its cache was cleared.
    "faults": '[{ kind = "flush", at = 20.0, stagger = 10.0 }]',
}


def _without(label: str, **switches: str) -> Setting:
    return Setting(
        label,
        {f"knowledge.index.events.{key}": value for key, value in switches.items()},
        apart=True,
    )


_PROTECTIONS = (
    _without("all on"),
    _without("no barriers", barriers="false"),
    _without("no buffer", buffer="0"),
    _without("R: no recovery", recover="false"),
    # Where every message is taken in once and in order, these have nothing to do.
    _without("R, no tombstones", recover="false", tombstones="false"),
    _without("R, old taken in", recover="false", ignore_old="false", tombstones="false"),
    _without("R, parent required", recover="false", require_parent="true"),
    _without("R, descendants go", recover="false", drop_descendants="true"),
)

STUDY = Study(
    name="loss",
    question="What do lost events cost a router, and what helps?",
    costs=True,
    sweeps=(
        Sweep(
            name="lost-for-good",
            title="Events lost for good; prompts that stay (shared-prompts-8)",
            axis="events lost",
            scenario="lossy-events-8",
            settings=_losses(recover=False),
            varies="index",
        ),
        Sweep(
            name="recovered",
            title="The same, and the router asks for what it missed",
            axis="events lost",
            scenario="lossy-events-8",
            settings=_losses(recover=True),
            varies="index",
        ),
        Sweep(
            name="lost-for-good-brief",
            title="Events lost for good; prompts that live two seconds (stale-index-8)",
            axis="events lost",
            scenario="stale-index-8",
            common=_EVENTS,
            settings=_losses(recover=False),
            varies="index",
        ),
        Sweep(
            name="recovered-brief",
            title="The same, and the router asks for what it missed",
            axis="events lost",
            scenario="stale-index-8",
            common=_EVENTS,
            settings=_losses(recover=True),
            varies="index",
        ),
        Sweep(
            name="protections",
            title="Protections switched off: 5 % lost, 5 % twice, up to 1 s late, each cache "
            "cleared once (shared-prompts-8)",
            axis="",
            scenario="shared-prompts-8",
            common=_BAD_NETWORK,
            settings=_PROTECTIONS,
            varies="index",
        ),
    ),
)
