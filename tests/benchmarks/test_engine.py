from __future__ import annotations

from pathlib import Path

from benchmarks import engine


def test_engine_and_bare_loops_take_turns(tmp_path: Path) -> None:
    steps = engine.WARM + 3
    times = engine.step_times(engine.make_config("novograd", steps), tmp_path)
    assert [len(some) for some in times] == [2, 3, 3]  # the last step ends with the run
    assert all(seconds > 0 for some in times for seconds in some)
