"""The hash of vllm-router's rings: mcrouter's furc hash, spread over 64 bits by MurmurHash64A.

Written from the published algorithms (A. Appleby's MurmurHash64A; Facebook mcrouter
`mcrouter/lib/fbi/hash.c`). `hash_of` gives what vllm-router 0.1.17 prints as the hash of a key.
"""

_WORD = 2**64 - 1
_SEED = 4193360111
_MULTIPLIER = 0xC6A4A7935BD1E995
_SHIFT = 47
_MOST_TRIES = 32
_STRIDE = 23
_MODULUS = 2**23 - 1


def _scramble(word: int) -> int:
    word = word * _MULTIPLIER & _WORD
    word ^= word >> _SHIFT
    return word * _MULTIPLIER & _WORD


def murmur64a(data: bytes) -> int:
    """MurmurHash64A with mcrouter's seed."""
    result = _SEED ^ (len(data) * _MULTIPLIER & _WORD)
    whole = len(data) // 8 * 8
    for first in range(0, whole, 8):
        result ^= _scramble(int.from_bytes(data[first : first + 8], "little"))
        result = result * _MULTIPLIER & _WORD
    if rest := data[whole:]:
        result ^= int.from_bytes(rest, "little")
        result = result * _MULTIPLIER & _WORD
    result ^= result >> _SHIFT
    result = result * _MULTIPLIER & _WORD
    return result ^ result >> _SHIFT


def _furc(key: bytes) -> int:
    """A number below `_MODULUS`: the bits of a walk down a binary tree of that many leaves."""
    words = [murmur64a(key)]

    def bit(index: int) -> int:
        while len(words) <= index // 64:
            words.append(murmur64a(words[-1].to_bytes(8, "little")))
        return words[index // 64] >> index % 64 & 1

    depth = (_MODULUS - 1).bit_length()
    position = depth
    for _ in range(_MOST_TRIES):
        while not bit(position):
            if depth == 0:
                return 0
            depth -= 1
            position = depth
        position += _STRIDE
        number = 1
        for _ in range(depth - 1):
            number = number << 1 | bit(position)
            position += _STRIDE
        if number < _MODULUS:
            return number
    return 0


def hash_of(key: str) -> int:
    """Where `key` lies on the ring of 2^64 positions."""
    return murmur64a(_furc(key.encode()).to_bytes(4, "little"))
