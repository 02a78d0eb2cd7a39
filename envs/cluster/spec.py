"""What a cluster consists of: instances, their profiles, capacities and engine limits."""

from dataclasses import dataclass
from typing import Literal, get_args

from prefixgym.envs.cluster.profiles import Profile

Role = Literal["mixed", "prefill", "decode"]
"""What an instance is for: both halves of a request, or one of them."""


@dataclass(frozen=True)
class Link:
    """What KV goes over from instances that prefill to instances that decode.

    Every instance has one port. A transfer takes that of its sender and that of its receiver, and
    those of one port come one after the other, in the order in which their prefills ended.

    Attributes:
        bandwidth: bytes/s of a port.
        latency: seconds from the first byte's departure to its arrival.
    """

    bandwidth: float = 50e9
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0:
            raise ValueError(f"link.bandwidth: found {self.bandwidth}, must be above 0 bytes/s")
        if not self.latency >= 0:
            raise ValueError(f"link.latency: found {self.latency}, must be at least 0 s")


@dataclass(frozen=True)
class InstanceSpec:
    """One engine.

    Attributes:
        profile: step-time coefficients and KV capacity of the model on its GPUs.
        kv_blocks: blocks of KV cache; None takes the profile's capacity in tokens.
        max_batched_tokens: token budget of one step (vLLM's `max_num_batched_tokens`).
        max_sequences: sequences that may run at once (vLLM's `max_num_seqs`).
        role: what it is for.
    """

    profile: Profile
    kv_blocks: int | None = None
    max_batched_tokens: int = 8192
    max_sequences: int = 256
    role: Role = "mixed"

    def num_blocks(self, block_size: int) -> int:
        """Blocks of KV cache, of so many tokens each."""
        if self.kv_blocks is not None:
            return self.kv_blocks
        return self.profile.kv_capacity_tokens // block_size


@dataclass(frozen=True)
class ClusterSpec:
    """The instances that one router serves.

    Attributes:
        instances: at least one.
        block_size: tokens in a KV block, the same on every instance.
        frontend_latency: seconds that a request spends outside the engine's steps (API server,
            tokenizer), added to its TTFT (`simulators.md` §3 recommends 0.010).
        link: what KV goes over where instances have roles.
    """

    instances: tuple[InstanceSpec, ...]
    block_size: int
    frontend_latency: float = 0.0
    link: Link = Link()

    def __post_init__(self) -> None:
        if not self.instances:
            raise ValueError("cluster.instances: found none, at least one is needed")
        if self.block_size < 1:
            raise ValueError(f"cluster.block_size: found {self.block_size}, must be at least 1")
        for i, instance in enumerate(self.instances):
            if self.kv_blocks(i) < 1:
                raise ValueError(
                    f"cluster.instances[{i}].kv_blocks: found {self.kv_blocks(i)}, "
                    "must be at least 1"
                )
            if not 1 <= instance.max_sequences <= instance.max_batched_tokens:
                raise ValueError(
                    f"cluster.instances[{i}]: max_sequences must be 1 to max_batched_tokens, "
                    f"found {instance.max_sequences} and {instance.max_batched_tokens}"
                )
            if instance.role not in get_args(Role):
                raise ValueError(
                    f"cluster.instances[{i}].role: found {instance.role!r}, "
                    f"allowed: {', '.join(get_args(Role))}"
                )
        if self.is_split and not (self.pool("prefill") and self.pool("decode")):
            raise ValueError(
                "cluster.instances: found roles "
                f"{', '.join(sorted({i.role for i in self.instances}))}; where there are roles, "
                "some instance must be able to prefill and another to decode"
            )

    @property
    def is_split(self) -> bool:
        """Whether some instance is for one half of requests only."""
        return any(instance.role != "mixed" for instance in self.instances)

    def pool(self, role: Role) -> tuple[int, ...]:
        """The instances that may do this: those of the role, and the mixed ones."""
        return tuple(
            i for i, instance in enumerate(self.instances) if instance.role in (role, "mixed")
        )

    def kv_blocks(self, instance: int) -> int:
        """Blocks of KV cache on `instance`."""
        return self.instances[instance].num_blocks(self.block_size)
