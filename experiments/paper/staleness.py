"""How old may be what a router knows? Snapshots, events, own decisions and telemetry, by age."""

from collections.abc import Callable

from prefixgym.experiments.paper.study import Arm, Claim, Found, Point, Setting, Study, Sweep

_SECONDS = {"0": 0.0, "50 ms": 0.05, "200 ms": 0.2, "1 s": 1.0, "5 s": 5.0}

_APPROXIMATE = Setting(
    "own",
    {
        "knowledge.index.source": '"none"',
        "knowledge.index.own.ttl": "120.0",  # Dynamo's approximate mode
        "knowledge.index.own.blocks": "31_250",  # llm-d's
    },
    apart=True,
)


def _snapshots(own: dict[str, str]) -> tuple[Setting, ...]:
    """The truth, snapshots by interval with or without speculative entries, no reports at all."""
    source = {"knowledge.index.source": '"snapshots"'}
    return (
        Setting("truth", {"knowledge.index.source": '"engine"'}),
        *(
            Setting(label, source | own | {"knowledge.index.snapshots.interval": f"{seconds}"})
            for label, seconds in _SECONDS.items()
            if seconds > 0
        ),
        _APPROXIMATE,
    )


_SPECULATIVE = {"knowledge.index.own.ttl": "2.0"}  # llm-d's
_EVENTS = tuple(
    Setting(
        label,
        {"knowledge.index.source": '"events"', "knowledge.index.delivery.delay": f"{seconds}"},
    )
    for label, seconds in _SECONDS.items()
)


def _telemetry(**seconds: float) -> tuple[Setting, ...]:
    return tuple(
        Setting(label.replace("_", " "), {"knowledge.telemetry.interval": f"{interval}"})
        for label, interval in seconds.items()
    )


# BLIS: 4 instances, prompts that share nothing, 500 of them, near what prefill can take.
_KV_ONLY = Arm("KV usage alone", "llmd_precise", {"queue_scorer": 0, "prefix_cache_scorer": 0})
_KV_AND_QUEUE = Arm("KV usage + queue", "llmd_precise", {"prefix_cache_scorer": 0})
_QUEUE_ONLY = Arm(
    "queue alone", "llmd_precise", {"kv_cache_utilization_scorer": 0, "prefix_cache_scorer": 0}
)
_IN_FLIGHT = Arm.of("least_load")

# llm-d: 16 H100 as 8 instances, 150 x 5 prompts equally popular, beyond what they can take.
_PRECISE = Arm.of("llmd_precise")
_OWN_HISTORY = Arm.of("llmd_approximate")
_LLMD_RATES = (8.0, 12.0, 16.0, 20.0, 30.0)


def _blis(label: str, published: float) -> Claim:
    return Claim(
        f"TTFT p99 of KV usage alone, telemetry {label} old against fresh",
        "BLIS docs",
        published,
        lambda found: _change(found, label),
        "a factor of four either way: the load is only said to be above 80 % of saturation, and "
        "from 250 to 300/s ours grows by more than two",
        published / 4,
        published * 4,
        "%",
    )


def _change(found: Found, label: str) -> float:
    old = found.get("ttft_p99", "blis", label, _KV_ONLY.label)
    fresh = found.get("ttft_p99", "blis", "0", _KV_ONLY.label)
    return 100 * (old / fresh - 1)


_LLMD_LABEL = "12/s"
"""Of those simulated, the rate whose throughput is nearest to the published one."""

_LITTLE_TO_MISS = (
    "with one router its own decisions are nearly all there is to know; the plugin of that time "
    "is not the one that we follow"
)


def _at(metric: str, arm: Arm) -> Callable[[Found], float]:
    return lambda found: found.get(metric, "llmd", _LLMD_LABEL, arm.label)


