from __future__ import annotations

from pathlib import Path

import pytest

from tasks.base import DataProblem, Shard
from tests.tasks.imagenet.few import make_task


def test_classes_have_the_names_that_a_file_gives_them(data_root: Path):
    task = make_task(data_root)
    (task.root / "words.txt").write_text("1\tone, unity\n7\tseven\nn99\tno class\n")
    try:
        files = task.model_files()
    finally:
        (task.root / "words.txt").unlink()
    other = make_task(data_root)
    assert set(other.model_files()) == {"classes.json"}
    other.use_model_files(files)
    assert other.names == {"1": "one, unity", "7": "seven"}
    assert other.classes == task.classes


def test_labels_are_those_of_the_model_whatever_folders_there_are(data_root: Path):
    """Not those of the training folder's order."""
    task = make_task(data_root)
    reverse = [*reversed(task.classes)]
    task.use_model_files({"classes.json": str(reverse).replace("'", '"').encode()})
    labels = {int(i) for b in task.eval_batches("val", Shard()) for i in b.tensors["label"]}
    assert labels == set(range(10))
    index = task._images("val").index
    assert index.path(0).split("/")[-2] == reverse[0]
    wrong = [*reverse[:-1], "unheard-of"]
    other = make_task(data_root)
    other.use_model_files({"classes.json": str(wrong).replace("'", '"').encode()})
    with pytest.raises(DataProblem, match="are needed"):
        other.eval_batches("val", Shard())
