from __future__ import annotations

import os
import signal
from pathlib import Path

from tasks.files import remove_temporaries, write_atomically


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
