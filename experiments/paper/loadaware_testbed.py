"""The testbed of the loadaware experiment: its requests, its GPUs, and what its routers could know.

Source: github.com/BenEpstein/caching-in-llms (the report, `benchmarks/`, `deploy/` and `results/`,
August 2026), the study behind vLLM production-stack PR #1035. Two vLLM engines with LMCache, one
NVIDIA A10 and Qwen2.5-3B-Instruct each; two passes of warm-up over all prefixes, then 20 replays of
500 requests, one after the other on warm caches.

Taken from there, exactly: which prefix each request has and when it is sent (`Sweep` makes the
same draws; the files that follow from them have the published SHA-256), all lengths, KV memory.
Inferred: how fast the engines are (`a10_profile`), and which engine the warm-up gave which prefix
(`Deployment.crowded`).
"""

import dataclasses
import functools
import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prefixgym.baselines.router import Router
from prefixgym.envs.clock import to_ticks
from prefixgym.envs.cluster.profiles import CompactModel, HostOverhead, LinearPart, Profile, profile
from prefixgym.envs.cluster.spec import ClusterSpec, InstanceSpec
from prefixgym.envs.view.view import View
from prefixgym.envs.workload.chains import ceil_div, exclusive_sum, two_part_tape
from prefixgym.envs.workload.links import link_rows
from prefixgym.envs.workload.popularity import zipf_weights
from prefixgym.envs.workload.tape import Tape

BLOCK_SIZE = 16
"""Tokens in a block of the engines, vLLM's default."""

PREFIXES = 128
ZIPF = 0.9
PREFIX_TOKENS = 1544
"""Of a shared prefix, as its tokenizer counts; "2048" in the configuration is nominal."""
PROMPT_TOKENS = 1578
OUTPUT_TOKENS = 64
SUFFIX_WORDS = 24
"""Words of a suffix; the generator draws them between two prefixes, from the same stream."""

REPLAYS = 20
REPLAY_REQUESTS = 500
SEND_DELAY = 0.0015
"""s that the load driver adds to each Poisson gap: 15.52 of 16 requests/s were on the wire."""
PAUSE = 60.0
"""s from a replay's last request to the next one's first, so that the engines idle in between."""

WARM_UP_PASSES = 2
WARM_UP_CLIENTS = 4
WARM_UP_PROMPT_TOKENS = PREFIX_TOKENS + 16
WARM_UP_OUTPUT_TOKENS = 4
WARM_UP_SECONDS = 300.0

SHARED_BLOCKS = PREFIX_TOKENS // BLOCK_SIZE
MATCHED_TOKENS = SHARED_BLOCKS * BLOCK_SIZE
"""Of a prefix in the cache: 1,536, which are also six whole chunks of LMCache."""


@dataclass(frozen=True)
class Deployment:
    """What may vary. The defaults are the hardware's speed and the published conditions.

    Attributes:
        slowdown: factor on all step times of `a10_profile`.
        rate: requests/s.
        kv_tokens: KV memory of an engine; 104,624 is what vLLM reported (it was given 45 % of GPU
            memory, so that not every engine holds every prefix; 393,744 at 90 %).
        host_prefixes: prefixes that an engine's LMCache keeps in host memory, and so what routers
            know: 4 GiB / (36,864 bytes · 256 tokens · 6 chunks) = 75. None: no LMCache, routers
            see what is in GPU memory.
        crowded: how many of the most popular prefixes the warm-up put on engine 0; the following
            ones alternate, engine 1 first. The router's fallback alternates, but the warm-up
            sends four requests at once, which all see it without statistics. With 4, engine 0 gets
            65.2 % of the requests (the published counters say 65.7 % of the hit tokens), and the
            share that it gets in each replay explains which replays were unbalanced (correlation
            0.75 over 20). 0: strictly alternating, 54.9 %.
    """

    slowdown: float = 1.0
    rate: float = 16.0
    kv_tokens: int = 104_624
    host_prefixes: int | None = 75
    crowded: int = 4

    @property
    def cluster(self) -> ClusterSpec:
        """Two engines, a step's 2,048 tokens and 256 requests being vLLM's default on such GPUs.

        By 0.047 s the study's clients and its engines differed about TTFT.
        """
        engine = InstanceSpec(
            a10_profile(self.slowdown),
            kv_blocks=self.kv_tokens // BLOCK_SIZE,
            max_batched_tokens=2048,
            max_sequences=256,
        )
        return ClusterSpec((engine, engine), BLOCK_SIZE, frontend_latency=0.047)


