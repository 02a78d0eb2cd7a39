"""Replay a trace with NVIDIA Dynamo's offline simulator in disaggregated mode.

`run_mocker_trace_replay` disaggregates if it is given `prefill_engine_args` and
`decode_engine_args`, whose `worker_type` must be "prefill" and "decode", with
`num_prefill_workers` and `num_decode_workers`. Both pools follow one `router_mode`.

What Dynamo 1.6.1 then does, measured on hand-made traces:

- Prefill workers are given requests in order of arrival, decode workers in order of the *ends of
  prefill*, both in turns under `round_robin`.
- A prefill worker only prefills. At the end it holds its blocks until the decode worker has
  reserved its own for the prompt, which that does between two steps (as a rule for one request at a
  time), and the KV has been moved, in tokens · `kv_transfer_bytes_per_token` /
  `kv_transfer_bandwidth` (of 1e9 bytes/s; by default nothing is charged). Both are the prefill
  worker's. Transfers share nothing: any number of them take as long as one.
- `kv_transfer_timing_mode` "full_prompt" (the default) moves the whole prompt,
  "destination_missing" the whole blocks that the decode worker has not cached.
- The decode worker computes *all* tokens of the answer. So TTFT is the end of the first step after
  the admission there, also for answers of one token; TPOT is (last - first) / (tokens - 1).
- Steps take what they do in an aggregated replay (`dynamo_peer`). In its first decode step a
  request's context is its prompt alone, without the token that its prefill has sampled.
- A request that the decode worker preempts is computed anew there in no time: neither it nor what
  decodes beside it waits for that.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from prefixgym.experiments.bench.dynamo_peer import PeerEngine, run_replay


@dataclass(frozen=True)
class SplitPeer(PeerEngine):
    """A cluster whose workers prefill or decode, and route in turns.

    Attributes:
        prefillers, decoders: workers of either pool.
        bandwidth: bytes/s of a transfer of KV; None charges nothing for it.
        kv_bytes_per_token: what is moved for a token of the prompt.
    """

    prefillers: int = 2
    decoders: int = 2
    bandwidth: float | None = None
    kv_bytes_per_token: int = 131_072

    def engine(self, role: Literal["prefill", "decode"]) -> dict[str, Any]:
        """Dynamo's arguments for one worker of a role."""
        engine = {"worker_type": role, **self.engine_arguments()}
        if self.bandwidth is not None:
            engine["kv_transfer_bandwidth"] = self.bandwidth / 1e9
            engine["kv_transfer_bytes_per_token"] = self.kv_bytes_per_token
            engine["kv_transfer_timing_mode"] = "destination_missing"
        return {"engine": engine}


@dataclass(frozen=True, order=True)
class SplitRequest:
    """What became of one completed request; times are seconds since the first arrival.

    Attributes:
        prefilled: the end of its prefill, from which on its blocks are held.
        activated: its KV has arrived where it is decoded.
        admitted: it joins the batch there, and is decoded from then on.
        first_token: the end of the step that began then.
    """

    arrival: float
    prefiller: int
    decoder: int
    prompt_tokens: int
    output_tokens: int
    reused_tokens: int
    prefilled: float
    activated: float
    admitted: float
    first_token: float
    finished: float


def run_split_peer(
    trace: Path, cluster: SplitPeer, *, python: Path | None = None
) -> tuple[SplitRequest, ...]:
    """Replay a trace in Mooncake's format with Dynamo.

    Args:
        trace, python: as for `run_peer`.
        cluster: how many workers, and what they are like.

    Returns:
        The completed requests in order of arrival.

    Raises:
        ValueError: no interpreter was named.
        RuntimeError: the replay failed; the message ends with Dynamo's own.
    """
    arguments = {
        "prefill_engine_args": cluster.engine("prefill"),
        "decode_engine_args": cluster.engine("decode"),
        "num_prefill_workers": cluster.prefillers,
        "num_decode_workers": cluster.decoders,
        "router_mode": "round_robin",
        "capture_per_request": True,
    }
    what = "Dynamo's disaggregated replay"
    records = run_replay(trace, arguments, python=python, what=what)["per_request"]
    return tuple(sorted(_request(r) for r in records if r["terminal_status"] == "completed"))


def _request(record: dict[str, Any]) -> SplitRequest:
    return SplitRequest(
        arrival=record["arrival_time_ms"] / 1e3,
        prefiller=record["prefill_worker_idx"],
        decoder=record["decode_worker_idx"],
        prompt_tokens=record["input_length"],
        output_tokens=record["output_length"],
        reused_tokens=record["reused_input_tokens"],
        prefilled=record["source_held_ms"] / 1e3,
        activated=record["destination_activated_ms"] / 1e3,
        admitted=record["decode_admit_ms"] / 1e3,
        first_token=record["first_token_ms"] / 1e3,
        finished=record["last_token_ms"] / 1e3,
    )
