"""What is it worth to know which instance has cached what? The same learner, told more and more.

A learned router needs weights for each level: `learned/information-SCENARIO-LEVEL`, or what
`--learned` says, with `{scenario}` and `{setting}` in place of the two. docs/learned.md has the
commands that train them. A level of the hash ring alone is left out: the observation does not say
where a ring would send a request.
"""

from prefixgym.experiments.paper.study import INFORMED, Setting, Study, Sweep

_SNAPSHOTS = {"knowledge.index.source": '"snapshots"'}

# An index without a source must have own decisions: these are forgotten before they can be used.
_NOTHING = {"knowledge.index.source": '"none"', "knowledge.index.own.ttl": "0.000001"}
_OWN = {
    "knowledge.index.source": '"none"',
    "knowledge.index.own.ttl": "120.0",  # Dynamo's approximate mode
    "knowledge.index.own.blocks": "31_250",  # llm-d's
}

LEVELS = (
    Setting("no caches", _NOTHING, slug="none", known=("index", "ledger", "telemetry"), apart=True),
    Setting(
        "own history",
        _OWN,
        slug="history",
        known=("history", "ring", "index", "ledger", "telemetry"),
        apart=True,
    ),
    Setting(
        "snapshots, 5 s",
        _SNAPSHOTS | {"knowledge.index.snapshots.interval": "5.0"},
        slug="snapshots-5s",
    ),
    Setting(
        "snapshots, 1 s",
        _SNAPSHOTS | {"knowledge.index.snapshots.interval": "1.0"},
        slug="snapshots-1s",
    ),
    Setting("truth", {"knowledge.index.source": '"engine"'}, slug="truth"),
)


def _sweep(name: str, title: str, scenario: str, rate: float, requests: int) -> Sweep:
    return Sweep(
        name=name,
        title=title,
        axis="what routers know of caches",
        scenario=scenario,
        settings=LEVELS,
        rate=rate,
        requests=requests,
        arms=INFORMED,
        varies="index",
    )


# Every rate is the highest at which the best of three handcrafted routers, told the truth, attains
# 97 %: `python -m prefixgym.experiments.paper.contested information`.
STUDY = Study(
    name="information",
    question="What is it worth to know which instance has cached what?",
    sweeps=(
        _sweep("calm", "Conversations that live for minutes (chat-8)", "chat-8", 21.5, 6000),
        _sweep(
            "brief", "Prompts that live two seconds (stale-index-8)", "stale-index-8", 25.1, 2000
        ),
    ),
    learned=("learned/information-{scenario}-{setting}",),
)
