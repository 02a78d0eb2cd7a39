"""Mooncake: one shared cache against ten local ones, and what is left of it with a good router.

Source: `routers_flexlb_dynamo_preble_mooncake.md` §4.3 (FAST'25 §5.3.2). Both arms replay a trace
exactly (`mooncake_lru.py`); routers besides play it in the simulator, with queues, and what they
chose is then replayed like the others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prefixgym.envs.cluster.profiles import profile
from prefixgym.envs.workload.readers.registry import read_trace
from prefixgym.envs.workload.tape import Tape
from prefixgym.experiments.paper.mooncake_lru import (
    PrefillTime,
    Replayed,
    Route,
    prefix_greedy,
    recorded,
    replay,
    round_robin,
    sometimes,
)
from prefixgym.experiments.paper.mooncake_play import free_for_all, route_trace
from prefixgym.experiments.paper.published import Effort, Figure, Outcome, Result
from prefixgym.experiments.paper.transfer import TRACE
from prefixgym.experiments.table import Table

SOURCE = "Mooncake, FAST'25 §5.3.2"
NODES = 10
NODE_TOKENS = 3_000_000
PROFILE = "llama-3.1-70b/a100/tp4"
"""Theirs: a dummy of Llama-3-70B on eight A800, of which no step was measured."""

ROUTERS = (
    "round_robin", "least_load", "kvaware", "loadaware", "dynamo", "lmetric", "min_ttft",
    "cache_aware", "llmd_precise",
)  # fmt: skip
_SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
_CAPACITIES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Of a node, in units of 3 M tokens."""

GREEDY: dict[str, Callable[[], Route]] = {
    "greedy, first": lambda: prefix_greedy("first"),
    "greedy, random": lambda: prefix_greedy("random"),
    "greedy, balanced": lambda: prefix_greedy("balanced"),
    "greedy from 2 blocks, first": lambda: prefix_greedy("first", least=2),
    "greedy from 2 blocks, random": lambda: prefix_greedy("random", least=2),
    "greedy from 2 blocks, balanced": lambda: prefix_greedy("balanced", least=2),
}
"""The local arm by the letter, with every rule for ties and misses."""

_BY_THE_LETTER = "greedy, balanced"
_BEST_GREEDY = "greedy from 2 blocks, balanced"
SHARED = "shared cache"


@dataclass(frozen=True)
class Trace:
    """A published trace and what was published about it.

    Attributes:
        name: what it is called.
        path: the file.
        hits: hit ratio, global / local.
        time: prefill GPU time, global / local.
    """

    name: str
    path: Path
    hits: float
    time: float


def traces(conversation: Path) -> list[Trace]:
    """Those at hand: the synthetic one is looked for beside the conversation's folder."""
    folder = conversation.parent.parent / "mooncake_synthetic"
    synthetic = folder / f"synthetic_trace.jsonl{conversation.suffix.removeprefix('.jsonl')}"
    return [
        Trace("conversation", conversation, 2.22, 0.76),
        Trace("synthetic", synthetic, 2.36, 0.52),
    ]


def replays(trace: Trace) -> list[dict[str, Any]]:
    """Every arm on one trace, a row each."""
    tape = read_trace(trace.path)
    seconds = PrefillTime(profile(PROFILE))
    blocks = NODE_TOKENS // tape.block_size
    shared = replay(tape, 1, NODES * blocks, round_robin(1), seconds)
    wait = free_for_all(tape, NODES * blocks, NODES, seconds)
    rows = [_row(trace, "arm", SHARED, 1.0, shared, shared, wait)]

    def add(part: str, arm: str, at: float, found: Replayed, ttft: Any = None) -> None:
        rows.append(_row(trace, part, arm, at, found, shared, ttft))

    for name, route in GREEDY.items():
        add("arm", name, 1.0, replay(tape, NODES, blocks, route(), seconds))
    for router in ROUTERS:
        played = route_trace(trace.path, router, PROFILE, NODES, blocks)
        found = replay(tape, NODES, blocks, recorded(played.instances), seconds)
        add("router", router, 1.0, found, played.ttft)
    for share in _SHARES:
        partly = sometimes(share, GREEDY[_BEST_GREEDY](), NODES)
        add("followed", "share", share, replay(tape, NODES, blocks, partly, seconds))
    rows += _over_capacity(trace, tape, blocks, seconds)
    return rows


def _over_capacity(
    trace: Trace, tape: Tape, blocks: int, seconds: PrefillTime
) -> list[dict[str, Any]]:
    arms: dict[str, Callable[[], Route]] = {
        _BEST_GREEDY: GREEDY[_BEST_GREEDY],
        _BY_THE_LETTER: GREEDY[_BY_THE_LETTER],
        "round robin": lambda: round_robin(NODES),
    }
    rows = []
    for factor in _CAPACITIES:
        each = max(1, round(factor * blocks))
        shared = replay(tape, 1, NODES * each, round_robin(1), seconds)
        rows.append(_row(trace, "capacity", SHARED, factor, shared, shared))
        for name, route in arms.items():
            found = replay(tape, NODES, each, route(), seconds)
            rows.append(_row(trace, "capacity", name, factor, found, shared))
    return rows


