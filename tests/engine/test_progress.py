"""What a reader of a log and of a terminal sees."""

from __future__ import annotations

import io
import math
import re

import pytest

from engine.progress import Progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


def run(progress, clock, steps, seconds_per_step=1.0, **values):
    with progress:
        for step in steps:
            clock.now += seconds_per_step
            progress.update(step, **values)


def test_a_line_in_a_log(clock):
    stream = io.StringIO()
    progress = Progress(1000, 0, "image", "imagenet", stream, clock=clock)
    progress.update(1)
    clock.now += 119 * 0.07
    progress.update(119, note="not yet")
    clock.now += 2
    progress.update(120, loss=2.30112, lr=0.007, units_per_s=1234.4, note="saved")
    assert stream.getvalue().splitlines() == [
        "step 1/1000 (0 %)",
        "step 120/1000 (12 %)  loss 2.301  lr 0.00700  1,234 images/s  1:16 left  saved",
    ]


def test_a_log_gets_the_first_the_last_and_one_line_every_ten_seconds(clock):
    stream = io.StringIO()
    run(Progress(100, 0, "image", "", stream, clock=clock), clock, range(1, 101), 0.5)
    steps = [int(s) for s in re.findall(r"step (\d+)/", stream.getvalue())]
    assert steps == [1, 21, 41, 61, 81, 100]


def test_the_last_step_is_written_once(clock):
    stream = io.StringIO()
    run(Progress(3, 0, "image", "", stream, clock=clock), clock, [1, 2, 3, 3, 3])
    assert re.findall(r"step (\d+)/", stream.getvalue()) == ["1", "3"]


def test_the_interval_can_be_chosen(clock):
    stream = io.StringIO()
    run(Progress(6, 0, "image", "", stream, interval=2, clock=clock), clock, range(1, 7))
    assert re.findall(r"step (\d+)/", stream.getvalue()) == ["1", "3", "5", "6"]


def test_time_left_does_not_count_the_steps_before_a_resume(clock):
    stream = io.StringIO()
    run(Progress(4000, 1000, "token", "", stream, clock=clock), clock, range(1001, 1013))
    assert stream.getvalue().splitlines()[-1] == "step 1011/4000 (25 %)  49:49 left"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"loss": math.nan}, "loss nan"),
        ({"loss": math.inf}, "loss inf"),
        ({"loss": 0.0}, "loss 0.000"),
        ({"loss": 0.000123}, "loss 1.23e-04"),
        ({"loss": 1234567.0}, "loss 1.23e+06"),
        ({"lr": 1e-5}, "lr 1.00e-05"),
        ({"units_per_s": 1.26}, "1.3 images/s"),
        ({"units_per_s": 1234567.0}, "1,234,567 images/s"),
    ],
)
def test_numbers(clock, values, text):
    stream = io.StringIO()
    Progress(10, 0, "images", "", stream, clock=clock).update(1, **values)
    assert stream.getvalue() == f"step 1/10 (10 %)  {text}\n"


def test_long_times(clock):
    stream = io.StringIO()
    progress = Progress(100_001, 0, "image", "", stream, clock=clock)
    progress.update(0)
    clock.now += 10
    progress.update(1)
    assert stream.getvalue().splitlines()[-1].endswith("277:46:40 left")


def test_messages_are_lines_of_their_own(clock):
    stream = io.StringIO()
    with Progress(10, 0, "image", "", stream, clock=clock) as progress:
        progress.write_line("resuming [at] step 3")
    assert stream.getvalue() == "resuming [at] step 3\n"


def test_a_reader_that_has_gone_away_ends_nothing(clock):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    progress = Progress(10, 0, "image", "", Closed(), clock=clock)
    progress.update(1)
    progress.write_line("hello")


def plain(text):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


@pytest.fixture
def _terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("LINES", "24")


@pytest.mark.usefixtures("_terminal")
@pytest.mark.parametrize("columns", [80, 160])
def test_a_bar_on_a_terminal(clock, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    stream = Terminal()
    experiment = "imagenet/novograd_100"
    with Progress(125_100, 0, "image", experiment, stream, clock=clock) as progress:
        progress.update(1)
        clock.now += 60
        progress.write_line("[saved] step 1")
        progress.update(12_511, loss=2.30112, lr=0.007, units_per_s=1234.4, note="[best]")
    text = plain(stream.getvalue())
    *_, bar, values = (line for line in re.split(r"[\r\n]+", text) if line.strip())
    assert len(bar) <= columns
    for part in (experiment, "━━━━", "10%", "12511/125100", "0:01:00", "9:00 left"):
        assert part in bar
    assert values.rstrip() == "loss 2.301  lr 0.00700  1,234 images/s  [best]"
    assert "[saved] step 1" in text
    assert "step 12511/125100" not in text


@pytest.mark.usefixtures("_terminal")
def test_no_bar_on_a_terminal_that_cannot_move_its_cursor(clock, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    run(Progress(10, 0, "image", "", stream, clock=clock), clock, [1])
    assert stream.getvalue() == "step 1/10 (10 %)\n"


def test_no_bar_in_a_log_whatever_the_environment_says(clock, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    run(Progress(10, 0, "image", "", stream, clock=clock), clock, [1])
    assert stream.getvalue() == "step 1/10 (10 %)\n"
