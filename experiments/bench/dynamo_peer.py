"""Replay a trace with NVIDIA Dynamo's offline simulator, an independent peer of ours.

Dynamo stays in its own virtual environment: `install` makes one from PyPI, `run_peer` starts its
interpreter, replays there and brings the results back in seconds.

Timing of an engine step in Dynamo 1.6.1, measured on hand-made traces (milliseconds)::

    t = [B > 0] (4.209989e-7 n² + 1.518344e-2 n + 16.50142)
      + [D > 0] max(1, 5.74 + 54.01 u − 25.74 u²)

    B  requests that prefill in the step (whole prompts and chunks alike); D  requests that decode
    n  B·(⌊Σ end / B⌋ − ⌊Σ start / B⌋) over the prefilled token ranges: new tokens, cached are free
    u  min(1, Σ context of the decoding requests / KV capacity), in tokens; the context counts the
       prompt and every generated token, and a block shared by two requests counts twice

The step that finishes a prompt emits its first token, so TTFT holds no decode term of its own.
The other built-in timing charges one constant for each bracket.
"""

import argparse
import dataclasses
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from venv import EnvBuilder

PACKAGE = "ai-dynamo-runtime"
VERSION = "1.6.1"
"""The release that the module's docstring was measured on."""

PYTHON_VARIABLE = "PREFIXGYM_DYNAMO_PYTHON"
"""Environment variable that names the interpreter of the environment that holds `PACKAGE`."""

TRACE_BLOCK_SIZE = 512
"""Prompt tokens that one of a Mooncake trace's `hash_ids` stands for."""

_DRIVER = """
import json, sys, time
from importlib.metadata import version
from dynamo._core import run_mocker_trace_replay

job = json.load(sys.stdin)
start = time.perf_counter()
replay = run_mocker_trace_replay([job["trace"]], **job["arguments"])
call_seconds = time.perf_counter() - start
report = {
    "version": version(job["package"]),
    "call_seconds": call_seconds,
    "summary": replay.summary,
    "per_request": replay.per_request,
}
with open(job["report"], "w") as file:
    json.dump(report, file)
"""


@dataclass(frozen=True)
class FixedTiming:
    """Constant step costs.

    Attributes:
        prefill: seconds a step with at least one prefilling request pays.
        decode: seconds a step with at least one decoding request pays, on top.
    """

    prefill: float
    decode: float


@dataclass(frozen=True, kw_only=True)
class PeerEngine:
    """What all workers of a simulated cluster have in common.

    Attributes:
        num_gpu_blocks: KV blocks of an engine.
        block_size: tokens a KV block; need not be the trace's `TRACE_BLOCK_SIZE`.
        max_num_batched_tokens: prefilled plus decoded tokens of a step.
        max_num_seqs: running requests of an engine.
        max_model_len: tokens; prompts this long are rejected, outputs are cut off there.
        timing: None for Dynamo's default polynomial.
    """

    num_gpu_blocks: int = 5859
    block_size: int = 512
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    max_model_len: int = 200_000
    timing: FixedTiming | None = None

    def engine_arguments(self) -> dict[str, Any]:
        """Dynamo's arguments for one worker."""
        engine: dict[str, Any] = {
            "num_gpu_blocks": self.num_gpu_blocks,
            "block_size": self.block_size,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "max_model_len": self.max_model_len,
            "timing_model": {"type": "polynomial"},
        }
        if self.timing is not None:
            engine["timing_model"] = {
                "type": "fixed",
                "prefill_ms": self.timing.prefill * 1e3,
                "decode_ms": self.timing.decode * 1e3,
            }
        return engine


@dataclass(frozen=True)
class PeerCluster(PeerEngine):
    """The simulated cluster; the defaults are the comparison of DESIGN §12.

    Attributes:
        instances: engines, all alike and each with prefill and decode.
        router: Dynamo's round robin, which walks the requests in arrival order, or its KV router,
            which breaks ties at random and cannot be seeded.
    """

    instances: int = 10
    router: Literal["round_robin", "kv_router"] = "round_robin"


