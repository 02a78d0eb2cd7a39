"""What a learner observes: named, bounded numbers computed from the view.

`OBSERVATION_FIELDS` is the one description of the observation. The documentation is generated from
it, and the kernel writes columns in its order. Every column lies in [0, 1]. Unbounded quantities x
are squashed to x / (x + scale), which is 1/2 at `scale` and keeps resolution at small values; times
are scaled by the request's own objective, so that 1/2 means "as long as the objective".
"""

from dataclasses import dataclass

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from prefixgym.envs.clock import TICKS_PER_SECOND
from prefixgym.envs.cluster.spec import ClusterSpec
from prefixgym.envs.cluster.step_time import StepCost, prefill_ticks, step_ticks
from prefixgym.envs.jit import kernel
from prefixgym.envs.view.arrays import ViewArrays
from prefixgym.envs.view.experience import MEMORY


@dataclass(frozen=True)
class Field:
    """One column.

    Attributes:
        part: `request` or `instances`, the key of the observation that it belongs to.
        name: what it is.
        unit: unit of the raw quantity.
        meaning: the raw quantity, and where it comes from.
        normalisation: how the raw quantity x becomes a number in [0, 1].
    """

    part: str
    name: str
    unit: str
    meaning: str
    normalisation: str


OBSERVATION_FIELDS = (
    Field("request", "prompt_tokens", "tokens", "length of the prompt", "x / (x + 4096)"),
    Field("request", "gap", "s", "time since the previous decision", "x / (x + 0.1)"),
    Field("request", "slo_ttft", "s", "objective for the first token", "x / (x + 1)"),
    Field("request", "slo_tpot", "s/token", "objective per output token", "x / (x + 0.1)"),
    Field(
        "request",
        "best_hit",
        "tokens",
        "longest cached prefix on any available instance",
        "x / prompt",
    ),
    Field("instances", "available", "-", "may be chosen", "0 or 1"),
    Field("instances", "hit", "tokens", "cached prefix (index)", "x / prompt"),
    Field("instances", "prefill", "s", "prefill of the rest alone", "x / (x + slo_ttft)"),
    Field("instances", "backlog", "s", "prefill booked ahead (ledger)", "x / (x + slo_ttft)"),
    Field("instances", "ttft", "s", "backlog + prefill", "x / (x + slo_ttft)"),
    Field("instances", "requests", "requests", "in flight (ledger)", "x / (x + 16)"),
    Field(
        "instances", "prefill_requests", "requests", "without first token (ledger)", "x / (x + 4)"
    ),
    Field("instances", "context", "tokens", "prompts in flight (ledger)", "x / (x + KV capacity)"),
    Field("instances", "waiting", "requests", "queued in the engine (telemetry)", "x / (x + 4)"),
    Field("instances", "running", "requests", "in the batch (telemetry)", "x / (x + 16)"),
    Field("instances", "kv_usage", "-", "share of KV blocks in use (telemetry)", "x"),
    Field("instances", "decoding", "requests", "with a first token (ledger)", "x / (x + 16)"),
    Field(
        "instances",
        "queue",
        "s",
        "prefill left of those waiting and running (telemetry, profile)",
        "x / (x + slo_ttft)",
    ),
    Field(
        "instances",
        "step",
        "s",
        "decode step with this request and those decoding (ledger, profile)",
        "x / (x + slo_tpot)",
    ),
    Field(
        "instances",
        "pace",
        "s",
        "running / output tokens per second (telemetry)",
        "x / (x + slo_tpot)",
    ),
    Field(
        "instances",
        "prefilling",
        "-",
        "share of its time booked for prefill lately (experience)",
        "x / (x + 0.5)",
    ),
    Field(
        "instances",
        "tpot",
        "s",
        "time per output token lately (experience)",
        "x / (x + slo_tpot)",
    ),
    Field(
        "instances",
        "slowness",
        "-",
        "time to first token / booked time lately (experience)",
        "x / (x + 1)",
    ),
    Field("instances", "prefill_speed", "s", "prefill of 4,096 tokens (profile)", "x / (x + 0.1)"),
    Field(
        "instances", "decode_speed", "s", "step of 16 x 2,048 tokens (profile)", "x / (x + 0.01)"
    ),
)
"""Every column of the observation, in order."""

