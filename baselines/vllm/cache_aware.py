"""vllm-router's cache_aware: SGLang's, but a prefix belongs to all that were sent it.

Source: `routers_sglang_vllm_aibrix_llmd.md` §2.10; what differs from the classic rule was found by
experiment on vllm-router 0.1.17 and is held against it in `test_vllm_router_parity.py`.
"""

from dataclasses import dataclass

from prefixgym.baselines.router import register
from prefixgym.baselines.sglang.cache_aware import CacheAware


@register
@dataclass
class VllmCacheAware(CacheAware):
    """`cache_aware` of vllm-router 0.1.17, with the defaults of its Python command line.

    As SGLang's, but for step 3: of the available instances, those that were sent the longest prefix
    compete, and the least loaded of them gets the request, the first among equals. So a prefix that
    an overflow (step 2) sent elsewhere is shared from then on, and none is lost with an instance.

    The wheel has the workers tokenize prompts and keeps the ids in its tree, 8 characters each;
    where they cannot, it keeps the text.
    """

    name = "vllm_cache_aware"
    source = "vllm-project/router, cache_aware, vllm-router 0.1.17 (§2.10)"
    family = "vLLM"

    any_holder = True

    eviction_interval: float = 120.0
    max_tree_size: int = 2**25
    chars_per_token: float = 8.0
