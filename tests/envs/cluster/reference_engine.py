"""A vLLM-V1-like engine in plain Python, one step at a time: what the compiled engine must equal.

Written from the rules in the docstring of `prefixgym.envs.cluster.engine`, with dictionaries and
lists, no leaps and no incremental sums. Only durations come from the simulator: `step_ticks`.

A request has `num_tokens` = prompt + generated tokens, of which `computed` have their KV. Every
step computes some of the difference; once none is left, a new token has come out.
"""

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from prefixgym.envs.cluster.step_time import step_ticks


@dataclass(eq=False)
class Block:
    """A block of KV memory; hashed by identity."""

    key: int | None = None
    users: int = 0


class BlockPool:
    """All blocks of an instance, those without users in order of their last use."""

    def __init__(self, num_blocks: int) -> None:
        self.unused: OrderedDict[Block, None] = OrderedDict(
            (Block(), None) for _ in range(num_blocks)
        )
        self.cached: dict[int, Block] = {}

    def longest_prefix(self, keys: Sequence[int]) -> list[Block]:
        found = []
        for key in keys:
            if key not in self.cached:
                break
            found.append(self.cached[key])
        return found

    def take(self) -> Block:
        block, _ = self.unused.popitem(last=False)
        if block.key is not None:
            del self.cached[block.key]
            block.key = None
        block.users = 1
        return block

    def use(self, block: Block) -> None:
        self.unused.pop(block, None)
        block.users += 1

    def publish(self, block: Block, key: int) -> None:
        if key not in self.cached:
            block.key = key
            self.cached[key] = block

    def release(self, blocks: Sequence[Block]) -> None:
        for block in reversed(blocks):
            block.users -= 1
            if block.users == 0:
                self.unused[block] = None

    def flush(self) -> None:
        """Forget what no request uses."""
        for block in self.unused:
            if block.key is not None:
                del self.cached[block.key]
                block.key = None


@dataclass(eq=False)
class Request:
    """An attempt of a request to get through an engine; times are ticks."""

    row: int
    arrival: int  # of the first attempt
    prompt_tokens: int
    output_tokens: int
    keys: list[int]  # of the leading blocks that may be cached
    expected: int = 0  # tokens to compute, as far as was known when it was queued

    generated: int = 0
    computed: int = 0
    prefilling: bool = True
    scheduled: int = 0  # tokens that the step in progress computes
    blocks: list[Block] = field(default_factory=list)
    published: int = 0  # leading blocks that were offered to the cache
    hit_tokens: int | None = None
    first_token: int | None = None
    end: int | None = None
    rejected: bool = False
    is_abandoned: bool = False  # its client has gone: the step in progress is its last

    instance: int = -1  # where it is
    prefiller: int = -1  # where it was routed first
    decoder: int | None = None  # where it decodes, if elsewhere
    received: bool = False  # its KV has come from elsewhere, nothing is to be computed
    replica: int = 0  # the router that routed it
    routed: int = 0
    attempts: int = 1  # up to this one
    status: int | None = None  # of its OUTCOME, once it has ended

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.generated


class Event(NamedTuple):
    """What a client sees of a request."""

    request: Request
    kind: str  # "started", "prefilled", "first token", "end", "cancelled" or "failed"


