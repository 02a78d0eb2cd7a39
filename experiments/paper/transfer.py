"""What is a router worth where it was not trained? Clusters, objectives, news and requests."""

from collections.abc import Mapping
from pathlib import Path

from prefixgym.experiments.paper.study import BEST, Setting, Study, Sweep, TraceSweep

TRACE = Path("../shared/traces/mooncake_conversation/conversation_trace.jsonl.gz")
"""Where the Mooncake conversation trace lies unless `--trace` says otherwise."""

_REQUESTS = 6000
_KV_BLOCKS = 1773  # of llama-3.1-70b/h100/tp4, at 256 tokens

# Every rate is the highest at which the best of three handcrafted routers attains 97 %:
# `python -m prefixgym.experiments.paper.contested transfer`. Only that of 64 instances was not
# searched, which takes a quarter of an hour: it is four times that of 16, itself twice that of 8.
_AS_TRAINED = 21.5


def _instances(count: int, rate: float, requests: int) -> Setting:
    return Setting(f"{count}", {"cluster.instances": f"{count}"}, rate, requests=requests)


def _profile(label: str, name: str, rate: float) -> Setting:
    overrides = {"cluster.instances.0.profile": f'"{name}"'}
    return Setting(label, overrides, rate, apart=True)


def _cache(factor: float, rate: float) -> Setting:
    blocks = round(factor * _KV_BLOCKS)
    return Setting(f"{factor:g}", {"cluster.instances.0.kv_blocks": f"{blocks}"}, rate)


def _slo(factor: float, rate: float) -> Setting:
    overrides = {"slo.ttft": f"{0.45 * factor:g}", "slo.tpot": f"{0.04 * factor:g}"}
    return Setting(f"{factor:g}", overrides, rate)


def _age(label: str, seconds: float) -> Setting:
    news: Mapping[str, str] = {"knowledge.telemetry.interval": f"{seconds}"}
    if seconds == 0:
        return Setting(label, {**news, "knowledge.index.source": '"engine"'})
    return Setting(label, {**news, "knowledge.index.snapshots.interval": f"{seconds}"})


STUDY = Study(
    name="transfer",
    question="What is a router worth where it was not trained?",
    sweeps=(
        Sweep(
            name="instances",
            title="Other numbers of instances (trained on eight; chat-8)",
            axis="instances",
            scenario="chat-8",
            requests=_REQUESTS,
            settings=(
                _instances(4, 9.87, 3000),
                _instances(8, _AS_TRAINED, _REQUESTS),
                _instances(16, 42.9, 12_000),
                _instances(64, 172.0, 24_000),
            ),
            arms=BEST,
        ),
        Sweep(
            name="profiles",
            title="Other GPUs and models (trained for Llama-3.1-70B on 4 x H100)",
            axis="",
            scenario="chat-8",
            requests=_REQUESTS,
            settings=(
                _profile("as trained", "llama-3.1-70b/h100/tp4", _AS_TRAINED),
                _profile("4 x A100", "llama-3.1-70b/a100/tp4", 3.74),
                _profile("4 x B200", "llama-3.1-70b/b200/tp4", 65.2),
                _profile("Qwen3-32B, 2 x H100", "qwen3-32b/h100/tp2", 23.3),
                _profile("Llama-3.1-8B, H100", "llama-3.1-8b/h100/tp1", 61.7),
            ),
            arms=BEST,
        ),
        Sweep(
            name="cache",
            title="Smaller and larger caches",
            axis="times the KV blocks trained with",
            scenario="chat-8",
            requests=_REQUESTS,
            settings=(_cache(0.5, 13.3), _cache(1.0, _AS_TRAINED), _cache(2.0, 24.7)),
            arms=BEST,
        ),
        Sweep(
            name="slo",
            title="Tighter and looser objectives",
            axis="times the objectives trained with, TTFT and TPOT",
            scenario="chat-8",
            requests=_REQUESTS,
            settings=(_slo(0.5, 5.57), _slo(1.0, _AS_TRAINED), _slo(2.0, 39.1)),
            arms=BEST,
        ),
        Sweep(
            name="staleness",
            title="Fresher and older news of caches and queues (trained with 50 ms)",
            axis="interval between two snapshots, and two polls",
            scenario="chat-8",
            rate=_AS_TRAINED,
            requests=_REQUESTS,
            settings=(
                _age("0", 0.0),
                _age("50 ms", 0.05),
                _age("200 ms", 0.2),
                _age("500 ms", 0.5),
                _age("1 s", 1.0),
            ),
            arms=BEST,
        ),
        TraceSweep(
            name="trace",
            title="Requests of the Mooncake conversation trace, its objectives (30 s, 100 ms)",
            axis="",
            scenario="conversation-trace",
            common={
                "cluster.instances": "8",
                "knowledge.index.source": '"snapshots"',
                "knowledge.index.snapshots.interval": "0.050",
                "knowledge.telemetry.interval": "0.050",
            },
            requests=3000,
            settings=(Setting("Mooncake conversation", rate=5.16, apart=True),),
            arms=BEST,
            trace=TRACE,
        ),
    ),
)
