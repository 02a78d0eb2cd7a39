from dataclasses import replace

import numpy as np
import pytest
from made_frames import made_frame
from numpy.typing import NDArray
from PIL import ImageColor

from prefixgym.envs.rendering.picture import colours, draw

BLUE, VERMILLION = ImageColor.getrgb("#0072B2"), ImageColor.getrgb("#D55E00")


def pixels(picture: NDArray[np.uint8], colour: tuple[int, ...]) -> int:
    return int((picture == np.array(colour)).all(axis=-1).sum())


@pytest.mark.parametrize("num_instances", [2, 16, 25, 64])
def test_a_picture_shows_something_of_a_size_set_by_the_instances(num_instances: int) -> None:
    frame = made_frame(num_instances)
    picture = draw(replace(frame, decision=None))
    assert picture.dtype == np.uint8
    assert picture.shape == draw(made_frame(num_instances, over=True)).shape
    assert picture.flags.writeable
    assert 0.02 < (picture != 255).any(axis=-1).mean() < 0.5


def test_equal_frames_give_equal_pictures_and_others_do_not() -> None:
    frame = made_frame(8)
    assert np.array_equal(draw(frame), draw(made_frame(8)))
    for change in (
        {"title": "another"},
        {"decision": None},
        {"running": frame.running + 1},
        {"waiting": frame.waiting + 1},
        {"kv_cached": frame.kv_cached / 2},
        {"hit": frame.hit / 2},
        {"backlog": frame.backlog / 4},
        {"prefill": frame.prefill * 2},
        {"routed": frame.routed + 1},
        {"missed": frame.missed + 1},
        {"hit_rate": frame.hit_rate / 2},
        {"recent": -frame.recent},
    ):
        assert not np.array_equal(draw(frame), draw(replace(frame, **change))), change


def test_a_longer_queue_is_a_longer_bar() -> None:
    frame = made_frame(8)
    empty = replace(frame, running=0 * frame.running, waiting=0 * frame.waiting)
    few, many = (replace(empty, running=empty.running + n) for n in (4, 12))
    # 16 requests fill a bar of 134 x 17 pixels, on each of eight instances.
    bars = [pixels(draw(f), BLUE) for f in (empty, few, many)]
    assert bars[1] - bars[0] == pytest.approx(8 * 134 * 17 * 4 / 16, rel=0.05)
    assert bars[2] - bars[0] == pytest.approx(8 * 134 * 17 * 12 / 16, rel=0.05)


def test_missed_objectives_are_vermillion() -> None:
    frame = made_frame(8)
    assert pixels(draw(replace(frame, recent=0 * frame.recent)), VERMILLION) > 3 * pixels(
        draw(frame), VERMILLION
    )


@pytest.mark.parametrize("num_instances", [8, 64])
def test_the_palette_has_nearly_all_that_a_picture_needs(num_instances: int) -> None:
    picture = draw(made_frame(num_instances, mixed=True)).astype(int)
    palette = np.array(colours().getpalette()).reshape(-1, 3)
    codes = np.unique(picture @ [1 << 16, 1 << 8, 1])
    found = codes[:, None, None] >> [16, 8, 0] & 255
    distance = np.abs(found - palette).sum(axis=-1).min(axis=1)
    assert distance.max() <= 40  # of 765
