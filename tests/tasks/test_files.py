from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tasks.files import parse_json, remove_temporaries, write_atomically


@pytest.mark.parametrize("bracket", ["[", '{"a":'])
def test_deeply_nested_json_is_a_value_error(bracket):
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(bracket * 100_000)


def test_what_a_kill_in_a_write_leaves_is_removed(tmp_path, monkeypatch):
    path = tmp_path / "status.json"
    write_atomically(path, b"old")
    pid = os.fork()
    if pid == 0:
        try:
            monkeypatch.setattr(Path, "replace", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            write_atomically(path, b"new")
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert len(list(tmp_path.iterdir())) == 2
    remove_temporaries(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["status.json"]
    assert path.read_bytes() == b"old"
