"""What do restarts, crashes, slow instances and leaking books cost?"""

import json

from prefixgym.experiments.paper.study import Setting, Study, Sweep

_RETRY = {"clients.retries": "1", "clients.retry_delay": "0.050"}


def _faults(*tables: dict[str, object]) -> dict[str, str]:
    """As text for `load_scenario`: a list of TOML inline tables."""
    texts = (
        "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items()) + " }"
        for table in tables
    )
    return {"faults": f"[{', '.join(texts)}]"}


def _restarts(count: int) -> Setting:
    """So many instances restart within 48 s, one after the other."""
    if count == 0:
        return Setting("0", _faults())
    return Setting(
        f"{count}",
        _faults(
            {
                "kind": "restart",
                "at": 10.0,
                "instances": list(range(count)),
                "stagger": 48.0 / count,
                "lasts": 8.0,
            }
        ),
    )


def _slow(factor: float) -> Setting:
    if factor == 1.0:
        return Setting("1", _faults())
    return Setting(
        f"{factor:g}", _faults({"kind": "slow", "at": 20.0, "instances": [3], "factor": factor})
    )


_NO_CRASH = Setting("no crash", _faults(), apart=True)

STUDY = Study(
    name="faults",
    question="What does it cost that instances fail, and how soon must a router know?",
    sweeps=(
        Sweep(
            name="restarts",
            title="Restarts that every router knows of; requests there are sent again (chat-8)",
            axis="restarts an episode, each 8 s",
            scenario="chat-8",
            common=_RETRY,
            settings=tuple(map(_restarts, (0, 1, 2, 4, 8))),
        ),
        Sweep(
            name="crash",
            title="One of eight crashes for 40 s without a word; three checks must fail (chat-8)",
            axis="interval between two health checks",
            scenario="chat-8",
            common=_RETRY | _faults({"kind": "crash", "at": 15.0, "instances": [2], "lasts": 40.0}),
            settings=(
                _NO_CRASH,
                *(
                    Setting(f"{seconds} s", {"knowledge.health.interval": f"{seconds}.0"})
                    for seconds in (1, 5, 10, 30)
                ),
            ),
        ),
        Sweep(
            name="slow",
            title="One of eight becomes slow and nobody says so (chat-8)",
            axis="times as slow",
            scenario="chat-8",
            settings=tuple(map(_slow, (1.0, 1.5, 2.0, 4.0))),
        ),
        Sweep(
            name="leaks",
            title="One client in ten goes away; routers never hear of some (chat-8)",
            axis="cancelled requests that stay on the router's books",
            scenario="chat-8",
            common={"clients.cancel": "0.1", "clients.cancel_after": "3.0"},
            settings=tuple(
                Setting(f"{share} %", {"clients.leak": f"{share / 100}"})
                for share in (0, 20, 50, 100)
            ),
        ),
    ),
)
