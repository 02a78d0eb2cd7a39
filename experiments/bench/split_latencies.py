"""What a request of disaggregated serving waits for, at Dynamo and here."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefixgym.experiments.bench.dynamo_split import SplitRequest


def dynamo_latencies(requests: Sequence[SplitRequest]) -> pl.DataFrame:
    """Columns ttft and tpot (s), as Dynamo defines them; no tpot for answers of one token."""
    return pl.DataFrame(
        [
            (r.first_token - r.arrival, (r.finished - r.first_token) / (r.output_tokens - 1))
            if r.output_tokens > 1
            else (r.first_token - r.arrival, None)
            for r in requests
        ],
        schema={"ttft": pl.Float64, "tpot": pl.Float64},
        orient="row",
    )


def our_latencies(outcomes: NDArray[np.void]) -> pl.DataFrame:
    """Columns ttft and tpot (s), as we define them; no tpot for answers of one token."""
    frame = pl.DataFrame({name: outcomes[name] for name in ("ttft", "tpot", "output_tokens")})
    return frame.select("ttft", tpot=pl.when(pl.col("output_tokens") > 1).then("tpot"))


def like_with_like(requests: Sequence[SplitRequest], outcomes: NDArray[np.void]) -> pl.DataFrame:
    """Both fates of every request.

    Args:
        requests: Dynamo's, in order of arrival.
        outcomes: of `replay` with `pairs_of(requests)` and one token more.

    Returns:
        dynamo_reused and reused (tokens); dynamo_start and start: from the arrival until decoding
        begins, dynamo_step and step: from then on for each token of Dynamo's answer (s).

    Raises:
        ValueError: not the same requests.
    """
    if len(requests) != len(outcomes) or [r.arrival for r in requests] != list(outcomes["arrival"]):
        raise ValueError(
            f"found {len(requests)} requests completed by Dynamo and {len(outcomes)} by us, must "
            "be the same at the same times"
        )
    return pl.DataFrame(
        {
            "dynamo_reused": [r.reused_tokens for r in requests],
            "reused": outcomes["hit_tokens"],
            "dynamo_start": [r.admitted - r.arrival for r in requests],
            "start": outcomes["ttft"],
            "dynamo_step": [(r.finished - r.admitted) / r.output_tokens for r in requests],
            "step": outcomes["tpot"],
        }
    )
