"""How a router comes to know of the cluster, and how late, partial and wrong that is.

Every section is a part of a scenario file, see `prefixgym.envs.scenarios.schema`. Times are
seconds. Responses to a router's own requests always arrive at once.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Delivery(_Section):
    """The way of messages from an instance to a router.

    Attributes:
        delay: s that every message takes.
        jitter: s, uniformly up to so much more for each; messages may overtake each other.
        loss: share of messages that never arrive.
        duplication: share of messages that arrive twice, each on a way of its own.
    """

    delay: float = Field(default=0.0, ge=0)
    jitter: float = Field(default=0.0, ge=0)
    loss: float = Field(default=0.0, ge=0, le=1)
    duplication: float = Field(default=0.0, ge=0, le=1)


class Snapshots(_Section):
    """An instance sends the ids of all its cached blocks with a version, as FlexLB polls them.

    Attributes:
        interval: s between two; with `adaptive`, at first. FlexLB starts with 0.1.
        adaptive: each time one is taken in, its interval is multiplied by 0.7 if the last 30 (at
            least 3) have changed more than `target` blocks on average, by 1.3 if fewer; a tenth of
            `target` to either side is near enough.
        shortest: s, least adaptive interval.
        longest: s, greatest adaptive interval.
        target: changed blocks.
        accept_restarts: an instance that has restarted, and counts its versions (the changes of its
            cache) anew, is listened to at once. FlexLB ignores it until its version has passed the
            old one, or until it was found to be down and is forgotten.
    """

    interval: float = Field(default=0.1, gt=0)
    adaptive: bool = False
    shortest: float = Field(default=0.05, gt=0)
    longest: float = Field(default=3.0, gt=0)
    target: int = Field(default=30, ge=0)
    accept_restarts: bool = True


class Events(_Section):
    """An instance tells of every engine step what it stored and removed, as vLLM's KV events.

    Messages are numbered from 0 in each incarnation of an instance. The switches are the
    protections of a router's indexer (Dynamo, llm-d); each can be left out to see what it is worth.
    None of them finds out that a publisher was dead for a while: it numbers nothing meanwhile.

    Attributes:
        ignore_old: a message whose number is not above the last one taken in is dropped.
        recover: the instance is asked for the messages whose numbers are missing; without it, what
            comes is taken in as it comes.
        buffer: messages that are held back at most, until the missing ones are there; the oldest
            are dropped. 0: what follows a gap is taken in at once, and the answer after it, as
            Mooncake's conductor does.
        replay: messages that an instance keeps for those who ask; whoever asks for older ones gets
            the whole cache instead (vLLM keeps 10,000).
        round_trip: s from the question to the answer; neither is ever lost.
        barriers: every message names its incarnation. With the first of a new one nothing counts
            any more that was told before, as with one that says that the cache was cleared.
            Without, a router hears neither (AIBrix #2287): after a restart numbers just begin anew.
        require_parent: a block is only taken in where the block before it is known, as Dynamo's
            tree does (and then lacks all that follows a lost block).
        drop_descendants: removing a block removes what follows it in a prompt (Dynamo #8473).
        tombstones: a change of a block in a message that comes late does not undo that of a later
            message. Without, a stored one raises a removed block from the dead (Mooncake #4159).
            Matters only where messages are taken in out of order.
    """

    ignore_old: bool = True
    recover: bool = True
    buffer: int = Field(default=1024, ge=0)
    replay: int = Field(default=10_000, ge=0)
    round_trip: float = Field(default=0.002, ge=0)
    barriers: bool = True
    require_parent: bool = False
    drop_descendants: bool = False
    tombstones: bool = True


class OwnDecisions(_Section):
    """What the router assumes to be cached because it sent it there itself.

    With `source = "none"` this is the approximate index of Dynamo and llm-d; beside snapshots or
    events these are speculative entries, which bridge the time until the instance reports.

    Attributes:
        ttl: s for which a block is assumed to be cached after a request that has it was routed.
            Dynamo's approximate mode has 120, speculative entries 2 (llm-d) or 5.
        blocks: most blocks assumed for an instance, least recently routed ones go first; 0: no
            limit. llm-d's approximate index has 31,250.
    """

    ttl: float = Field(gt=0)
    blocks: int = Field(default=0, ge=0)


class Index(_Section):
    """The router's index of cached blocks, `hit_tokens` of the view.

    Attributes:
        source: `engine`: always the truth; `snapshots` or `events`: what has arrived of them;
            `none`: instances tell nothing.
        delivery: the way of snapshots and events.
        snapshots: their interval.
        events: protections of those who hear them.
        own: what the router assumes of its own decisions.
        forget_down: what is known of an instance is forgotten when it is found to be down.
    """

    source: Literal["engine", "snapshots", "events", "none"] = "engine"
    delivery: Delivery = Delivery()
    snapshots: Snapshots = Snapshots()
    events: Events = Events()
    own: OwnDecisions | None = None
    forget_down: bool = True

    @model_validator(mode="after")
    def _one_source(self) -> "Index":
        if self.source == "engine" and (self.own is not None or self.delivery != Delivery()):
            raise ValueError("source: found 'engine', which neither delivery nor own can add to")
        if self.source == "none" and self.own is None:
            raise ValueError("own: missing, without a source there is nothing else")
        return self


class Telemetry(_Section):
    """The router polls an instance's queue and memory.

    Instances take turns: instance i of N is polled i/N of an interval later than instance 0, as by
    unsynchronised processes.

    Attributes:
        interval: s between two polls of an instance; 0: always up to date, whatever happens to the
            instance or its publisher.
        jitter: s, each poll comes uniformly up to so much later.
        loss: share of polls that fail; what was polled before stands.
    """

    interval: float = Field(default=0.0, ge=0)
    jitter: float = Field(default=0.0, ge=0)
    loss: float = Field(default=0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _polls(self) -> "Telemetry":
        if self.interval == 0 and (self.jitter > 0 or self.loss > 0):
            raise ValueError("interval: found 0, at which there are no polls to be late or lost")
        if self.jitter > self.interval:
            raise ValueError(f"jitter: found {self.jitter}, must be at most the interval")
        return self


class Health(_Section):
    """How a router finds out that an instance has died without a word.

    Attributes:
        interval: s between two checks of an instance.
        failures: checks in a row that must fail before it is marked down. One that succeeds marks
            it up again.
    """

    interval: float = Field(default=10.0, gt=0)
    failures: int = Field(default=3, ge=1)


class Replicas(_Section):
    """Several routers side by side; each request reaches one of them.

    Each has its own history, ledger, index and telemetry.

    Attributes:
        count: how many.
        shares: of the traffic, one for each; equal by default.
        load_sync: s between two exchanges of ledgers, in which each learns what the others have in
            flight (AIBrix: 0.1); 0: never.
        history_sync: s after which a decision is known to the histories of the others; left out:
            never.
        shared_index: all have one index, which is fed by the decisions and instances of all.
    """

    count: int = Field(default=1, ge=1, le=64)
    shares: tuple[float, ...] = ()
    load_sync: float = Field(default=0.0, ge=0)
    history_sync: float | None = Field(default=None, ge=0)
    shared_index: bool = False

    @model_validator(mode="after")
    def _fits(self) -> "Replicas":
        if self.shares and (len(self.shares) != self.count or min(self.shares) <= 0):
            raise ValueError(
                f"shares: found {list(self.shares)}, must be {self.count} numbers above 0"
            )
        return self


class Knowledge(_Section):
    """What the router knows of the cluster, and from where. By default everything, at once.

    Attributes:
        index: cached blocks.
        telemetry: queues and memory.
        health: who is there.
        replicas: routers side by side.
    """

    index: Index = Index()
    telemetry: Telemetry = Telemetry()
    health: Health = Health()
    replicas: Replicas = Replicas()
