import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from prefixgym.baselines.router import make_router
from prefixgym.envs.rendering.frame import Frame
from prefixgym.envs.scenarios.registry import load_scenario
from prefixgym.experiments.cli import app
from prefixgym.experiments.evaluate import evaluate_router
from prefixgym.experiments.watch import Episode, Film, watch


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def episode(tiny: Path, **options: Any) -> Episode:
    return Episode(load_scenario(str(tiny)), 20.0, make_router("cache_aware"), 20, **options)


def test_the_last_frame_agrees_with_the_evaluation(tiny: Path) -> None:
    watched = episode(tiny, every=40)
    *_, last = watched.frames()
    row = evaluate_router(make_router("cache_aware"), watched.scenario, 20.0, [20]).row(
        0, named=True
    )
    totals = last.totals
    assert last.request is None
    assert totals.ended == row["requests"] == 150
    assert totals.attainment == row["attainment"]
    assert totals.hit_rate == row["hit_rate"]
    assert (totals.ttft_p50, totals.ttft_p99) == (row["ttft_p50"], row["ttft_p99"])
    assert totals.tpot_p99 == row["tpot_p99"]


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, [*range(150), None]),
        ({"skip": 100, "steps": 5}, [100, 101, 102, 103, 104]),
        ({"skip": 100, "steps": 5, "every": 2}, [100, 102, 104]),
        ({"skip": 147, "every": 2}, [147, 149, None]),
        ({"skip": 148, "steps": 2}, [148, 149, None]),
    ],
)
def test_decisions_are_shown_as_they_are_taken(
    options: dict[str, Any], shown: list[int | None], tiny: Path
) -> None:
    watched = episode(tiny, **options)
    frames = list(watched.frames())
    assert [frame.request and frame.request.index for frame in frames] == shown
    assert len(frames) == watched.num_frames
    for frame in frames:
        assert frame.decision is not None
        assert frame.request is None or frame.decision.index == frame.request.index


def test_a_film_keeps_pace(tiny: Path, tmp_path: Path) -> None:
    frames = list(episode(tiny, skip=50, steps=30).frames())
    film = Film(tmp_path / "new" / "film.gif", speed=0.5, num_frames=len(frames))
    for frame in frames:
        film.add(frame)
    film.write()
    with Image.open(tmp_path / "new" / "film.gif") as gif:
        assert getattr(gif, "n_frames", 1) == 30
        durations, pictures = [], []
        for k in range(30):
            gif.seek(k)
            durations.append(gif.info["duration"] / 1000)
            pictures.append(np.asarray(gif.convert("RGB")))
    seconds = 2 * (frames[-1].time - frames[0].time)
    assert sum(durations[:-1]) == pytest.approx(seconds, abs=0.02 * 30)
    assert durations[-1] == 2.0
    for before, after in itertools.pairwise(pictures):
        assert not np.array_equal(before, after)


def test_too_long_a_film_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"film\.gif: would hold 1001 frames, at most 1000"):
        Film(tmp_path / "film.gif", 1.0, 1001)


def test_a_terminal_shows_frames_at_their_pace(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr(time, "monotonic", lambda: sum(slept))
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    frames = list(episode(tiny, skip=100, steps=10).frames())
    watch(iter(frames), speed=4.0, film=None)
    assert sum(slept) == pytest.approx((frames[-1].time - frames[0].time) / 4)
    printed = capsys.readouterr().out
    plain = re.sub(r"\x1b\[[?\d;]*[a-zA-Z]", "", printed)
    shown = re.findall(r"request  (\d+): ", plain)
    assert len(plain) < len(printed)
    assert shown[0] == "100"
    assert shown[-1] == "109"


def test_an_interrupt_ends_the_episode_and_keeps_the_film(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> Iterator[Frame]:
        yield from episode(tiny, steps=3).frames()
        raise KeyboardInterrupt

    film = Film(tmp_path / "film.gif", 1.0, 5)
    watch(interrupted(), 1.0, film)
    film.write()
    assert "request  2: " in capsys.readouterr().out
    with Image.open(tmp_path / "film.gif") as gif:
        assert getattr(gif, "n_frames", 1) == 3


def test_the_command_prints_the_end_and_writes_the_film(tiny: Path, tmp_path: Path) -> None:
    gif = tmp_path / "random.gif"
    result = run("watch", "random", "--scenario", tiny, "--every", "10", "--gif", gif)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("random on tiny at 20 requests/s  150 of 150 requests routed")
    assert result.stdout.endswith(f"\nwritten: {gif}\n")
    with Image.open(gif) as film:
        assert getattr(film, "n_frames", 1) == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nope",), "router: found 'nope', allowed: "),
        (("random", "--speed", "0"), "--speed: found 0.0, must be above 0"),
        (("random", "--skip", "150"), "skip: found 150, the episode has 150 decisions"),
        (("random", "--set", "workload.num_requests=5000", "--gif", "x.gif"), "x.gif: would hold"),
        (("random", "--gif", "no.toml/x.gif", "--steps", "1"), "no.toml"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    arguments: tuple[str, ...],
    message: str,
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("no.toml").touch()
    result = run("watch", *arguments, "--scenario", tiny)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
