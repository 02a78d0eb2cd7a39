"""A trace of ten million requests, written and replayed in bounded memory.

Each step runs in a process of its own, whose peak memory the system tells.

    python -m prefixgym.experiments.bench.streaming            # ten minutes, 250 MB of disk
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.envs.workload.generators.chat import MultiTurnChat
from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.tape import NO_ROW, Tape

CHUNK = 50_000
RATE = 20.0
REPLAY = ("--instances", "8", "--ttft", "0.45", "--tpot", "0.04", "--json")
"""The cluster and the objectives of the scenario chat-8, without its stale knowledge."""


@dataclass(frozen=True)
class Step:
    """What a process did.

    Attributes:
        what: write or replay.
        requests: of the trace.
        seconds: wall time.
        cpu_seconds: of all its threads; what else runs on the machine counts less there.
        megabytes: peak memory, 10⁶ bytes.
    """

    what: str
    requests: int
    seconds: float
    cpu_seconds: float
    megabytes: float


def endless_chat() -> Iterator[Tape]:
    """Chats of the scenario chat-8 at 20 requests/s, in a closed loop, 50,000 requests a tape.

    Sessions are new in every tape, the system prompts are the same in all.
    """
    scenario = load_scenario("chat-8").with_num_requests(CHUNK)
    workload = scenario.build(RATE).workload
    assert isinstance(workload, MultiTurnChat)
    assert isinstance(workload.system_tokens, int)
    heads = workload.num_system_prompts * (workload.system_tokens // workload.block_size)
    workload = replace(workload, closed_loop=True)
    seed = time_passed = sessions = ids = 0
    while True:
        tape = workload.tape(seed)
        requests, runs = tape.requests, tape.runs
        roots = requests["parent"] == NO_ROW
        requests["arrival"][roots] += time_passed
        requests["session"] += sessions
        runs["start"][runs["start"] >= heads] += ids
        time_passed = int(requests["arrival"][roots].max())
        sessions = int(requests["session"].max()) + 1
        ids = int((runs["start"] + runs["count"]).max()) - heads
        seed += 1
        yield tape


def write(path: Path, requests: int) -> None:
    """Write a native trace of so many requests, rounded to whole tapes of `endless_chat`."""
    native.write(islice(endless_chat(), max(1, requests // CHUNK)), path)


def measure(path: Path, requests: int, routers: Sequence[str]) -> Iterator[Step]:
    """Write a trace to `path` and replay it with each of the routers."""
    me = [sys.executable, "-m", "prefixgym.experiments.bench.streaming"]
    yield _run("write", requests, [*me, "--write", str(path), "--requests", str(requests)])
    command = "from prefixgym.experiments.cli import main; main()"
    for router in routers:
        arguments = ["replay", str(path), "--router", router, *REPLAY]
        yield _run(f"replay, {router}", requests, [sys.executable, "-c", command, *arguments])


# A process's peak memory begins with that of the process which started it (Linux), so a small one
# stands in between. It prints status, CPU seconds and peak memory of the command.
_LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
"""


def _run(what: str, requests: int, command: Sequence[str]) -> Step:
    start = time.perf_counter()
    launched = subprocess.run(
        [sys.executable, "-c", _LAUNCHER, *command], check=True, stdout=subprocess.PIPE, text=True
    )
    status, cpu_seconds, peak = launched.stdout.split()
    if status != "0":
        raise ValueError(f"{what}: exit status {status}")
    unit = 1 if sys.platform == "darwin" else 1024  # bytes; Linux counts in KiB
    return Step(
        what,
        requests,
        time.perf_counter() - start,
        float(cpu_seconds),
        int(peak) * unit / 1e6,
    )


def main() -> None:
    """Print wall times and peak memory of short and long traces."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--routers", nargs="+", default=["round_robin"])
    parser.add_argument("--write", type=Path, metavar="FILE", help="only write such a trace")
    arguments = parser.parse_args()
    if arguments.write is not None:
        write(arguments.write, arguments.requests[0])
        return
    table = RichTable(box=None)
    for heading in ("", "requests", "s", "CPU s", "requests/CPU s", "peak MB"):
        table.add_column(heading, justify="right" if heading else "left")
    with tempfile.TemporaryDirectory() as folder:
        for requests in arguments.requests:
            for step in measure(Path(folder, "chat.parquet"), requests, arguments.routers):
                table.add_row(
                    step.what,
                    f"{requests:,}",
                    f"{step.seconds:,.0f}",
                    f"{step.cpu_seconds:,.0f}",
                    f"{requests / step.cpu_seconds:,.0f}",
                    f"{step.megabytes:,.0f}",
                )
    Console(width=None if Console().is_terminal else 120).print(table)


if __name__ == "__main__":
    main()
