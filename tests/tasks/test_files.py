from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tasks.files import parse_json, remove_temporaries, rename, write_atomically


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


def test_a_rename_that_has_succeeded_may_report_that_its_source_is_gone(tmp_path, monkeypatch):
    """As on NFS after a lost answer."""
    replace = Path.replace

    def report_lost(source: Path, target: Path) -> None:
        replace(source, target)
        raise FileNotFoundError(source)

    path = tmp_path / "status.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", report_lost)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_rename_that_has_failed_is_an_error(tmp_path, monkeypatch):
    def fail(source: Path, _: Path) -> None:
        source.unlink()
        raise FileNotFoundError(source)

    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "old").write_bytes(b"old")
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(FileNotFoundError):
        rename(tmp_path / "new", tmp_path / "old")
