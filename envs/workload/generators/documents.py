"""Questions about long documents: the document first, then the question, nothing of past ones.

Most of a prompt returns whenever its document is asked about again, and a miss costs seconds of
prefill. What is asked about changes within minutes: Mooncake's synthetic trace asks 60 s (median)
later again, 45 % of its requests hit, and those by nine tenths of their prompt (`traces.md` §3.3,
§3.6); LooGLE's prompts have 23,474 ± 6,105 tokens, 91 % of them the document (§5, AIBrix).
"""

from dataclasses import dataclass

from prefixgym.envs.workload.arrivals import Arrivals
from prefixgym.envs.workload.distributions import LogNormal
from prefixgym.envs.workload.fields import check_whole
from prefixgym.envs.workload.generators.shared_prompts import SharedPrompts
from prefixgym.envs.workload.lengths import Length, distribution
from prefixgym.envs.workload.tape import Tape

# 21,360 ± 6,100 tokens of document and 2,110 of question and the passage that it is about.
_DOCUMENT_TOKENS = LogNormal(median=20_540, sigma=0.28, low=2000, high=60_000)
_QUESTION_TOKENS = LogNormal(median=2050, sigma=0.25, low=100, high=6000)
_OUTPUT_TOKENS = LogNormal(median=70, sigma=1.2, high=1000)


@dataclass(frozen=True)
class LongDocuments:
    """Each request draws a document by popularity and asks its own question about it.

    Attributes:
        num_requests: rows of a tape.
        arrivals: when they come.
        block_size: tokens in a block.
        num_documents: that are asked about at a time.
        zipf: exponent of their popularity; 0 is uniform.
        half_life: requests after which half of the documents have made way for new ones; inf: they
            stay.
        document_tokens: length of a document.
        question_tokens: length of a question.
        output_tokens: length of an answer.
    """

    num_requests: int
    arrivals: Arrivals
    block_size: int
    num_documents: int = 300
    zipf: float = 0.6
    half_life: float = 1000.0
    document_tokens: Length = _DOCUMENT_TOKENS
    question_tokens: Length = _QUESTION_TOKENS
    output_tokens: Length = _OUTPUT_TOKENS

    def __post_init__(self) -> None:
        check_whole("num_documents", self.num_documents, 1, 2**31 - 1)
        distribution("document_tokens", self.document_tokens)
        self._prompts()

    def _prompts(self) -> SharedPrompts:
        return SharedPrompts(
            num_requests=self.num_requests,
            arrivals=self.arrivals,
            block_size=self.block_size,
            num_groups=self.num_documents,
            prompts_per_group=None,
            system_tokens=self.document_tokens,
            question_tokens=self.question_tokens,
            output_tokens=self.output_tokens,
            zipf=self.zipf,
            half_life=self.half_life,
        )

    @property
    def num_sessions(self) -> int:
        """Every question is a session."""
        return self.num_requests

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest possible prompt."""
        return self._prompts().max_blocks

    def tape(self, seed: int) -> Tape:
        """The episode that `seed` names; all but its arrivals are the same at every rate."""
        return self._prompts().tape(seed)
