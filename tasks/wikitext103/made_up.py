"""The text of the smoke scale: made-up sentences in WikiText's format."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tasks.base import DataProblem
from tasks.files import rename
from tasks.seeding import python_random

WORDS = 300
LINES = {"train": 900, "valid": 60, "test": 60}


def make_made_up(root: Path) -> None:
    """Each word is drawn from a few that may follow the one before it: there is a bit to learn.

    The folder appears complete or not at all.
    """
    files = {split: root / f"wiki.{split}.tokens" for split in LINES}
    if root.exists():
        for split, file in files.items():
            if not file.is_file() or len(file.read_bytes().splitlines()) != LINES[split]:
                raise DataProblem(
                    f"{file}: not the made-up text; move {root} elsewhere to have it made"
                )
        return
    root.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        random = python_random("made-up text")
        vocabulary = [f"w{i}" for i in range(WORDS)]
        followers = [random.sample(range(WORDS), 6) for _ in range(WORDS)]
        for split, lines in LINES.items():
            text = []
            for _ in range(lines):
                word = random.randrange(WORDS)
                line = []
                for _ in range(random.randrange(10, 30)):
                    line.append(vocabulary[word])
                    # The first followers are the usual ones: words differ in how often they come.
                    word = followers[word][min(random.randrange(6), random.randrange(6))]
                text.append(f" {' '.join(line)} \n")
            if split == "train":  # every word is in the vocabulary
                text[0] = f" {' '.join(vocabulary)} \n"
            (temporary / files[split].name).write_text("".join(text))
        rename(temporary, root)
    except OSError:
        if not root.exists():  # otherwise another process was quicker
            raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
