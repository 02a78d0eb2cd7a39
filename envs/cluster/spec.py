"""What a cluster consists of: instances, their profiles, capacities and engine limits."""

from dataclasses import dataclass

from prefixgym.envs.cluster.profiles import Profile


@dataclass(frozen=True)
class InstanceSpec:
    """One engine.

    Attributes:
        profile: step-time coefficients and KV capacity of the model on its GPUs.
        kv_blocks: blocks of KV cache; None takes the profile's capacity in tokens.
        max_batched_tokens: token budget of one step (vLLM's `max_num_batched_tokens`).
        max_sequences: sequences that may run at once (vLLM's `max_num_seqs`).
    """

    profile: Profile
    kv_blocks: int | None = None
    max_batched_tokens: int = 8192
    max_sequences: int = 256


@dataclass(frozen=True)
class ClusterSpec:
    """The instances that one router serves.

    Attributes:
        instances: at least one.
        block_size: tokens in a KV block, the same on every instance.
        frontend_latency: seconds that a request spends outside the engine's steps (API server,
            tokenizer), added to its TTFT (`simulators.md` §3 recommends 0.010).
    """

    instances: tuple[InstanceSpec, ...]
    block_size: int
    frontend_latency: float = 0.0

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

    def kv_blocks(self, instance: int) -> int:
        """Blocks of KV cache on `instance`."""
        spec = self.instances[instance]
        if spec.kv_blocks is not None:
            return spec.kv_blocks
        return spec.profile.kv_capacity_tokens // self.block_size
