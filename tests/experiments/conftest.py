import json
from pathlib import Path

import pytest

TINY = """
name = "tiny"
description = "Two small instances."
source = "Made up."
rates = [5, 20, 80]

[cluster]
block_size = 64

[[cluster.instances]]
profile = "llama-3.1-8b/h100/tp1"
count = 2
kv_blocks = 400

[workload]
generator = "shared-prompts"
num_requests = 150
num_groups = 10
system_tokens = 2000
question_tokens = 100
output_tokens = 50

[slo]
ttft = 0.3
tpot = 0.03

[seeds]
train = { first = 0, count = 10 }
validation = { first = 10, count = 10 }
test = { first = 20, count = 10 }
"""


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A scenario that is evaluated in milliseconds."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Forty requests in Mooncake's format, in pairs that share a block of 512 tokens."""
    path = tmp_path / "trace.jsonl"
    rows = [
        {
            "timestamp": 500 * i,
            "input_length": 513 if i % 2 else 1024,
            "output_length": 20,
            "hash_ids": [i // 2, 1000 + i],
        }
        for i in range(40)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
