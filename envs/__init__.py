"""What happens to requests: cluster, workload, view, and the Gymnasium surface."""

if __name__ == "envs":
    raise ImportError(
        "import prefixgym.envs, not envs: the folder is part of the package prefixgym"
    )

import gymnasium as gym

ROUTING_ID = "prefixgym/PrefixRouting-v0"
DISAGGREGATED_ID = "prefixgym/DisaggregatedRouting-v0"

if ROUTING_ID not in gym.registry:  # importing twice, as worker processes do, changes nothing
    gym.register(
        id=ROUTING_ID,
        entry_point="prefixgym.envs.routing:PrefixRoutingEnv",
        vector_entry_point="prefixgym.envs.vector:PrefixRoutingVectorEnv",
    )

if DISAGGREGATED_ID not in gym.registry:
    gym.register(
        id=DISAGGREGATED_ID,
        entry_point="prefixgym.envs.disaggregated:DisaggregatedRoutingEnv",
        vector_entry_point="prefixgym.envs.disaggregated:DisaggregatedRoutingVectorEnv",
    )