REQUEST_FIELDS = tuple(f for f in OBSERVATION_FIELDS if f.part == "request")
INSTANCE_FIELDS = tuple(f for f in OBSERVATION_FIELDS if f.part == "instances")


NUM_CONSTANTS = 6
"""What `instance_constants` knows of an instance."""


def observation_table() -> str:
    """The table of columns in Markdown, for `docs/environment.md`."""
    lines = ["| part | column | unit | x | normalised |", "|---|---|---|---|---|"]
    lines += [
        f"| {f.part} | `{f.name}` | {f.unit} | {f.meaning} | {f.normalisation} |"
        for f in OBSERVATION_FIELDS
    ]
    return "\n".join(lines)


def observation_space(num_instances: int) -> gym.spaces.Dict:
    """`request`: float32 [R]; `instances`: float32 [N·F]; all in [0, 1].

    The table of instances is laid out row by row, `instances.reshape(N, F)`: Stable-Baselines3
    warns of observations that are neither flat nor images.
    """
    columns = len(INSTANCE_FIELDS)
    return gym.spaces.Dict(
        {
            "request": gym.spaces.Box(0.0, 1.0, (len(REQUEST_FIELDS),), np.float32),
            "instances": gym.spaces.Box(0.0, 1.0, (num_instances * columns,), np.float32),
        }
    )


PREFILL_COLUMNS = (
    "available",
    "hit",
    "prefill",
    "backlog",
    "ttft",
    "prefill_requests",
    "waiting",
    "running",
    "kv_usage",
    "queue",
    "prefilling",
    "slowness",
    "prefill_speed",
)
"""Instance columns that tell how soon an instance would prefill the request."""

DECODE_COLUMNS = (
    "available",
    "hit",
    "requests",
    "context",
    "waiting",
    "running",
    "kv_usage",
    "decoding",
    "step",
    "pace",
    "tpot",
    "decode_speed",
)
"""Those that tell how fast it would decode it, and whether there is room for its KV."""


def halves_space(num_prefill: int, num_decode: int) -> gym.spaces.Dict:
    """`request`: float32 [R]; `prefill`: [P·F_p]; `decode`: [D·F_d]; all in [0, 1].

    Where instances have roles: a table of those that may prefill, and one of those that may decode.
    """
    sizes = {
        "request": len(REQUEST_FIELDS),
        "prefill": num_prefill * len(PREFILL_COLUMNS),
        "decode": num_decode * len(DECODE_COLUMNS),
    }
    return gym.spaces.Dict(
        {name: gym.spaces.Box(0.0, 1.0, (size,), np.float32) for name, size in sizes.items()}
    )


@kernel
def _write_constants(
    cost: NDArray[np.void], capacity: NDArray[np.int64], out: NDArray[np.float64]
) -> None:
    for i in range(cost.size):
        out[i, 0] = capacity[i]
        out[i, 1] = prefill_ticks(cost[i], 4096, 0, 8192) / TICKS_PER_SECOND
        out[i, 2] = _decode_step(cost[i], 16, 16 * 2048)
        # A decode step of B sequences with K tokens, as a + b·B + c·K.
        out[i, 4] = (_decode_step(cost[i], 33, 0) - _decode_step(cost[i], 1, 0)) / 32
        out[i, 5] = (out[i, 2] - _decode_step(cost[i], 16, 0)) / (16 * 2048)
        out[i, 3] = _decode_step(cost[i], 1, 0) - out[i, 4]


@kernel
def _decode_step(cost: StepCost, sequences: int, context: int) -> float:
    """Seconds."""
    return step_ticks(cost, 0, 0.0, sequences, context, sequences) / TICKS_PER_SECOND


