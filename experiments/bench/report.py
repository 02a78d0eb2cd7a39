"""`prefixgym bench`: all benchmarks, as a table and as a page under `docs/`."""

from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path

from prefixgym.experiments.bench import speed
from prefixgym.experiments.bench.generators import generation
from prefixgym.experiments.bench.ppo import ppo_through_adapter
from prefixgym.experiments.bench.speed import Measurement


def measure(
    trace: Path | None, peer_python: Path | None, say: Callable[[str], None]
) -> list[Measurement]:
    """All speed benchmarks in one run, about three minutes.

    Args:
        trace: a Mooncake file; None leaves the trace replay out.
        peer_python: interpreter with ai-dynamo-runtime; None leaves the peer out.
        say: told what is measured next.
    """
    found: list[Measurement] = []
    if trace is not None:
        say("trace replay")
        found += speed.trace_replay(trace, peer_python)
    say("vector environment")
    for num_envs, threads in ((256, 2), (256, 1), (1024, 2), (16, 1)):
        found += speed.vector_steps(num_envs, threads)
    say("single environment")
    found += speed.single_step()
    say("generators")
    found += generation()
    say("PPO through the Stable-Baselines3 adapter")
    found += ppo_through_adapter()
    return found


def markdown(found: list[Measurement]) -> str:
    """The page `docs/benchmarks.md`."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numba", "numpy", "gymnasium"))
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; best of several repeats each, all in one run, peers included.",
        "",
        f"{date.today().isoformat()}, {speed.machine()}, {packages}.",
        "",
        "| what | measured | wanted | met |",
        "|---|--:|--:|---|",
    ]
    for item in found:
        met = {True: "yes", False: "no", None: ""}[item.met]
        lines.append(f"| {item.what} | {shown(item)} | {item.wanted} | {met} |")
    return "\n".join(lines) + "\n"


def shown(item: Measurement) -> str:
    """The figure with its unit, to three significant digits or whole."""
    value = f"{item.value:,.0f}" if item.value >= 100 else f"{item.value:.3g}"
    return f"{value} {item.unit}"
