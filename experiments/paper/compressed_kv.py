"""Compressed KV over a link: chunks at levels of quality, fetched or computed again from text.

A context of L tokens is cut into chunks. A chunk comes as KV at one of several levels, or as text:

    a_i = a_{i-1} + bytes_i / B_i                   its last byte has arrived
    d_i = max(a_i, d_{i-1}) + work_i                its KV is in place

with B_i the bandwidth while it is sent and work_i the GPU's: decoding at that level, or the prefill
of the chunk on top of those before it. Links and GPU work side by side. With one level throughout,
and decoding not slower than the link, d_n = Σ bytes / B + work_n, that is Σ size / B + T_decode of
the last chunk alone.

**Which level** (CacheGen, section 5 of `routers_flexlb_dynamo_preble_mooncake.md`): before each
chunk the bandwidth is taken to stay what it was for the last one. If text for all that remains is
in time, text; else the best level at which all that remains is in time; else the lowest level.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Recompute = Callable[[int, int], float]
"""s to prefill so many new tokens on top of so many that are in place."""


@dataclass(frozen=True)
class Level:
    """How a token's KV is encoded.

    Attributes:
        name: for people.
        bytes_per_token: on the link.
        decode_per_token: s of GPU time.
    """

    name: str
    bytes_per_token: float
    decode_per_token: float = 0.0


@dataclass(frozen=True)
class Codec:
    """What a context may be sent as.

    Attributes:
        levels: best quality, and most bytes, first.
        text_bytes_per_token: of a token as text.
        chunk_tokens: of a chunk; the last one is shorter.

    Raises:
        ValueError: no level, sizes that do not fall, or chunks of no tokens.
    """

    levels: tuple[Level, ...]
    text_bytes_per_token: float = 4.0
    chunk_tokens: int = 1500

    def __post_init__(self) -> None:
        sizes = [level.bytes_per_token for level in self.levels]
        if not sizes or sizes != sorted(sizes, reverse=True):
            raise ValueError(f"levels: found sizes {sizes}, allowed: one or more, largest first")
        if self.chunk_tokens < 1:
            raise ValueError(f"chunk_tokens: found {self.chunk_tokens}, allowed: 1 or more")

    def chunks(self, tokens: int) -> list[int]:
        """Tokens of each chunk of a context."""
        full, rest = divmod(tokens, self.chunk_tokens)
        return [self.chunk_tokens] * full + [rest] * (rest > 0)


TEXT = None
"""What a chunk is sent as when it is computed again, in place of a level."""


@dataclass(frozen=True)
class Moment:
    """How far a context has come.

    Attributes:
        chunk: the next one.
        sent: s at which the link is free.
        placed: s at which the KV of all chunks before is in place.
    """

    chunk: int = 0
    sent: float = 0.0
    placed: float = 0.0


@dataclass(frozen=True)
class Transfer:
    """A context on its way over a link.

    Attributes:
        codec: what it may be sent as.
        tokens: of the context.
        recompute: how long a prefill takes.
    """

    codec: Codec
    tokens: int
    recompute: Recompute

    def step(self, at: Moment, level: Level | None, bandwidth: float) -> Moment:
        """Send the next chunk at a level, or as text, at so many bytes/s."""
        before = at.chunk * self.codec.chunk_tokens
        tokens = min(self.codec.chunk_tokens, self.tokens - before)
        if level is TEXT:
            size, work = tokens * self.codec.text_bytes_per_token, self.recompute(tokens, before)
        else:
            size, work = tokens * level.bytes_per_token, tokens * level.decode_per_token
        sent = at.sent + size / bandwidth
        return Moment(at.chunk + 1, sent, max(sent, at.placed) + work)

    def finish(self, at: Moment, level: Level | None, bandwidth: float) -> float:
        """When all KV is in place if all that remains is sent at one level, or as text, s."""
        while at.chunk * self.codec.chunk_tokens < self.tokens:
            at = self.step(at, level, bandwidth)
        return at.placed

    def choose(self, at: Moment, estimate: float, deadline: float) -> Level | None:
        """What the next chunk is sent as.

        Args:
            at: now.
            estimate: bytes/s that the link is thought to carry from here on.
            deadline: s by which all KV shall be in place.
        """
        if self.finish(at, TEXT, estimate) <= deadline:
            return TEXT
        for level in self.codec.levels:
            if self.finish(at, level, estimate) <= deadline:
                return level
        return self.codec.levels[-1]

    def adapted(
        self, bandwidths: Sequence[float], estimates: Sequence[float], deadline: float
    ) -> tuple[float, list[Level | None]]:
        """Choose before each chunk.

        Args:
            bandwidths: bytes/s while each chunk is sent.
            estimates: bytes/s that the link is thought to carry before each chunk, see `last_seen`.
            deadline: s.

        Returns:
            When all KV is in place, s, and what each chunk was sent as.
        """
        at, sent_as = Moment(), []
        for bandwidth, estimate in zip(bandwidths, estimates, strict=True):
            level = self.choose(at, estimate, deadline)
            at = self.step(at, level, bandwidth)
            sent_as.append(level)
        return at.placed, sent_as

    def fixed(self, bandwidths: Sequence[float], level: Level | None) -> float:
        """When all KV is in place if every chunk is sent at one level, or as text, s."""
        at = Moment()
        for bandwidth in bandwidths:
            at = self.step(at, level, bandwidth)
        return at.placed

    def whole_text(self, bandwidth: float) -> float:
        """When all KV is in place if the text is sent first and computed then, at once, s."""
        size = self.tokens * self.codec.text_bytes_per_token
        return size / bandwidth + self.recompute(self.tokens, 0)


def last_seen(bandwidths: Sequence[float], first: float) -> list[float]:
    """Before each chunk what the one before it met, bytes/s; `first` before anything is sent."""
    return [first, *bandwidths[:-1]]


def break_even(transfer: Transfer, level: Level) -> float:
    """Bytes/s above which a level is sooner than all text at once.

    B* = (Σ size − Σ text) / (T_prefill(L) − T_decode), with T_decode that of the last chunk: exact
    where no chunk waits for the decoding of the one before it.

    Raises:
        ValueError: decoding takes as long as prefill, so that no bandwidth is enough.
    """
    tokens = transfer.tokens
    last = transfer.codec.chunks(tokens)[-1]
    saved = transfer.recompute(tokens, 0) - last * level.decode_per_token
    if saved <= 0:
        raise ValueError(f"{level.name}: decoding takes as long as prefill, no bandwidth is enough")
    return tokens * (level.bytes_per_token - transfer.codec.text_bytes_per_token) / saved