def instance_constants(cluster: ClusterSpec) -> NDArray[np.float64]:
    """What never changes of an instance during an episode, float64 [N, 6].

    KV capacity in tokens, prefill of 4,096 tokens in s, decode step of 16 sequences with 2,048
    tokens each in s; and a, b, c of a + b·B + c·K, the decode step in s of B sequences with K
    tokens together, through its values at B of 1 and 33 and at K of 0 and 32,768.
    """
    capacity = np.array([cluster.kv_blocks(i) for i in range(len(cluster.instances))])
    capacity *= cluster.block_size
    profiles = [instance.profile for instance in cluster.instances]
    cost = [p.step_cost(int(tokens)) for p, tokens in zip(profiles, capacity, strict=True)]
    return constants_of(np.array(cost), capacity)


def constants_of(
    cost: NDArray[np.void], kv_capacity_tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The same of STEP_COST records [N]."""
    constants = np.empty((len(cost), NUM_CONSTANTS))
    _write_constants(cost, kv_capacity_tokens, constants)
    return constants


@kernel
def _squash(x: float, scale: float) -> float:
    return x / (x + scale)


@kernel
def _ratio(x: float, y: float) -> float:
    """0 where nothing is known."""
    return x / y if y > 0.0 else 0.0


@kernel
def write_observation(
    v: ViewArrays,
    e: int,
    constants: NDArray[np.float64],
    request: NDArray[np.float32],
    instances: NDArray[np.float32],
) -> None:
    """The observation of environment e: `request` [R], `instances` [N, F].

    Rows of instances that may not be chosen are zeros.
    """
    shown = v.requests[e]
    best = 0
    for i in range(v.shown_instances.shape[1]):
        row, out = v.shown_instances[e, i], instances[i]
        if not row.available:
            out[:] = 0.0
            continue
        best = max(best, row.hit_tokens)
        out[0] = row.available
        out[1] = row.hit_tokens / shown.prompt_tokens
        out[2] = _squash(row.prefill_seconds, shown.slo_ttft)
        out[3] = _squash(row.backlog_seconds, shown.slo_ttft)
        out[4] = _squash(row.backlog_seconds + row.prefill_seconds, shown.slo_ttft)
        out[5] = _squash(row.requests, 16.0)
        out[6] = _squash(row.prefill_requests, 4.0)
        out[7] = _squash(row.context_tokens, constants[i, 0])
        out[8] = _squash(row.waiting, 4.0)
        out[9] = _squash(row.running, 16.0)
        out[10] = row.kv_usage
        decoding = row.requests - row.prefill_requests
        out[11] = _squash(decoding, 16.0)
        queued = (row.waiting_tokens + row.prefilling_tokens) * constants[i, 1] / 4096
        out[12] = _squash(queued, shown.slo_ttft)
        context = row.context_tokens + shown.prompt_tokens
        step = constants[i, 3] + constants[i, 4] * (decoding + 1) + constants[i, 5] * context
        out[13] = _squash(max(step, 0.0), shown.slo_tpot)
        out[14] = _squash(_ratio(row.running, row.throughput), shown.slo_tpot)
        out[15] = _squash(row.recent_prefill_seconds / MEMORY, 0.5)
        out[16] = _squash(_ratio(row.recent_decode_seconds, row.recent_tokens), shown.slo_tpot)
        out[17] = _squash(_ratio(row.recent_wait_seconds, row.recent_booked_seconds), 1.0)
        out[18] = _squash(constants[i, 1], 0.1)
        out[19] = _squash(constants[i, 2], 0.01)
    request[0] = _squash(shown.prompt_tokens, 4096.0)
    request[1] = _squash(shown.gap, 0.1)
    request[2] = _squash(shown.slo_ttft, 1.0)
    request[3] = _squash(shown.slo_tpot, 0.1)
    request[4] = best / shown.prompt_tokens


if __name__ == "__main__":
    print(observation_table())
