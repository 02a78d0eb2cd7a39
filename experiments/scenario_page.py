"""docs/scenarios.md: what the built-in scenarios are, and how contested."""

from collections.abc import Sequence

from prefixgym.envs.scenarios.knee import LADDER
from prefixgym.envs.scenarios.schema import Scenario
from prefixgym.experiments.capacity import CAPACITY_ATTAINMENT
from prefixgym.experiments.knee import COMPARED_ROUTERS, KNEE_ROUTER
from prefixgym.experiments.leaderboard import TROUBLED
from prefixgym.experiments.scenario_tables import scenarios_table
from prefixgym.experiments.table import Table

_HEAD = f"""\
# Scenarios

<!-- Written by `prefixgym scenarios page`: edit the scenarios' files, not this. -->

A scenario is a cluster, a workload, objectives and what the router may know, in one TOML file of
[`envs/scenarios/`](../envs/scenarios). `prefixgym scenarios NAME` explains every key of one and
shows what its requests are like; `--set KEY=VALUE` changes any of them for a command, and a file of
your own is as good as a built-in one:

```sh
prefixgym evaluate loadaware --scenario chat-8 --set cluster.instances=16 --set slo.ttft=1.0
cp envs/scenarios/chat-8.toml mine.toml        # edit it, then
prefixgym scenarios knee mine.toml --write     # place its ladder of loads
prefixgym leaderboard --scenario mine.toml
```

**The ladder.** A scenario's *knee* is the highest rate at which a named router keeps
{CAPACITY_ATTAINMENT:.0%} of the requests within their objectives, found by bisection on validation
seeds. The router is `{KNEE_ROUTER}`, or another where that one fails long before. The loads are
{", ".join(f"{share:g}" for share in LADDER)} times the knee in every scenario. In closed loops a
rate is what a cluster serves that keeps up (`envs/workload/generators/agentic.py`).

**Seeds.** Each scenario has seeds to train, to validate (choose, tune, place the ladder) and to
test with, and no seed is in two of these. **Hit** is the share of the prompt tokens that a cache
without limits would find in an episode, cold at first.
"""

_ABOUT_CONTEST = """\
Bold: the best of a row. Routers differ by tens of points where prefixes are worth something. They
differ least in `clients-8`, where three quarters of a prompt are the request's own. In
`unique-prompts-8` nothing is shared: there they differ by how they balance load alone.
"""

_ABOUT_CALM = """\
## Where all goes well
"""

_ABOUT_TROUBLED = """\
## Where something goes wrong

Instances fail or come and go, clients give up, demand shifts, or what routers hear is late, partial
or of their own requests only. The keys: [faults.md](faults.md) and [knowledge.md](knowledge.md).
`prefixgym leaderboard --suite faults` plays all of these, the suite `default` three: `crash-8`,
`replicas-8` and `stale-index-8`. Whatever is not said to differ from the scenario they name is as
there, so that the two can be compared at one rate.
"""


def scenario_page(scenarios: Sequence[Scenario]) -> str:
    """The page, in Markdown."""
    tables = scenarios_table(scenarios), _contest(scenarios)
    parts = [_HEAD, *(table.markdown() for table in tables), _ABOUT_CONTEST]
    calm = [scenario for scenario in scenarios if scenario.name not in TROUBLED]
    parts += [_ABOUT_CALM, *map(_description, calm)]
    parts += [_ABOUT_TROUBLED, *(_description(s) for s in scenarios if s not in calm)]
    return "\n".join(parts)


def _description(scenario: Scenario) -> str:
    return f"### {scenario.name}\n\n{scenario.description}\n\n{scenario.source.strip()}\n"


def _contest(scenarios: Sequence[Scenario]) -> Table:
    """How far routers lie apart at the knee."""
    rows = []
    for scenario in scenarios:
        if scenario.knee is not None:
            compared = scenario.knee.compared
            best = max(compared.values())
            found = (_mark(compared[router], best) for router in COMPARED_ROUTERS)
            rows.append((scenario.name, scenario.knee.router, *found))
    title = "Attainment at the knee, %, of some routers with default parameters"
    return Table(title, ("scenario", "knee of", *COMPARED_ROUTERS), rows)


def _mark(share: float, best: float) -> str:
    """In percent, bold if it is the best."""
    return f"**{100 * share:.1f}**" if share == best else f"{100 * share:.1f}"