def a10_profile(slowdown: float = 1.0) -> Profile:
    """Qwen2.5-3B-Instruct on an A10: Llama-3.1-8B's profile on L40S, scaled by data sheets.

    Both GPUs are PCIe cards with GDDR6: 600 against 864 GB/s, 125 against 362 TFLOP/s (dense BF16).

    - Reading weights: 3.08 against 7.50 G parameters in matrix products (the output head included,
      which Qwen shares with its embedding), and bandwidth.
    - Matrix products of prompts: 2.77 against 6.98 G parameters in layers, and TFLOP/s.
    - Reading and writing activations: layers · width = 36 · 2048 against 32 · 4096, and bandwidth.
    - Attention over KV: 36,864 against 131,072 bytes a token and bandwidth for decoding; 36 · 16
      against 32 · 32 heads and TFLOP/s for prompts; launches by layers.

    Host terms are those of vLLM 0.12, the nearest generation. LMCache's own work is in none of it:
    by the published latencies the engines are about 2.4 times as slow, as `slowdown` can imitate.
    """
    source = profile("llama-3.1-8b/l40s/tp1", host="vllm-0.12", linear="formula")
    model = source.step_model
    assert isinstance(model, CompactModel)
    bandwidth, compute = 864 / 600, 362 / 125
    activations = 36 * 2048 / (32 * 4096) * bandwidth
    kv = 36_864 / 131_072
    launch, per_token, work = model.prefill_attention
    base, per_request, per_kv_token = model.decode_attention
    linear = LinearPart(
        t0=slowdown * model.linear.t0 * 3.08 / 7.50 * bandwidth,
        a=slowdown * model.linear.a * 2.77 / 6.98 * compute,
        q=model.linear.q,
        b=slowdown * model.linear.b * activations,
        t_experts=0.0,
        nu=0.0,
    )
    return dataclasses.replace(
        source,
        name=f"qwen2.5-3b/a10/tp1 (scaled, {slowdown:g} times as slow)",
        model="Qwen/Qwen2.5-3B-Instruct",
        gpu="a10",
        kv_bytes_per_token=36_864,
        step_model=CompactModel(
            linear=linear,
            decode_linear=linear,
            linear_table=None,
            prefill_attention=(
                slowdown * launch * 36 / 32,
                slowdown * per_token * activations,
                slowdown * work * (36 * 16) / (32 * 32) * compute,
            ),
            decode_attention=(
                slowdown * base,
                slowdown * per_request,
                slowdown * per_kv_token * kv * bandwidth,
            ),
        ),
        host=HostOverhead(slowdown * source.host.step_ms, slowdown * source.host.sequence_ms),
        errors=None,
    )