STUDY = Study(
    name="staleness",
    question="What does it cost that reports of caches and queues are old?",
    costs=True,
    sweeps=(
        Sweep(
            name="snapshots",
            title="Snapshots of caches, or own decisions alone; prompts that live two seconds "
            "(stale-index-8)",
            axis="interval between two snapshots",
            scenario="stale-index-8",
            settings=_snapshots({}),
            varies="index",
        ),
        Sweep(
            name="snapshots-speculative",
            title="The same; what was sent in the last 2 s counts as cached besides",
            axis="interval between two snapshots",
            scenario="stale-index-8",
            settings=_snapshots(_SPECULATIVE),
            varies="index",
        ),
        Sweep(
            name="snapshots-calm",
            title="Snapshots, or own decisions alone; conversations that live for minutes (chat-8)",
            axis="interval between two snapshots",
            scenario="chat-8",
            settings=_snapshots({}),
            varies="index",
        ),
        Sweep(
            name="events",
            title="KV events; prompts that live two seconds (stale-index-8)",
            axis="delay of every event",
            scenario="stale-index-8",
            settings=_EVENTS,
            varies="index",
        ),
        Sweep(
            name="telemetry",
            title="Queues and memory, polled; long answers (shared-prompts-8)",
            axis="interval between two polls",
            scenario="shared-prompts-8",
            settings=_telemetry(**{"0": 0.0, "10 ms": 0.01, "100 ms": 0.1, "1 s": 1.0, "5 s": 5.0}),
            varies="telemetry",
        ),
        Sweep(
            name="blis",
            title="As BLIS: four instances, no shared prefixes, one scorer",
            axis="interval between two polls",
            scenario="unique-prompts-8",
            common={
                "cluster.instances": "4",
                "workload.prompt_tokens": "512",
                "workload.output_tokens": "512",
            },
            settings=_telemetry(
                **{"0": 0.0, "10 ms": 0.01, "50 ms": 0.05, "100 ms": 0.1, "500 ms": 0.5}
            ),
            rate=300.0,
            requests=500,
            arms=(_KV_ONLY, _KV_AND_QUEUE, _QUEUE_ONLY, _IN_FLIGHT),
            relative=True,
            points=(Point("10 ms", "ttft_p99", 1.14), Point("100 ms", "ttft_p99", 4.54)),
        ),
        Sweep(
            name="llmd",
            title="As llm-d: events against own history; Qwen3-32B on 8 x 2 H100, 150 x 5 prompts",
            axis="requests/s",
            scenario="shared-prompts-8",
            common={
                "cluster.instances.0.profile": '"qwen3-32b/h100/tp2"',
                "workload.zipf": "0.0",
                "knowledge.index.source": '"events"',
                "knowledge.index.delivery.delay": "0.010",
            },
            settings=tuple(Setting(f"{rate:g}/s", rate=rate) for rate in _LLMD_RATES),
            requests=1500,
            arms=(_PRECISE, _OWN_HISTORY, Arm.of("least_load"), Arm.of("random")),
        ),
    ),
    claims=(
        _blis("10 ms", 14.0),
        _blis("100 ms", 354.0),
        Claim(
            "TTFT p90, precise index",
            "llm-d",
            0.542,
            _at("ttft_p90", _PRECISE),
            "30 % either way: the rate is not published, and engines of another version ran",
            0.7 * 0.542,
            1.3 * 0.542,
            "s",
        ),
        Claim(
            "TTFT p90, approximate index",
            "llm-d",
            31.08,
            _at("ttft_p90", _OWN_HISTORY),
            "half to twice",
            31.08 / 2,
            31.08 * 2,
            "s",
            _LITTLE_TO_MISS,
        ),
        Claim(
            "throughput, precise / approximate index (8,730 and 6,944 tokens/s)",
            "llm-d",
            8730 / 6944,
            lambda found: (
                _at("throughput", _PRECISE)(found) / _at("throughput", _OWN_HISTORY)(found)
            ),
            "a tenth either way",
            0.9 * 8730 / 6944,
            1.1 * 8730 / 6944,
            "times",
            _LITTLE_TO_MISS,
        ),
        Claim(
            "throughput, precise index",
            "llm-d",
            8730.0,
            lambda found: 1000 * _at("throughput", _PRECISE)(found),
            "below saturation it is what is offered, and the rate is not published",
            unit="tokens/s",
        ),
    ),
)