@dataclass(frozen=True)
class PeerRequest:
    """What became of one completed request; times are seconds since the first arrival."""

    arrival: float
    instance: int
    prompt_tokens: int
    output_tokens: int
    reused_tokens: int
    admitted: float
    first_token: float
    finished: float


@dataclass(frozen=True)
class PeerResult:
    """What Dynamo reports of one replay; durations are seconds.

    Attributes:
        version: of `PACKAGE`.
        requests: rows of the trace.
        completed: those that ran to their end; the others were rejected.
        wall_seconds: Dynamo's own clock around its event loop.
        call_seconds: the whole call, reading the trace included, imports excluded.
        prefix_reuse: cached prompt tokens / prompt tokens, over completed requests.
        makespan: from the first arrival to the last token.
        tpot_mean: mean over requests of (last token − first token) / (output tokens − 1); requests
            with one output token have none.
        itl_mean: mean over all gaps between tokens, so that long outputs weigh more.
        outcomes: by arrival, then instance; empty unless they were asked for.

    Percentiles are the order statistic ⌊(n − 1) q + ½⌋.
    """

    version: str
    requests: int
    completed: int
    prompt_tokens: int
    output_tokens: int
    wall_seconds: float
    call_seconds: float
    prefix_reuse: float
    makespan: float
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tpot_mean: float
    tpot_p50: float
    tpot_p90: float
    tpot_p99: float
    itl_mean: float
    e2e_mean: float
    e2e_p50: float
    e2e_p90: float
    e2e_p99: float
    outcomes: tuple[PeerRequest, ...] = ()


def install(venv: Path) -> Path:
    """Create a virtual environment at `venv` with Dynamo from PyPI (a 75 MB wheel, Linux only).

    The wheel's own dependencies are left out: the replay needs none of them.

    Returns:
        The environment's interpreter, for `run_peer`.
    """
    EnvBuilder(with_pip=True).create(venv)
    python = venv / "bin" / "python"
    requirement = f"{PACKAGE}=={VERSION}"
    _run(
        [str(python), "-m", "pip", "install", "--quiet", "--no-deps", requirement],
        what=f"could not install {requirement} into {venv}",
    )
    return python


def run_peer(
    trace: Path,
    cluster: PeerCluster | None = None,
    *,
    python: Path | None = None,
    per_request: bool = False,
) -> PeerResult:
    """Replay a trace in Mooncake's format with Dynamo.

    Args:
        trace: JSON lines with `timestamp` (ms), `input_length`, `output_length` and `hash_ids` (one
            per `TRACE_BLOCK_SIZE` prompt tokens); `.gz` is unpacked first.
        cluster: `PeerCluster()` when None.
        python: interpreter whose environment has Dynamo; `$PREFIXGYM_DYNAMO_PYTHON` when None.
        per_request: fill `PeerResult.outcomes`, which slows the replay down.

    Raises:
        ValueError: no interpreter was named.
        RuntimeError: the replay failed; the message ends with Dynamo's own.
    """
    cluster = cluster or PeerCluster()
    arguments = {
        "extra_engine_args": {"engine": cluster.engine_arguments()},
        "num_workers": cluster.instances,
        "router_mode": cluster.router,
        "capture_per_request": per_request,
    }
    return _result(run_replay(trace, arguments, python=python, what="Dynamo's replay"))


