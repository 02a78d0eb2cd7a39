"""Formats by name and by first row, and options passed on."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prefixgym.envs.workload.readers import native
from prefixgym.envs.workload.readers.blocks import BLOCKS
from prefixgym.envs.workload.readers.registry import TRACE_FORMATS, detect_format, read_trace

MOONCAKE = {"timestamp": 0, "input_length": 10, "output_length": 3, "hash_ids": [0, 1, 2]}
BAILIAN = MOONCAKE | {"chat_id": 0, "parent_chat_id": -1}

FILES = {
    "mooncake": "mooncake_conversation/conversation_trace.jsonl.gz",
    "claude_code": "claude_code_v8_local/requests.jsonl.gz",
    "lmcache_agent": "lmcache_agent/requests.jsonl.gz",
    "dynamo_agent": "dynamo_pi_agent/requests.jsonl.gz",
    "azure": "azure_llm_2023/AzureLLMInferenceTrace_code.csv.gz",
}


@pytest.mark.parametrize("name", FILES)
def test_real_files_tell_their_format(traces: Path, name: str) -> None:
    assert detect_format(traces / FILES[name]).name == name


def test_the_first_row_tells_the_format(write: Callable[[Any], Path], tmp_path: Path) -> None:
    assert detect_format(write(["", MOONCAKE, "not read"])).name == "mooncake"
    assert detect_format(write([BAILIAN])).name == "bailian"
    flexlb = write([{"ts": 0, "il": 3000, "ol": 1, "bh": [0, 1]}])
    assert detect_format(flexlb).name == "flexlb"
    native.write([read_trace(flexlb)], tmp_path / "no.name")
    assert detect_format(tmp_path / "no.name").name == "native"


def test_an_unknown_file_gets_the_list_of_formats(write: Callable[[Any], Path]) -> None:
    for rows, found in (
        ([{"a": 1, "b": 2}], "a, b"),
        ([[1, 2]], "none"),
        (["some text, more"], "some text, more"),
        ([{"timestamp\n": 3}], "'timestamp\\n'"),
    ):
        path = write(rows)
        with pytest.raises(ValueError, match="no format fits, the formats are: mooncake ") as error:
            detect_format(path)
        assert str(error.value).startswith(f"{path}:1: found keys {found}: ")
        for entry in TRACE_FORMATS.values():
            assert entry.name in str(error.value) or entry.name == native.NAME
    both = MOONCAKE | {"ts": 0, "il": 3000, "ol": 1, "bh": [0, 1]}
    with pytest.raises(ValueError, match=r"state which: mooncake \(hash_ids, .*; flexlb \(bh, il"):
        detect_format(write([both]))
    assert len(read_trace(write([both]), "flexlb").requests) == 1
    with pytest.raises(ValueError, match=r"trace\.jsonl:2: not JSON, or cut off: found '{\"timest"):
        detect_format(write(["", '{"timestamp": 0, "inp']))
    with pytest.raises(ValueError, match=r"trace\.jsonl: found 0 rows, must be at least 1"):
        detect_format(write([""]))
    with pytest.raises(FileNotFoundError):
        detect_format("absent.jsonl")


def test_options_reach_the_reader(write: Callable[[Any], Path]) -> None:
    path = write([MOONCAKE, MOONCAKE | {"timestamp": 7}])
    tape = read_trace(path, block_size=2, trace_block_size=4, start=1)
    assert (tape.block_size, len(tape.requests)) == (2, 1)
    with pytest.raises(ValueError, match="format: found 'monocake', must be one of native, "):
        read_trace(path, "monocake")
    with pytest.raises(ValueError, match="open_loop: no such option of the format mooncake, "):
        read_trace(path, open_loop=True)
    with pytest.raises(ValueError, match=r"trace\.jsonl:1: chat_id: missing"):
        read_trace(path, "bailian")
    assert TRACE_FORMATS["mooncake"].options == {"start": 0, "stop": None}
    with pytest.raises(ValueError, match="open_loop: found 'no', must be true or false"):
        read_trace(write([BAILIAN]), trace_block_size=4, open_loop="no")


def test_packed_files_are_read_alike(write: Callable[[Any], Path], tmp_path: Path) -> None:
    path = write([BAILIAN])
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    plain = read_trace(path, trace_block_size=4)
    np.testing.assert_array_equal(read_trace(packed, trace_block_size=4).requests, plain.requests)


def test_each_format_states_its_blocks() -> None:
    assert set(BLOCKS) == set(TRACE_FORMATS) - {"native", "azure"}
    assert {name: entry.block_convention for name, entry in TRACE_FORMATS.items()} == {
        "native": "as stated",
        "mooncake": "any, ceil",
        "bailian": "16, ceil",
        "claude_code": "64, floor",
        "lmcache_agent": "64, floor",
        "flexlb": "1024, floor",
        "dynamo_agent": "any, ceil",
        "azure": "no ids",
    }