@dataclass(frozen=True)
class Sweep:
    """One cell of the experiment as a workload: the warm-up, then all replays.

    Requests come in order of rows. The first 256 are the warm-up, four clients that send one prefix
    after the other; row 256 + 500 r + i is request i of replay r + 1.

    Attributes:
        rate: requests/s of the replays.
    """

    rate: float

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return BLOCK_SIZE

    @property
    def num_sessions(self) -> int:
        """Clients send no session key; each request is one."""
        return WARM_UP_PASSES * PREFIXES + REPLAYS * REPLAY_REQUESTS

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest prompt."""
        return -(-PROMPT_TOKENS // BLOCK_SIZE)

    @functools.cached_property
    def sent(self) -> NDArray[np.float64]:
        """When each request of each replay is sent, s since the start, shape [20, 500]."""
        sent = np.empty((REPLAYS, REPLAY_REQUESTS))
        start = WARM_UP_SECONDS
        for r in range(REPLAYS):
            draws = random.Random(r + 1)
            gaps = [draws.expovariate(self.rate) + SEND_DELAY for _ in range(REPLAY_REQUESTS - 1)]
            sent[r] = start + np.cumsum([0.0, *gaps])
            start = sent[r, -1] + PAUSE
        return sent

    @staticmethod
    @functools.cache
    def prefixes(replay: int) -> tuple[int, ...]:
        """The prefix of each request of a replay, counted from 1; 0 is the most popular prefix."""
        weights = zipf_weights(PREFIXES, ZIPF).tolist()
        draws = random.Random(replay + 1)
        prefixes: list[int] = []
        for _ in range(REPLAY_REQUESTS):
            prefixes += draws.choices(range(PREFIXES), weights)
            for _ in range(SUFFIX_WORDS):
                draws.random()
        return tuple(prefixes)

    def tape(self, seed: int) -> Tape:
        """The one episode; its draws are the source's own."""
        warm_up = WARM_UP_PASSES * PREFIXES
        prefix = [*range(PREFIXES)] * WARM_UP_PASSES
        for replay in range(1, REPLAYS + 1):
            prefix += self.prefixes(replay)
        is_warm_up = np.arange(len(prefix)) < warm_up
        prompt_tokens = np.where(is_warm_up, WARM_UP_PROMPT_TOKENS, PROMPT_TOKENS)
        tail_blocks = ceil_div(prompt_tokens, BLOCK_SIZE) - SHARED_BLOCKS
        tape = two_part_tape(
            block_size=BLOCK_SIZE,
            arrival=to_ticks(np.concatenate([np.zeros(warm_up), self.sent.ravel()])),
            prompt_tokens=prompt_tokens,
            output_tokens=np.where(is_warm_up, WARM_UP_OUTPUT_TOKENS, OUTPUT_TOKENS),
            cacheable_blocks=prompt_tokens // BLOCK_SIZE,
            head_start=np.array(prefix) * SHARED_BLOCKS,
            head_blocks=np.full(len(prefix), SHARED_BLOCKS),
            tail_start=PREFIXES * SHARED_BLOCKS + exclusive_sum(tail_blocks),
        )
        followed = warm_up - WARM_UP_CLIENTS
        tape.requests["parent"][WARM_UP_CLIENTS:warm_up] = np.arange(followed)
        link_rows(tape.requests, np.arange(len(tape.requests)))
        return tape


class LmcacheRouter(Router):
    """A router that asks LMCache which engine has a prefix, in place of the engines' own caches.

    LMCache keeps what an engine has computed in host memory, least recently used prefixes leave
    first, and its controller answers lookups from there. What the engine holds in GPU memory is
    another matter: the wrapped router does not see that. A prefix's first request goes where
    the warm-up put it.
    """

    name = "lmcache"
    source = "LMCache 0.3.9, LocalCPUBackend and its controller"

    def __init__(self, router: Router, deployment: Deployment) -> None:
        self._router = router
        self._deployment = deployment

    def reset(self, cluster: ClusterSpec, seeds: Sequence[int]) -> None:
        """Nothing is cached anywhere."""
        self._router.reset(cluster, seeds)
        self._hosts: list[OrderedDict[int, None]] = [OrderedDict() for _ in cluster.instances]
        self._seen: set[int] = set()

    def route(self, view: View) -> NDArray[np.int64]:
        """One environment's request."""
        prefix = int(view.block_ids[0, 0]) // SHARED_BLOCKS
        if self._deployment.host_prefixes is not None:
            view.instances["hit_tokens"][0] = [MATCHED_TOKENS * (prefix in h) for h in self._hosts]
        if prefix in self._seen:
            chosen = self._router.route(view)
        else:
            chosen = np.array([0 if prefix < self._deployment.crowded else (prefix + 1) % 2])
        self._seen.add(prefix)
        host = self._hosts[chosen[0]]
        host[prefix] = None
        host.move_to_end(prefix)
        if len(host) > (self._deployment.host_prefixes or PREFIXES):
            host.popitem(last=False)
        return chosen