def run_replay(
    trace: Path, arguments: Mapping[str, Any], *, python: Path | None, what: str
) -> dict[str, Any]:
    """What Dynamo's `run_mocker_trace_replay` reports with these arguments, as JSON.

    Args:
        trace, python: as for `run_peer`.
        arguments: by name, besides those that all replays have.
        what: stands in the message if it fails.

    Raises:
        ValueError, RuntimeError: as for `run_peer`.
    """
    interpreter = python or os.environ.get(PYTHON_VARIABLE)
    if not interpreter:
        raise ValueError(
            f"no Python with {PACKAGE}: pass python=…, or set {PYTHON_VARIABLE} to what "
            "dynamo_peer.install(venv) returns"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, report = trace, Path(folder, "report.json")
        if trace.suffix == ".gz":
            source = Path(folder, "trace.jsonl")
            with gzip.open(trace) as packed, source.open("wb") as plain:
                shutil.copyfileobj(packed, plain)
        job = {
            "package": PACKAGE,
            "trace": str(source),
            "report": str(report),
            "arguments": {
                **arguments,
                "trace_block_size": TRACE_BLOCK_SIZE,
                "capture_planner_details": False,
            },
        }
        _run(
            [str(interpreter), "-I", "-c", _DRIVER],
            what=f"{what} of {trace} failed",
            text=json.dumps(job),
        )
        found: dict[str, Any] = json.loads(report.read_text())
        return found


def _result(report: Mapping[str, Any]) -> PeerResult:
    summary = report["summary"]
    percentiles = {
        f"{ours}_{name}": summary[f"{statistic}_{theirs}_ms"] / 1e3
        for ours, theirs in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2e_latency"))
        for name, statistic in (("mean", "mean"), ("p50", "median"), ("p90", "p90"), ("p99", "p99"))
    }
    return PeerResult(
        version=report["version"],
        requests=summary["num_requests"],
        completed=summary["completed_requests"],
        prompt_tokens=summary["total_input_tokens"],
        output_tokens=summary["total_output_tokens"],
        wall_seconds=summary["wall_time_ms"] / 1e3,
        call_seconds=report["call_seconds"],
        prefix_reuse=summary["prefix_cache_reused_ratio"],
        makespan=summary["duration_ms"] / 1e3,
        itl_mean=summary["mean_itl_ms"] / 1e3,
        outcomes=_outcomes(report["per_request"] or ()),
        **percentiles,
    )


def _outcomes(records: Any) -> tuple[PeerRequest, ...]:
    outcomes = [
        PeerRequest(
            arrival=record["arrival_time_ms"] / 1e3,
            instance=record["decode_worker_idx"],
            prompt_tokens=record["input_length"],
            output_tokens=record["output_length"],
            reused_tokens=record["reused_input_tokens"],
            admitted=record["first_admit_ms"] / 1e3,
            first_token=record["first_token_ms"] / 1e3,
            finished=record["last_token_ms"] / 1e3,
        )
        for record in records
        if record["terminal_status"] == "completed" and record["first_token_ms"] is not None
    ]
    return tuple(sorted(outcomes, key=dataclasses.astuple))


def _run(command: list[str], *, what: str, text: str = "") -> None:
    """Run a command that gets `text` on stdin; RuntimeError names `what` failed, and how."""
    environment = {**os.environ, "DYN_LOG": "error"}
    try:
        subprocess.run(
            command, input=text, env=environment, check=True, capture_output=True, text=True
        )
    except FileNotFoundError:
        raise RuntimeError(f"{what}: there is no {command[0]}") from None
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"exit status {error.returncode}"
        raise RuntimeError(f"{what}: {reason}") from None


def main() -> None:
    """Print the result of one replay as JSON; with `--install`, make Dynamo's environment first."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("trace", type=Path, help="Mooncake JSON lines, .gz or plain")
    parser.add_argument("--install", type=Path, metavar="VENV", help="create this environment")
    parser.add_argument("--python", type=Path, help=f"interpreter (default: ${PYTHON_VARIABLE})")
    parser.add_argument("--instances", type=int, default=PeerCluster.instances)
    parser.add_argument(
        "--fixed", type=float, nargs=2, metavar=("PREFILL", "DECODE"), help="seconds a step"
    )
    options = parser.parse_args()
    try:
        python = install(options.install) if options.install else options.python
        timing = FixedTiming(*options.fixed) if options.fixed else None
        cluster = PeerCluster(instances=options.instances, timing=timing)
        result = run_peer(options.trace, cluster, python=python)
    except (OSError, RuntimeError, ValueError) as error:
        sys.exit(f"error: {error}")
    print(json.dumps(dataclasses.asdict(result), indent=2))


if __name__ == "__main__":
    main()
