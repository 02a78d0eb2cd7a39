"""Values as TOML spells them."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any


def toml_text(value: Any) -> str:
    """Numbers, strings, flags, lists, and tables and dataclasses as inline tables without None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return toml_text({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    if isinstance(value, Mapping):
        items = [f"{key} = {toml_text(v)}" for key, v in value.items() if v is not None]
        return "{ " + ", ".join(items) + " }"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_text, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # inf, -inf, nan
    return json.dumps(value, ensure_ascii=False)
