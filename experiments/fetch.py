"""Public traces: where they are, and a download that ends with the right bytes or not at all."""

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefixgym.envs.jit import cache_root

_PIECE = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte

_MOONCAKE = (
    "https://raw.githubusercontent.com/kvcache-ai/Mooncake/"
    "3b5a594133958449a1feaf1c9e0fc1b553e34a28/FAST25-release"
)
_AZURE = (
    "https://raw.githubusercontent.com/Azure/AzurePublicDataset/"
    "b469a113cedca53ddc3bdea71a143dc4b7d8700c/data"
)
_BAILIAN = "https://media.githubusercontent.com/media/alibaba-edu/qwen-bailian-usagetraces-anon"
_BAILIAN_2025 = f"{_BAILIAN}/0b4273a1d8a83935b9d9356e78f95c31f2ac64cf"


@dataclass(frozen=True)
class PublicTrace:
    """One file that anyone may download.

    Attributes:
        name: as `prefixgym trace fetch` takes it.
        url: http or https.
        description: what it is, and its licence.
        size: bytes; None if not known.
        sha256: of those bytes; None if not known.
    """

    name: str
    url: str
    description: str
    size: int | None = None
    sha256: str | None = None


PUBLIC_TRACES: dict[str, PublicTrace] = {
    trace.name: trace
    for trace in (
        PublicTrace(
            "mooncake-conversation",
            f"{_MOONCAKE}/traces/conversation_trace.jsonl",
            "chat at Kimi, 12,031 requests in an hour (FAST'25, Apache-2.0)",
            3_029_533,
            "b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        ),
        PublicTrace(
            "mooncake-synthetic",
            f"{_MOONCAKE}/traces/synthetic_trace.jsonl",
            "public data sets with Poisson arrivals, 3,993 requests (FAST'25, Apache-2.0)",
            1_136_313,
            "bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        ),
        PublicTrace(
            "mooncake-toolagent",
            f"{_MOONCAKE}/traces/toolagent_trace.jsonl",
            "tools and agents at Kimi, 23,608 requests in an hour (FAST'25, Apache-2.0)",
        ),
        PublicTrace(
            "mooncake-arxiv",
            f"{_MOONCAKE}/arxiv-trace/mooncake_trace.jsonl",
            "chat, tools and agents at Kimi, 23,608 requests (arXiv 2407.00079, Apache-2.0)",
            sha256="b434f1816a707f4bac697235588184ebc374c9907cb981bb65fb0643471fe711",
        ),
        PublicTrace(
            "bailian-a",
            f"{_BAILIAN}/main/qwen_traceA_blksz_16.jsonl",
            "chat at Alibaba, two hours (ATC'25, Apache-2.0)",
        ),
        PublicTrace(
            "bailian-b",
            f"{_BAILIAN}/main/qwen_traceB_blksz_16.jsonl",
            "API calls at Alibaba, two hours (ATC'25, Apache-2.0)",
        ),
        PublicTrace(
            "bailian-thinking",
            f"{_BAILIAN_2025}/qwen_thinking_blksz_16.jsonl",
            "a reasoning model at Alibaba, two hours (Apache-2.0)",
            27_901_454,
            "41ac36d9d1b54d084eeb6b05e9d142ba9d02f8bf79cfc9fff418d8ab7cdee906",
        ),
        PublicTrace(
            "bailian-coder",
            f"{_BAILIAN_2025}/qwen_coder_blksz_16.jsonl",
            "a coding model at Alibaba, two hours (Apache-2.0)",
            132_054_902,
            "3d74974cebb7bccb69b1ca6ea210a44d9a3033443c0271ed015327284dea1aff",
        ),
        PublicTrace(
            "azure-code-2023",
            f"{_AZURE}/AzureLLMInferenceTrace_code.csv",
            "code completion at Azure, 8,819 requests, no prefixes (ISCA'24, CC-BY 4.0)",
            320_117,
            "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        ),
        PublicTrace(
            "azure-conversation-2023",
            f"{_AZURE}/AzureLLMInferenceTrace_conv.csv",
            "chat at Azure, 19,366 requests, no prefixes (ISCA'24, CC-BY 4.0)",
            719_188,
            "2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        ),
        PublicTrace(
            "azure-code-2024",
            "https://azurepublicdatasettraces.blob.core.windows.net/azurellminfererencetrace/"
            "AzureLLMInferenceTrace_code_1week.csv",
            "code completion at Azure for a week, no prefixes (HPCA'25, CC-BY 4.0)",
        ),
    )
}


def public_trace(name: str) -> PublicTrace:
    """The trace of that name; ValueError lists the names there are."""
    if name not in PUBLIC_TRACES:
        raise ValueError(f"name: found {name!r}, must be one of {', '.join(PUBLIC_TRACES)}")
    return PUBLIC_TRACES[name]


def trace_folder() -> Path:
    """Where traces are kept: $PREFIXGYM_CACHE_DIR/traces, by default under ~/.cache/prefixgym."""
    return cache_root() / "traces"


def fetch(
    trace: PublicTrace, folder: Path, on_bytes: Callable[[int], None] = lambda count: None
) -> Path:
    """The path of a trace's file in `folder`, downloaded unless it is there.

    Args:
        trace: which one.
        folder: made if need be. The file appears there only once it is whole and checked.
        on_bytes: called with the number of bytes after each piece.

    Raises:
        ValueError: the bytes, downloaded or found, are not those of the trace.
        OSError: no download; the message says what was tried and where to put the file by hand.
    """
    path = folder / f"{trace.name}{Path(trace.url).suffix}"
    if path.exists():
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        _check(trace, str(path), path.stat().st_size, found)
        return path
    folder.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    digest = hashlib.sha256()
    size = 0
    try:
        with urllib.request.urlopen(trace.url, timeout=_TIMEOUT) as answer, part.open("wb") as file:
            while piece := answer.read(_PIECE):
                file.write(piece)
                digest.update(piece)
                size += len(piece)
                on_bytes(len(piece))
            expected = answer.headers.get("Content-Length")
        if expected is not None and size != int(expected):
            raise OSError(f"ended after {size} of {expected} bytes")
        _check(trace, trace.url, size, digest.hexdigest())
        os.replace(part, path)
    except (OSError, http.client.HTTPException) as error:  # urllib's own are OSErrors
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise OSError(
            f"{trace.name}: cannot be downloaded, tried {trace.url}: {reason}. Where there is no "
            f"network, put the file at {path} by hand"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return path


def _check(trace: PublicTrace, source: str, size: int, sha256: str) -> None:
    """ValueError unless size and hash are the trace's, as far as these are known."""
    if trace.size is not None and size != trace.size:
        raise ValueError(f"{trace.name}: found {size} bytes at {source}, must be {trace.size}")
    if trace.sha256 is not None and sha256 != trace.sha256:
        raise ValueError(f"{trace.name}: found sha256 {sha256} at {source}, must be {trace.sha256}")
