"""The smoke scale's text."""

from __future__ import annotations

import pytest

from tasks.base import DataProblem
from tasks.wikitext103.made_up import LINES, make_made_up


def test_what_is_there_is_used_or_refused(tmp_path):
    root = tmp_path / "text"
    make_made_up(root)
    texts = {file: file.read_bytes() for file in root.iterdir()}
    make_made_up(root)
    assert texts == {file: file.read_bytes() for file in root.iterdir()}
    file = root / f"wiki.{next(iter(LINES))}.tokens"
    file.write_bytes(b"\xff\n")
    with pytest.raises(DataProblem, match=f"^{file}: not the made-up text; move {root}"):
        make_made_up(root)
