"""What the attributes of a class mean, from the `Attributes:` section of its docstring."""

import inspect
import re
from typing import Any

_SECTION = re.compile(r"^Attributes:\n((?:[ ]{4}.*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^    (\w[\w, ]*): (.*(?:\n        .*)*)", re.MULTILINE)


def attributes_of(cls: type[Any]) -> dict[str, str]:
    """Each documented attribute of `cls` and its bases, with its description on one line."""
    found: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        section = _SECTION.search(inspect.cleandoc(part.__dict__.get("__doc__") or ""))
        for names, text in _ENTRY.findall(section[1]) if section else ():
            for name in names.split(", "):
                found[name] = re.sub(r"\s+", " ", text)
    return found


def summary_of(cls: type[Any]) -> str:
    """The first sentence of its docstring."""
    return inspect.cleandoc(cls.__doc__ or "").partition("\n")[0]