def _row(
    trace: Trace,
    part: str,
    arm: str,
    at: float,
    found: Replayed,
    shared: Replayed,
    ttft: Any = None,
) -> dict[str, Any]:
    return {
        "trace": trace.name,
        "part": part,
        "arm": arm,
        "at": at,
        "hit_rate": found.hit_rate,
        "hits_shared_over_this": shared.hit_rate / found.hit_rate if found.hit_rate else math.inf,
        "gpu_seconds": found.gpu_seconds,
        "time_shared_over_this": shared.gpu_seconds / found.gpu_seconds,
        "busiest": found.busiest,
        "copies": found.copies,
        "ttft_mean": None if ttft is None else float(np.mean(ttft)),
        "ttft_p90": None if ttft is None else float(np.quantile(ttft, 0.9)),
    }


_NO_TIES = (
    "a greedy router keeps what belongs together together, so ten caches find what one does; it "
    "loses only where all prompts share their first block, which sends all to one node. The "
    "published ratio takes a router that sends a quarter to the longest match, others anywhere"
)


def figures(trace: Trace, rows: Sequence[dict[str, Any]]) -> list[Figure]:
    """Published beside ours, of one trace."""
    own = {(r["part"], r["arm"]): r for r in rows if r["part"] != "capacity"}
    greedy = own["arm", _BY_THE_LETTER]
    followed = [r for r in rows if r["part"] == "followed"]
    ratios = [r["hits_shared_over_this"] for r in followed][::-1]  # rises as fewer follow
    times = [r["time_shared_over_this"] for r in followed][::-1]
    where = float(np.interp(trace.hits, ratios, times))
    found = [
        Figure(
            f"hit ratio, shared / greedy by the letter, {trace.name}", SOURCE, trace.hits,
            greedy["hits_shared_over_this"],
            "exact replay; 10 % for what counts as a hit",
            0.9 * trace.hits, 1.1 * trace.hits, known_miss=_NO_TIES,
        ),
        Figure(
            f"prefill GPU time, shared / local, where hits are as published, {trace.name}", SOURCE,
            trace.time, where,
            "local: as many requests follow the longest match as make the published hit ratio; "
            "10 % for another GPU and engine",
            0.9 * trace.time, 1.1 * trace.time,
        ),
    ]  # fmt: skip
    for router in ("min_ttft", "llmd_precise"):
        found.append(
            Figure(
                f"hit ratio, shared / {router}, {trace.name}", SOURCE, trace.hits,
                own["router", router]["hits_shared_over_this"],
                "what is left of the gain with a router that goes by load and prefix",
            )
        )  # fmt: skip
    return found


def arms_table(trace: Trace, rows: Sequence[dict[str, Any]]) -> Table:
    """All arms and routers of one trace, at 3 M tokens a node."""
    body: list[tuple[str, ...]] = [
        ("published, local", "", f"{trace.hits:.2f}", f"{trace.time:.2f}", "", "", "")
    ]
    for row in rows:
        if row["part"] in ("arm", "router"):
            ttft = row["ttft_mean"]
            body.append(
                (
                    row["arm"],
                    f"{100 * row['hit_rate']:.1f}",
                    f"{row['hits_shared_over_this']:.2f}",
                    f"{row['time_shared_over_this']:.2f}",
                    f"{row['copies']:.2f}",
                    "" if row["arm"] == SHARED else f"{100 * row['busiest']:.0f}",
                    "" if ttft is None else f"{ttft:.2f} / {row['ttft_p90']:.2f}",
                )
            )
    return Table(
        f"{trace.name}: ten nodes of 3 M tokens",
        (
            "local arm", "hits, % of blocks", "hits, shared / this", "GPU time, shared / this",
            "times a block is computed", "busiest node, % of work", "TTFT mean / P90, s",
        ),
        body,
    )  # fmt: skip


def followed_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Hits by the share of requests that follow the longest match."""
    names = list(dict.fromkeys(r["trace"] for r in rows))
    cell = {(r["trace"], r["at"]): r for r in rows if r["part"] == "followed"}
    return Table(
        "If only some requests go to their longest match: hits, GPU time, shared / this",
        ("share of requests", *names),
        [
            (
                f"{100 * share:.0f} %",
                *(
                    f"{cell[n, share]['hits_shared_over_this']:.2f}, "
                    f"{cell[n, share]['time_shared_over_this']:.2f}"
                    for n in names
                ),
            )
            for share in _SHARES
        ],
    )


def run(folder: Path, effort: Effort) -> Outcome:
    """Both traces, in two minutes; those that are not at hand are left out."""
    rows: list[dict[str, Any]] = []
    found: list[Figure] = []
    tables: list[Table] = []
    left_out = []
    for trace in traces(effort.trace or TRACE):
        if not trace.path.exists():
            left_out.append(f"{trace.name}: no trace at {trace.path} (use --trace)")
            found += _absent(trace)
            continue
        own = replays(trace)
        rows += own
        found += figures(trace, own)
        tables.append(arms_table(trace, own))
    if rows:
        tables.append(followed_table(rows))

    def draw(path: Path) -> None:
        from prefixgym.experiments.paper.mooncake_plot import plot

        plot(rows, {t.name: t.hits for t in traces(effort.trace or TRACE)}, path)

    return Outcome(tables, found, draw, rows, left_out)


def _absent(trace: Trace) -> list[Figure]:
    absent = f"no trace at {trace.path}"
    return [
        Figure(f"{what}, {trace.name}", SOURCE, value, None, "not run", absent=absent)
        for what, value in (
            ("hit ratio, shared / greedy by the letter", trace.hits),
            ("prefill GPU time, shared / local, where hits are as published", trace.time),
        )
    ]


RESULT = Result(
    "mooncake-cache",
    "What does a cache that all nodes share find that ten local ones do not?",
    run,
)
