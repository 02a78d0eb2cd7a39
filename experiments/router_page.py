"""docs/routers.md: which routers there are, what each knows, how to add one."""

from prefixgym.baselines.router import router_class
from prefixgym.experiments.attributes import summary_of
from prefixgym.experiments.router_tables import families, family_tables

_HEAD = """\
# Routers

<!-- Written by `prefixgym routers page`: edit the routers' docstrings, not this. -->

Every router that the field runs or has published, deciding as the real one does, under the real
one's parameter names and defaults. `prefixgym routers NAME` explains one: its rule, its ties, what
of the real router it leaves out, and its parameters, which `--set KEY=VALUE` changes:

```sh
prefixgym routers cache_aware
prefixgym evaluate cache_aware --scenario chat-8 --set balance_abs_threshold=16
prefixgym leaderboard --scenario chat-8 --router cache_aware --router dynamo
```

Where a router installs as a package, tests hold ours to its decisions: see
[`tests/baselines/peers`](../tests/baselines/peers).

## What a router knows

| source | what it is |
|:--|:--|
| ring | a hash of a key, the session or the prefix: a stable home, and nothing to keep |
| history | the router's own choices: who was sent which prefix; no engine ever confirms it |
| index | blocks that instances reported, as late and lossy as `knowledge.index` says |
| ledger | the router's own requests in flight and the work booked for them |
| telemetry | state of the engines, polled every `knowledge.telemetry.interval` |
| truth | what no router knows; only references do |

## A router of one's own

One file. It gets a batch of decisions, one for each environment, and returns an instance for each;
with scores that is two lines. `view` has the requests, the instances and what happened since the
last decision (`prefixgym.envs.view.view`):

```python
from dataclasses import dataclass

from prefixgym.baselines.router import register
from prefixgym.baselines.scored import ScoredRouter


@register
@dataclass
class ShortestQueue(ScoredRouter):
    \"\"\"The least prefill work ahead, less what the cache saves.\"\"\"

    name = "shortest_queue"
    source = "my own"
    family = "mine"
    knows = ("index", "ledger")

    hit_weight: float = 1.0

    def scores(self, view):
        ahead, hit = view.instances["prefill_tokens"], view.instances["hit_tokens"]
        return ahead - self.hit_weight * hit
```

An entry point of the package that has the file makes it known to every command, as
`prefixgym evaluate shortest_queue --set hit_weight=0.5`:

```toml
[project.entry-points."prefixgym.routers"]
shortest_queue = "shortest_queue"
```

What a router remembers is made in `reset`, taken in from `view.events` in `hear` and changed in
`commit`; see [`baselines/scored.py`](../baselines/scored.py), and any file beside it for a model.
Events of kind `ENDED` or above end a request: it has finished, failed or been cancelled. Where a
scenario has several routers side by side there are several copies of it, and `overhear` tells each
what the others have decided.
A router that looks at every environment by a Python loop works too, only slower.
"""


def router_page() -> str:
    """The page, in Markdown."""
    parts = [_HEAD, "## All routers\n"]
    for table, names in zip(family_tables(), families().values(), strict=True):
        parts.append(table.markdown())
        parts += [f"- `{name}`: {summary_of(router_class(name))}" for name in names]
        parts.append("")
    return "\n".join(parts)
