"""Downloads: whole and checked, or nothing; a server of our own stands for the network."""

import dataclasses
import functools
import gzip
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from prefixgym.envs.workload.readers.registry import TRACE_FORMATS
from prefixgym.experiments.fetch import PUBLIC_TRACES, PublicTrace, fetch, trace_folder

DATA = b"0123456789" * 20_000


class Handler(BaseHTTPRequestHandler):
    """/whole has the data, /short claims more than it sends, all else is not there."""

    def do_GET(self) -> None:
        if self.path not in ("/whole.jsonl", "/short.jsonl"):
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(DATA) + (self.path == "/short.jsonl")))
        self.end_headers()
        self.wfile.write(DATA)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=functools.partial(http.serve_forever, 0.01))
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()
        thread.join()


@pytest.fixture
def trace(server: str) -> PublicTrace:
    digest = hashlib.sha256(DATA).hexdigest()
    return PublicTrace("made", f"{server}/whole.jsonl", "made here", len(DATA), digest)


def test_a_file_is_downloaded_once(trace: PublicTrace, tmp_path: Path) -> None:
    pieces: list[int] = []
    path = fetch(trace, tmp_path / "new" / "folder", pieces.append)
    assert path == tmp_path / "new" / "folder" / "made.jsonl"
    assert path.read_bytes() == DATA
    assert sum(pieces) == len(DATA)
    away = dataclasses.replace(trace, url=trace.url.replace("whole", "gone"))
    assert fetch(away, path.parent, pieces.append) == path
    assert sum(pieces) == len(DATA)


def test_wrong_bytes_never_arrive(trace: PublicTrace, tmp_path: Path) -> None:
    wrong = dataclasses.replace(trace, sha256="0" * 64)
    with pytest.raises(
        ValueError, match=r"made: found sha256 [0-9a-f]{64} at http.*, must be 0{64}"
    ):
        fetch(wrong, tmp_path)
    with pytest.raises(ValueError, match=r"made: found 200000 bytes at http.*, must be 7"):
        fetch(dataclasses.replace(trace, size=7), tmp_path)
    short = dataclasses.replace(trace, url=trace.url.replace("whole", "short"), size=None)
    with pytest.raises(OSError, match=r"short\.jsonl: ended after 200000 of 200001 bytes"):
        fetch(short, tmp_path)
    assert list(tmp_path.iterdir()) == []
    unknown = dataclasses.replace(trace, size=None, sha256=None)
    fetch(unknown, tmp_path).write_bytes(b"changed")
    with pytest.raises(ValueError, match=r"made: found 7 bytes at .*made\.jsonl, must be 200000"):
        fetch(trace, tmp_path)


def test_without_a_server_it_says_what_to_do(trace: PublicTrace, tmp_path: Path) -> None:
    by_hand = rf"Where there is no network, put the file at {tmp_path}/made\.jsonl by hand"
    gone = dataclasses.replace(trace, url=trace.url.replace("whole", "gone"))
    with pytest.raises(OSError, match=rf"tried http.*gone\.jsonl: Not Found\. {by_hand}"):
        fetch(gone, tmp_path)
    refused = dataclasses.replace(trace, url="http://127.0.0.1:9/whole.jsonl")
    with pytest.raises(OSError, match=rf"tried http://127.*refused\. {by_hand}"):
        fetch(refused, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_traces_are_kept_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PREFIXGYM_CACHE_DIR", str(tmp_path))
    assert trace_folder() == tmp_path / "traces"
    monkeypatch.delenv("PREFIXGYM_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert trace_folder() == tmp_path / "prefixgym" / "traces"


def test_public_traces_have_formats_that_are_read(traces: Path) -> None:
    files = {
        "mooncake-conversation": "mooncake_conversation/conversation_trace.jsonl.gz",
        "mooncake-synthetic": "mooncake_synthetic/synthetic_trace.jsonl.gz",
        "azure-code-2023": "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz",
        "azure-conversation-2023": "azure_llm_2023/AzureLLMInferenceTrace_conv.csv.gz",
    }
    for name, file in files.items():
        raw = gzip.decompress((traces / file).read_bytes())
        assert PUBLIC_TRACES[name].size == len(raw)
        assert PUBLIC_TRACES[name].sha256 == hashlib.sha256(raw).hexdigest()
    for trace in PUBLIC_TRACES.values():
        assert trace.name.split("-")[0] in TRACE_FORMATS
        assert trace.url.startswith("https://")
