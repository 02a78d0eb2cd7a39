import re

import pytest
from made_frames import made_frame

from prefixgym.envs.rendering.text import WIDTH, frame_text


def test_a_frame_reads_as_expected() -> None:
    assert frame_text(made_frame(4)).splitlines() == [
        "random on nothing at 2 requests/s  24 of 1,000 requests routed, 12.50 s",
        "cluster  4 x llama-3.1-8b/h100/tp1",
        "request  24: 2,000 tokens of session 7, 500 ms after the last; "
        "wanted: 450 ms TTFT, 40 ms TPOT",
        "decision 23 to instance 1: 256 of 1,000 tokens cached, best 512",
        "so far   SLO met 75 %  good 1.2/s  p50 TTFT 150 ms  p99 TTFT 1.25 s  p99 TPOT 31 ms  "
        "hits 50 %",
        "",
        "  #  queue  run  KV memory        hit first token  routed  hits missed  recent",
        "  0      0    0  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒  64 %      125 ms      10  25 %      0  |||",
        "> 1      4   10  ███████▒▒▒····   0 %      1.12 s      11  25 %      5  |x|",
        "x 2      0   20  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒   0 %      125 ms      12     -      0  |||",
        "  3      0   30  ▒▒▒▒▒▒▒▒▒▒▒▒▒▒   0 %      125 ms      13  25 %      0  |||",
    ]


def test_many_instances_stand_in_two_columns() -> None:
    lines = frame_text(made_frame(17)).splitlines()
    assert lines[-1] == "  8   0  80 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒   0 %   125 ms    0"
    assert lines[-8] == (
        "> 1   4  10 ████████▒▒▒▒▒····   0 %   1.12 s    5"
        "   10   0 100 ▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒▒   0 %   125 ms    0"
    )


@pytest.mark.parametrize("num_instances", [4, 16, 17, 64])
@pytest.mark.parametrize("mixed", [False, True])
def test_every_line_fits(num_instances: int, mixed: bool) -> None:
    lines = frame_text(made_frame(num_instances, mixed=mixed)).splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert ("a100" in "".join(lines)) == mixed
    heading, *rows = lines[6:]
    assert len({len(row.rstrip("x| ")) for row in rows[:2]}) == 1  # columns stand in line
    assert heading.count("KV memory") == (1 if num_instances <= 16 else 2)


def test_colours_only_mark_the_same_text_up() -> None:
    for num_instances in (4, 64):
        frame = made_frame(num_instances)
        coloured = frame_text(frame, colours=True)
        assert "\x1b[33m" in coloured
        assert re.sub(r"\x1b\[\d+m", "", coloured) == frame_text(frame)


def test_after_the_end_no_request_is_shown() -> None:
    text = frame_text(made_frame(2, over=True))
    assert "request  none is left: the episode is over" in text
    assert "1.12 s" not in text
