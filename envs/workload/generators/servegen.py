"""ServeGen's client pools: what the clients of four production services did in up to 14 days.

The files in `traces/servegen` (JSON lines, one for each client, gzip or not): `trace` has rows
[window's start in s, rate, cv, "Gamma" or "Weibull", shape, scale], windows without requests left
out; `lengths` has for each 6 hours the mean and 23 quantiles of `input_tokens` and `output_tokens`.
"""

import functools
import gzip
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.workload.fields import check_number, check_probability, check_whole
from prefixgym.envs.workload.generators.client_pool import LEVELS, ClientPool
from prefixgym.envs.workload.tape import Tape

_WINDOW = 600
_LENGTH_WINDOWS = 36
_FIELDS = ("input_tokens", "output_tokens")


@functools.lru_cache(maxsize=4)
def _read(path: str, modified: int, size: int) -> ClientPool:
    opener: Any = gzip.open if path.endswith(".gz") else open
    clients = []
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                clients.append((_windows(row["trace"]), _lengths(row["lengths"])))
            except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
                found = f"{type(error).__name__}: {error}"
                raise ValueError(f"{path}:{number}: not a client of ServeGen ({found})") from None
    num_windows = max((int(trace[:, 0].max()) + 1 for trace, _ in clients if len(trace)), default=0)
    if num_windows == 0:
        raise ValueError(f"{path}: found no client with requests")
    shape = (len(clients), num_windows)
    rates, shapes, weibull = np.zeros(shape), np.ones(shape), np.zeros(shape, np.bool_)
    for c, (trace, _) in enumerate(clients):
        window = trace[:, 0].astype(np.int64)
        rates[c, window], shapes[c, window], weibull[c, window] = trace[:, 1:].T
    num_periods = -(-num_windows // _LENGTH_WINDOWS)
    tables = np.full((2, len(clients), num_periods, len(LEVELS)), np.nan)
    for c, (_, lengths) in enumerate(clients):
        for period, quantiles in lengths.items():
            if period < num_periods:
                tables[:, c, period] = quantiles
    weights = rates.sum(axis=1)
    prompt, output = (_filled(table, weights, path) for table in tables)
    return ClientPool(float(_WINDOW), rates, shapes, weibull, _LENGTH_WINDOWS, prompt, output)


def _windows(rows: list[Any]) -> NDArray[np.float64]:
    """Number of the window, rate, shape and 1 for Weibull, [W, 4]."""
    windows = np.empty((len(rows), 4))
    for k, (start, rate, _, family, shape, _) in enumerate(rows):
        window, rest = divmod(start, _WINDOW)
        if rest != 0 or not 0 <= window < 10**6:
            raise ValueError(f"window at {start} s, must be a multiple of {_WINDOW}")
        check_number("rate", rate, 0)
        check_number("shape", shape, 0, above=True)
        if family not in ("Gamma", "Weibull"):
            raise ValueError(f"family {family!r}, must be Gamma or Weibull")
        windows[k] = window, rate, shape, family == "Weibull"
    return windows


def _lengths(periods: dict[str, Any] | None) -> dict[int, NDArray[np.float64]]:
    """Quantiles of both fields, [2, 23], by the number of the 6 hours."""
    found = {}
    for start, fields in (periods or {}).items():
        if fields:
            quantiles = np.array([fields[name][1:] for name in _FIELDS], np.float64)
            if quantiles.shape != (2, len(LEVELS)) or not np.all(np.diff(quantiles) >= 0):
                raise ValueError(f"lengths at {start} s, must be {len(LEVELS)} ascending quantiles")
            found[int(start) // (_WINDOW * _LENGTH_WINDOWS)] = quantiles
    return found


def _filled(
    table: NDArray[np.float64], weights: NDArray[np.float64], path: str
) -> NDArray[np.float64]:
    """`table` [C, P, 23] without gaps.

    A client has the lengths of its last known period, or else its next one. One of which no lengths
    are known has the others' mean quantiles, weighted by their requests.
    """
    known = ~np.isnan(table[:, :, 0])
    place = np.arange(table.shape[1])
    last = np.maximum.accumulate(np.where(known, place, -1), axis=1)
    source = np.where(last >= 0, last, np.argmax(known, axis=1)[:, None])
    filled = np.take_along_axis(table, source[:, :, None], axis=1)
    some = known.any(axis=1)
    if not np.any(weights[some] > 0):
        raise ValueError(f"{path}: found no client with requests and lengths")
    filled[~some] = np.average(filled[some], axis=0, weights=weights[some])
    return filled


def read_servegen(path: str | Path) -> ClientPool:
    """The pool in a file; read once, as long as the file does not change.

    Raises:
        ValueError: a line that is not a client, named by its number, or none with requests.
        OSError: the file cannot be opened.
    """
    status = os.stat(path)
    return _read(str(path), status.st_mtime_ns, status.st_size)


@dataclass(frozen=True)
class ServeGenClients:
    """Requests of a production service's clients, each client a session; see `ClientPool.tape`.

    Attributes:
        num_requests: rows of a tape.
        rate: requests/s, an episode's mean.
        block_size: tokens in a block.
        path: the pool's file.
        prefix_share: a client's common prefix, in parts of its short (1 % quantile) prompts. This
            is an assumption: ServeGen tells no prefixes.
    """

    num_requests: int
    rate: float
    block_size: int
    path: str
    prefix_share: float = 0.8

    def __post_init__(self) -> None:
        check_whole("num_requests", self.num_requests, 1, 2**31 - 1)
        check_number("rate", self.rate, 0, above=True)
        check_whole("block_size", self.block_size, 1, 2**31 - 1)
        check_probability("prefix_share", self.prefix_share)
        if not isinstance(self.path, str):
            raise ValueError(f"path: found {self.path!r}, must be a string")
        read_servegen(self.path)

    @property
    def num_sessions(self) -> int:
        """Every client is a session."""
        return read_servegen(self.path).num_clients

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest prompt."""
        return read_servegen(self.path).max_blocks(self.block_size)

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names."""
        pool = read_servegen(self.path)
        return pool.tape(seed, self.num_requests, self.rate, self.block_size, self.prefix_share)
