"""A linear score over what a learner observes of an instance: the cheapest router that learns.

score(i) = Σ_column weight[column] · observation[i, column], with the normalised instance columns of
`prefixgym.envs.observation`; the available instance with the highest score is taken, the lowest
index among equals. Its weights are what evolution (`prefixgym evolve linear`) and Optuna
(`prefixgym tune linear_score`) search.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from prefixgym.agents.files import pinned
from prefixgym.agents.seen import Seen, seen_in
from prefixgym.baselines.router import Router, register
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.jit import kernel
from prefixgym.envs.observation import (
    INSTANCE_FIELDS,
    REQUEST_FIELDS,
    instance_constants,
    write_observation,
)
from prefixgym.envs.view.view import View

WEIGHED_COLUMNS = tuple(field.name for field in INSTANCE_FIELDS if field.name != "available")
"""The columns that have a weight: whether an instance is available is no matter of degree."""

_TENSOR = "weights"
_NUM_REQUEST, _NUM_INSTANCE = len(REQUEST_FIELDS), len(INSTANCE_FIELDS)


@register
@dataclass
class LinearScore(Router):
    """The available instance with the highest weighted sum of its observed columns.

    Weights are by the columns of the observation (docs/environment.md), which lie in [0, 1]. The
    defaults mean: the least predicted TTFT, with a leaning to cached prefixes and away from
    instances with many requests.

    Attributes:
        hit: weight of the cached share of the prompt.
        prefill: of the prefill of the rest.
        backlog: of the prefill booked ahead.
        ttft: of backlog + prefill.
        requests: of the requests in flight.
        prefill_requests: of those without a first token.
        context: of the prompts in flight.
        waiting: of the requests queued in the engine.
        running: of the requests in its batch.
        kv_usage: of the share of KV blocks in use.
        decoding: of the requests with a first token.
        queue: of the prefill that the engine has left.
        step: of the decode step with this request.
        pace: of the time of a token, by the last poll.
        prefilling: of the share of its time lately that was booked for prefill.
        tpot: of the time of a token lately.
        slowness: of the time to first tokens lately, as a multiple of what was booked.
        prefill_speed: of the time that its GPU takes to prefill 4,096 tokens.
        decode_speed: of the time of a decode step.
        weights: path of a file of weights, which replace all of the above.
    """

    name = "linear_score"
    source = "a linear score over the environment's observation"
    family = "learned"
    knows = ("index", "ledger", "telemetry")

    hit: float = 0.3
    prefill: float = 0.0
    backlog: float = 0.0
    ttft: float = -1.0
    requests: float = -0.3
    prefill_requests: float = 0.0
    context: float = 0.0
    waiting: float = 0.0
    running: float = 0.0
    kv_usage: float = 0.0
    decoding: float = 0.0
    queue: float = 0.0
    step: float = 0.0
    pace: float = 0.0
    prefilling: float = 0.0
    tpot: float = 0.0
    slowness: float = 0.0
    prefill_speed: float = 0.0
    decode_speed: float = 0.0
    weights: str = ""

    def __post_init__(self) -> None:
        if self.weights:
            for column, weight in load_weights(Path(self.weights)).items():
                setattr(self, column, weight)
        for column in WEIGHED_COLUMNS:
            self.require(column, bool(np.isfinite(getattr(self, column))), "a finite number")

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing is remembered but what the cluster is made of."""
        self._constants = instance_constants(cluster)
        self._row = weight_row({column: getattr(self, column) for column in WEIGHED_COLUMNS})[None]

    def route(self, view: View) -> NDArray[np.int64]:
        """Highest score, lowest index among equals."""
        return highest_score(view, self._constants, self._row)


@dataclass
class LinearWeightsRouter(Router):
    """A linear score with the weights of one file; `named_weights` makes a class for each file.

    Attributes:
        weights: first digits of the SHA-256 of the file. Given, the file must have it, so that a
            result says which weights it is of.
    """

    name = "learned"
    source = LinearScore.source
    family = "learned"
    knows = LinearScore.knows

    path: ClassVar[Path]

    weights: str = ""

    def __post_init__(self) -> None:
        self.weights = pinned(self, self.path, self.weights)
        self._score = linear_score(load_weights(self.path))

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """As for `LinearScore`."""
        self._score.reset(cluster, seeds)

    def route(self, view: View) -> NDArray[np.int64]:
        """As for `LinearScore`."""
        return self._score.route(view)