class ReferenceEngine:
    """One instance.

    Args:
        cost: STEP_COST record.
        num_blocks, block_size, max_batched_tokens, max_sequences: as in `InstanceSpec`.
    """

    def __init__(
        self,
        cost: Any,
        num_blocks: int,
        block_size: int,
        max_batched_tokens: int,
        max_sequences: int,
    ) -> None:
        self.cost = cost
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_batched_tokens = max_batched_tokens
        self.max_sequences = max_sequences
        self.pool = BlockPool(num_blocks)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.step_end: int | None = None  # ticks, None between steps
        self.steps = 0
        self.busy_ticks = 0
        self.prefilled_tokens = 0
        self.preemptions = 0
        self.throughput = 0.0  # output tokens per tick
        self.rated: int | None = None  # decoding requests in the steps that it is of

    def enqueue(self, request: Request, decoder: "ReferenceEngine", now: int) -> list[Event]:
        # The last token comes out without its KV being computed.
        most = request.prompt_tokens + request.output_tokens - 1
        if not (self._fits(request.prompt_tokens) and decoder._fits(most)):
            request.rejected = True
            request.hit_tokens = 0
            request.end = now
            return [Event(request, "end")]
        self.waiting.append(request)
        return []

    def receive(self, request: Request) -> None:
        """Its KV has come from the instance that prefilled it."""
        request.received = True
        request.computed = 0
        request.expected = 0
        self.waiting.append(request)

    def _fits(self, tokens: int) -> bool:
        return self._blocks_for(tokens) <= self.num_blocks

    def start_step(self, now: int) -> list[Event]:
        """Compose the step that starts now; none if there is nothing to do."""
        events = []
        budget = self.max_batched_tokens
        preempted = False
        position = 0
        while position < len(self.running) and budget > 0:
            request = self.running[position]
            tokens = min(request.num_tokens - request.computed, budget)
            while not self._allocate(request, tokens):
                self._preempt(self.running[-1])
                preempted = True
                if request not in self.running:
                    break
            else:
                request.scheduled = tokens
                budget -= tokens
                position += 1
        may_admit = not preempted or not self.running  # an empty step takes no time
        while may_admit and self.waiting and budget > 0 and len(self.running) < self.max_sequences:
            request = self.waiting[0]
            is_new = request.hit_tokens is None
            if request.received:
                if not self._go_on(request):
                    break
                request.first_token = now
                events.append(Event(request, "first token"))
            elif not self._admit(request, budget):
                break
            if is_new:
                events.append(Event(request, "started"))
            budget -= request.scheduled
        if self.running:
            ticks = self._duration()
            self.busy_ticks += ticks
            self.step_end = now + ticks
            self._rate(ticks)
        else:
            self.throughput, self.rated = 0.0, None
        return events

    def _rate(self, ticks: int) -> None:
        """How many output tokens a tick the step of `ticks` makes."""
        decoding = sum(not request.prefilling for request in self.running)
        is_mixed = decoding < len(self.running)
        if is_mixed or self.rated != decoding:
            self.throughput = decoding / ticks
        self.rated = None if is_mixed else decoding

    def end_step(self, now: int) -> list[Event]:
        """The step in progress ends now."""
        self.step_end = None
        self.steps += 1
        events = []
        for request in list(self.running):
            request.computed += request.scheduled
            if request.prefilling:
                self.prefilled_tokens += request.scheduled
            if request.computed < request.num_tokens:
                continue
            request.prefilling = False
            request.generated += 1
            if (
                request.decoder not in (None, request.instance)
                and request.generated < request.output_tokens
            ):
                self.running.remove(request)  # it keeps its blocks here
                events.append(Event(request, "prefilled"))
                continue
            if request.first_token is None:
                request.first_token = now
                events.append(Event(request, "first token"))
            if request.generated == request.output_tokens:
                request.end = now
                self.running.remove(request)
                self._publish(request, request.computed)
                self.release(request)
                events.append(Event(request, "end"))
        return events + self._drop_abandoned(now)

    def _drop_abandoned(self, now: int) -> list[Event]:
        """Those whose clients have gone leave: batch first, then what was preempted since."""
        gone = [request for request in [*self.running, *self.waiting] if request.is_abandoned]
        for request in gone:
            request.end = now
            if request in self.running:
                self.running.remove(request)
                self._publish(request, request.computed)
                self.release(request)
            else:
                self.waiting.remove(request)
        return [Event(request, "cancelled") for request in gone]

    def go_down(self, now: int) -> list[Request]:
        """Everything is lost, the step in progress too: all requests, batch before queue."""
        if self.step_end is not None:
            self.busy_ticks -= self.step_end - now
            self.prefilled_tokens += sum(r.scheduled for r in self.running if r.prefilling)
        lost = [*self.running, *self.waiting]
        self.running, self.waiting = [], deque()
        self.pool = BlockPool(self.num_blocks)
        self.step_end, self.rated, self.throughput = None, None, 0.0
        return lost

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    def _publish(self, request: Request, tokens: int) -> None:
        """Offer the blocks that the first `tokens` tokens fill."""
        last = min(tokens // self.block_size, len(request.keys))
        for j in range(request.published, last):
            self.pool.publish(request.blocks[j], request.keys[j])
        request.published = max(request.published, last)

    def release(self, request: Request) -> None:
        self.pool.release(request.blocks)
        request.blocks = []
        request.published = 0

    def _allocate(self, request: Request, tokens: int) -> bool:
        """Blocks for the next `tokens` tokens of a running request, if there are enough."""
        needed = self._blocks_for(request.computed + tokens) - len(request.blocks)
        if needed > len(self.pool.unused):
            return False
        self._publish(request, request.computed)  # what decoding has filled, once it is full
        request.blocks += [self.pool.take() for _ in range(needed)]
        if request.prefilling:  # a prompt's blocks already from the step that computes them on
            self._publish(request, request.computed + tokens)
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._publish(request, request.computed)
        self.release(request)
        request.computed = 0
        request.received = False
        request.prefilling = True
        request.expected = request.num_tokens
        self.waiting.appendleft(request)
        self.preemptions += 1

    def _admit(self, request: Request, budget: int) -> bool:
        # At least one token is always computed.
        most = (request.num_tokens - 1) // self.block_size
        hits = self.pool.longest_prefix(request.keys[:most])
        computed = len(hits) * self.block_size
        tokens = min(request.num_tokens - computed, budget)
        # All known tokens must fit, though only some are computed now.
        needed = self._blocks_for(request.num_tokens) - len(hits)
        available = [block for block in self.pool.unused if block not in hits]
        if needed > len(available):
            return False
        self.waiting.popleft()
        self.running.append(request)
        for block in hits:
            self.pool.use(block)
        request.blocks = hits
        request.published = len(hits)
        request.computed = computed
        request.scheduled = tokens
        if request.hit_tokens is None:
            request.hit_tokens = computed
        allocated = self._allocate(request, tokens)
        assert allocated
        return True

    def _go_on(self, request: Request) -> bool:
        """Admit a request that was prefilled elsewhere, before those that prefill."""
        hits = self.pool.longest_prefix(request.keys[: request.prompt_tokens // self.block_size])
        needed = self._blocks_for(request.num_tokens) - len(hits)
        if needed > len([block for block in self.pool.unused if block not in hits]):
            return False
        self.waiting.popleft()
        place = sum(not other.prefilling for other in self.running)
        self.running.insert(place, request)
        for block in hits:
            self.pool.use(block)
        request.blocks = hits + [self.pool.take() for _ in range(needed)]
        request.published = len(hits)
        request.computed = request.prompt_tokens
        self._publish(request, request.computed)
        request.scheduled = 1
        return True

    def _duration(self) -> int:
        prefills = [request for request in self.running if request.prefilling]
        decodes = [request for request in self.running if not request.prefilling]
        ticks: int = step_ticks(
            self.cost,
            sum(request.scheduled for request in prefills),
            sum(
                request.scheduled * (request.computed + request.scheduled / 2)
                for request in prefills
            )
            + 0.0,
            len(decodes),
            sum(request.computed + 1 for request in decodes),  # the new token attends to itself
            len(self.running),
        )
        return ticks
