"""What do several routers side by side cost that do not know of each other, and what helps?"""

from collections.abc import Callable, Mapping

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


_OPEN = "neither workload nor model is published in full"


def _of(metric: str, setting: str) -> Callable[[Found], float]:
    return lambda found: found.get(metric, _SMG, setting, _OWN_TREE.label)


def _lost(found: Found) -> float:
    return 100 * (1 - _of("hit_rate", "nothing")(found) / _of("hit_rate", "all three")(found))


def _level(
    what: str, source: str, published: float, metric: str, setting: str, share: float, why: str
) -> Claim:
    """A known miss."""
    return Claim(
        what,
        source,
        published,
        _of(metric, setting),
        f"{100 * share:g} % either way",
        (1 - share) * published,
        (1 + share) * published,
        known_miss=f"{why}; {_OPEN}",
    )


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
            "hits lost by eight gateways on their own, of those with a shared index",
            "smg#2394",
            100 * (1 - 0.66 / 0.95),
            _lost,
            f"half to twice: {_OPEN}",
            50 * (1 - 0.66 / 0.95),
            200 * (1 - 0.66 / 0.95),
            "%",
        ),
        _level(
            "hit rate, eight gateways on their own",
            "smg#2394",
            0.66,
            "hit_rate",
            "nothing",
            0.1,
            "not more than 0.72 of these agents' tokens can be found at all",
        ),
        _level(
            "hit rate, a shared index",
            "smg#2394",
            0.95,
            "hit_rate",
            "all three",
            0.1,
            "not more than 0.72 of these agents' tokens can be found at all",
        ),
        _level(
            "variation of the load over instances, on their own",
            "smg#2438",
            0.472,
            "load_cov",
            "nothing",
            0.5,
            "ours is evener",
        ),
        _level(
            "variation of the load over instances, a shared index",
            "smg#2438",
            0.063,
            "load_cov",
            "all three",
            0.5,
            "ours is less even",
        ),
    ),
)
