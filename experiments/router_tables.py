"""Routers as tables: a row each in the table of its family, or one with its parameters."""

import dataclasses
import inspect
import re
from typing import Any, get_args

from prefixgym.baselines.router import Source, make_router, router_class, router_names
from prefixgym.experiments.attributes import attributes_of, summary_of
from prefixgym.experiments.table import Table

_FIRST, _LAST = "load only", "references"
# Sections of the notes that the project is written from, which users do not have.
_SECTIONS = re.compile(r",? ?\((?:§|part B)[^)]*\)")


def router_facts(name: str) -> dict[str, Any]:
    """What a router is, for programs; its parameters with their defaults."""
    router = router_class(name)
    return {
        "family": router.family,
        "source": source_of(name),
        "knows": list(router.knows),
        "rejects": router.may_reject,
        "summary": summary_of(router),
        "parameters": dataclasses.asdict(make_router(name)),
    }


def source_of(name: str) -> str:
    """Where the rule comes from, as a reader can find it."""
    return _SECTIONS.sub("", router_class(name).source)


def families() -> dict[str, list[str]]:
    """The routers of each family by name: those by load alone first, references last."""
    found: dict[str, list[str]] = {}
    for name in sorted(router_names()):  # modules may have been imported in any order
        found.setdefault(router_class(name).family, []).append(name)
    order = sorted(found, key=lambda family: (family == _LAST, family != _FIRST, family.lower()))
    return {family: found[family] for family in order}


def family_tables() -> list[Table]:
    """A table for each family: what each router knows, and where its rule comes from."""
    sources = get_args(Source)
    return [
        Table(
            title=family,
            headings=("router", *sources, "source"),
            rows=[
                (
                    name,
                    *("●" if source in router_class(name).knows else "" for source in sources),
                    source_of(name),
                )
                for name in names
            ],
            prose=True,
        )
        for family, names in families().items()
    ]


def parameters_table(name: str) -> Table:
    """Each parameter with its default and its meaning."""
    meanings = attributes_of(router_class(name))
    rows = [
        (key, str(value), meanings.get(key, ""))
        for key, value in dataclasses.asdict(make_router(name)).items()
    ]
    return Table("Parameters", ("parameter", "default", "meaning"), rows, prose=True)


def rule_of(name: str) -> str:
    """The docstring without its list of parameters."""
    text = inspect.cleandoc(router_class(name).__doc__ or "")
    return re.split(r"^Attributes:$", text, maxsplit=1, flags=re.MULTILINE)[0].rstrip()
