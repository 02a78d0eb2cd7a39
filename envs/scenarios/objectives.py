"""What a scenario's requests must meet: one `[slo]` table, or a `[[slo]]` table for each class.

    [slo]                           [[slo]]                       [[slo]]
    ttft = 0.5                      name = "interactive"          name = "agents"
    tpot = 0.03                     share = 0.7                   share = 0.3
                                    ttft = 0.5                    ttft = 2.0
                                    tpot = 0.03                   ttft_per_token = 0.0002
                                                                  tpot = 0.1

With shares, each session belongs to a class that is drawn for it. Without any, the workload says
which: a trace may record classes, 0, 1, … in the order of the tables.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag

from prefixgym.envs.slo import Slo
from prefixgym.envs.workload.slo_mix import SloMix
from prefixgym.envs.workload.tape import Workload


class SloSection(BaseModel):
    """What a request must meet to count as good.

    Attributes:
        ttft: s to the first token.
        tpot: s per output token after the first, on the request's average.
        ttft_per_token: s that each prompt token adds to `ttft`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    ttft: float = Field(gt=0)
    tpot: float = Field(gt=0)
    ttft_per_token: float = Field(default=0.0, ge=0)


class SloClassSection(SloSection):
    """The same for one class of several.

    Attributes:
        name: of the class.
        share: of the sessions, in proportion to the other classes' shares.
    """

    name: str = Field(min_length=1)
    share: float | None = Field(default=None, gt=0)


def _consistent(classes: tuple[SloClassSection, ...]) -> tuple[SloClassSection, ...]:
    names = [c.name for c in classes]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"found two classes named {name!r}, names must differ")
    with_share = [c.name for c in classes if c.share is not None]
    if with_share and len(with_share) < len(classes):
        raise ValueError(
            f"found a share for {', '.join(with_share)} only, must be given for all or for none"
        )
    return classes


ONE, SEVERAL = "one class", "several classes"
"""Where pydantic says which form it took, these stand in the path to an error."""

Objectives = Annotated[
    Annotated[SloSection, Tag(ONE)]
    | Annotated[
        tuple[SloClassSection, ...],
        Field(min_length=1),
        AfterValidator(_consistent),
        Tag(SEVERAL),
    ],
    Discriminator(lambda value: SEVERAL if isinstance(value, (list, tuple)) else ONE),
]


def slos_of(objectives: SloSection | tuple[SloClassSection, ...]) -> tuple[Slo, ...]:
    """The objectives of class 0, 1, …."""
    classes = objectives if isinstance(objectives, tuple) else (objectives,)
    return tuple(Slo(c.ttft, c.tpot, c.ttft_per_token) for c in classes)


def with_classes(
    workload: Workload, objectives: SloSection | tuple[SloClassSection, ...]
) -> Workload:
    """The workload, its sessions in classes if those have shares."""
    if isinstance(objectives, SloSection):
        return workload
    shares = [c.share for c in objectives if c.share is not None]
    return SloMix(workload, shares) if shares else workload