def weight_row(weights: Mapping[str, float]) -> NDArray[np.float64]:
    """Weights by column, one for each of the observation's instance columns, [F]; others are 0."""
    return np.array([weights.get(field.name, 0.0) for field in INSTANCE_FIELDS])


def highest_score(
    view: View, constants: NDArray[np.float64], weights: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The available instance with the highest score in each environment, [E].

    Args:
        view: of E environments.
        constants: `instance_constants` of the cluster.
        weights: [M, F]; row m is for environments m·E/M up to (m+1)·E/M.
    """
    chosen = np.empty(view.num_envs, np.int64)
    _highest_score(seen_in(view), constants, weights, chosen)
    return chosen


@kernel
def _highest_score(
    seen: Seen,
    constants: NDArray[np.float64],
    weights: NDArray[np.float64],
    chosen: NDArray[np.int64],
) -> None:
    num_envs, num_instances = seen.shown_instances.shape
    request = np.empty(_NUM_REQUEST, np.float32)
    instances = np.empty((num_instances, _NUM_INSTANCE), np.float32)
    for e in range(num_envs):
        write_observation(seen, e, constants, request, instances)  # type: ignore[arg-type]
        mine = weights[e * len(weights) // num_envs]
        chosen[e] = 0  # where none is available any will do
        best = -np.inf
        for i in range(num_instances):
            if instances[i, 0] == 0.0:  # column `available`
                continue
            score = 0.0
            for k in range(1, len(mine)):
                score += mine[k] * instances[i, k]
            if score > best:
                best = score
                chosen[e] = i


def save_weights(path: Path, weights: Mapping[str, float], card: Mapping[str, Any]) -> None:
    """Write weights by column, with a card that tells where they come from.

    Args:
        path: its folder must exist.
        weights: a number for each of `WEIGHED_COLUMNS`.
        card: what a reader must know: command, commit, seed, scenario, training time, table;
            anything that JSON can say.
    """
    row = np.array([weights[column] for column in WEIGHED_COLUMNS])
    metadata = {"columns": json.dumps(WEIGHED_COLUMNS), "card": json.dumps(dict(card))}
    save_file({_TENSOR: row}, path, metadata)


def load_weights(path: Path) -> dict[str, float]:
    """Weights by column.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds something else, or columns that the observation does not have.
    """
    try:
        with safe_open(path, "numpy") as file:
            metadata, tensors = file.metadata() or {}, set(file.keys())
            if _TENSOR not in tensors or "columns" not in metadata:
                raise ValueError(
                    f"{path}: found {', '.join(sorted(tensors)) or 'nothing'}, "
                    f"expected the tensor {_TENSOR!r} of a linear score"
                )
            row = file.get_tensor(_TENSOR)
    except SafetensorError as error:
        raise ValueError(f"{path}: is no safetensors file ({error})") from None
    columns = json.loads(metadata["columns"])
    if unknown := sorted(set(columns) - set(WEIGHED_COLUMNS)):
        raise ValueError(
            f"{path}: found weights of {', '.join(unknown)}, allowed: {', '.join(WEIGHED_COLUMNS)}"
        )
    return dict.fromkeys(WEIGHED_COLUMNS, 0.0) | dict(zip(columns, row.tolist(), strict=True))


def is_linear(path: Path) -> bool:
    """Whether a file holds the weights of a linear score; False too if it cannot be read."""
    try:
        with safe_open(path, "numpy") as file:
            return _TENSOR in file.keys()  # noqa: SIM118 - no mapping
    except (OSError, SafetensorError):
        return False


def card_of(path: Path) -> dict[str, Any]:
    """The card in a file of weights, empty if it has none."""
    with safe_open(path, "numpy") as file:
        found: dict[str, Any] = json.loads((file.metadata() or {}).get("card", "{}"))
    return found


def linear_score(weights: Mapping[str, float]) -> LinearScore:
    """A router with these weights by column, the defaults for others."""
    values: dict[str, Any] = dict(weights)
    return LinearScore(**values)


def weights_of(router: LinearScore) -> dict[str, float]:
    """The weights of a router by column."""
    values = dataclasses.asdict(router)
    return {column: float(values[column]) for column in WEIGHED_COLUMNS}
