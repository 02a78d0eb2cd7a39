"""What do several routers side by side cost that do not know of each other, and what helps?"""

from collections.abc import Mapping

from prefixgym.experiments.paper.study import Arm, Claim, Found, Point, Setting, Study, Sweep

_COUNTS = (1, 2, 4, 8)
_LOAD = {"knowledge.replicas.load_sync": "0.1"}  # AIBrix
_HISTORY = {"knowledge.replicas.history_sync": "0.1"}
_INDEX = {"knowledge.replicas.shared_index": "true"}


def _counts(shared: Mapping[str, str]) -> tuple[Setting, ...]:
    return tuple(
        Setting(f"{count}", {"knowledge.replicas.count": f"{count}", **shared}) for count in _COUNTS
    )


def _options(count: int) -> tuple[Setting, ...]:
    """What so many routers may tell each other, and one router alone."""
    many = {"knowledge.replicas.count": f"{count}"}
    return (
        Setting("one router", {"knowledge.replicas.count": "1"}, apart=True),
        Setting("nothing", many, apart=True),
        Setting("load", many | _LOAD, apart=True),
        Setting("history", many | _HISTORY, apart=True),
        Setting("index", many | _INDEX, apart=True),
        Setting("all three", many | _LOAD | _HISTORY | _INDEX, apart=True),
    )


# SMG: agents, 8 gateways; its trees of own decisions, or of the engines' events.
_OWN_TREE = Arm.of("smg_cache_aware")
_EVENT_TREE = Arm.of("cache_aware_zmq")
_SMG = "smg"


def _against(found: Found, metric: str, digits: int) -> str:
    """Eight routers on their own against eight that tell each other all."""
    parts = []
    for arm in (_OWN_TREE, _EVENT_TREE):
        alone, told = (
            found.get(metric, _SMG, setting, arm.label) for setting in ("nothing", "all three")
        )
        parts.append(f"{arm.label}: {alone:.{digits}f} against {told:.{digits}f}")
    return "; ".join(parts)


STUDY = Study(
    name="replicas",
    question="What does it cost that several routers do not know of each other?",
    sweeps=(
        Sweep(
            name="alone",
            title="Routers that tell each other nothing (replicas-8)",
            axis="routers",
            scenario="replicas-8",
            settings=_counts({}),
            requests=1500,
        ),
        Sweep(
            name="load-sync",
            title="The same, and every 0.1 s each learns what the others have in flight",
            axis="routers",
            scenario="replicas-8",
            settings=_counts(_LOAD),
            requests=1500,
        ),
        Sweep(
            name="options",
            title="What eight routers tell each other, 0.1 s late",
            axis="",
            scenario="replicas-8",
            settings=_options(8),
            requests=1500,
        ),
        Sweep(
            name=_SMG,
            title="As SMG: agents, eight gateways (agentic-8 on 24 instances)",
            axis="",
            scenario="agentic-8",
            common={"cluster.instances": "24"},
            rate=35.7,
            requests=2000,
            settings=_options(8),
            arms=(
                _OWN_TREE,
                _EVENT_TREE,
                Arm.of("dynamo"),
                Arm.of("prefix_hash"),
                Arm.of("least_load"),
            ),
            points=(Point("nothing", "hit_rate", 0.66), Point("all three", "hit_rate", 0.95)),
        ),
    ),
    claims=(
        Claim(
            "hit rate at 8 gateways, each on its own against a shared index",
            "smg#2394",
            "0.66 against 0.95",
            lambda found: _against(found, "hit_rate", 2),
        ),
        Claim(
            "coefficient of variation of the load over instances, the same",
            "smg#2438",
            "0.472 against 0.063",
            lambda found: _against(found, "load_cov", 3),
        ),
    ),
)
