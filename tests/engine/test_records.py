from __future__ import annotations

import errno
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import records
from engine.config import ADDED_LATER, read_config, recipe_fingerprint
from engine.records import (
    RECORD_FILE,
    SIGNED,
    RecordError,
    RunFile,
    RunRecord,
    Status,
    find_records,
    read_json,
    read_own_records,
    read_record,
    read_records,
    read_run_file,
    read_status,
    upgrade_config,
    write_json,
    write_record,
    write_run_file,
    write_status,
)
from engine.rows import (
    ROWS_FILE,
    RowTail,
    decode_row,
    encode_row,
    read_rows,
    sort_rows,
    thin_curves,
)
from launch.compose import compose
from tasks.files import write_atomically

ROOT = Path(__file__).parent.parent.parent
DEEP = "[" * 100_000 + "]" * 100_000


def record(**changes: object) -> RunRecord:
    plain = RunRecord(
        run_id="imagenet/novograd_100ep-0123456789ab-s0",
        experiment="imagenet/novograd_100ep",
        scale="mini",
        seed=0,
        fingerprint="0123456789ab",
        final={"val/top1": 51.0},
        best={"val/top1": 52.0},
        wall_s=1.5,
        plan={"steps": 10, "global_batch": 64},
        environment={
            "commit": "a" * 40,
            "dirty": False,
            "versions": {"torch": "2.11.0"},
            "hardware": {"device": "cuda", "count": 8, "names": ["A100"] * 8},
        },
        config={"task": {"name": "imagenet"}, "data": {"name": "x"}, "optimizer": {"name": "sgd"}},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_record_is_read_as_it_was_written(tmp_path):
    written = record(final={"loss": math.inf, "ppl": math.nan, "val/top1": 51.0})
    write_record(tmp_path / RECORD_FILE, written)
    assert "NaN" in json.loads((tmp_path / RECORD_FILE).read_text())["final"]["ppl"]
    found = read_record(tmp_path / RECORD_FILE)
    assert found.final["loss"] == math.inf
    assert math.isnan(found.final["ppl"])
    assert replace(found, final={}) == replace(written, final={})
    assert found.hardware == "8 × A100"
    assert found.units == 640
    assert found.is_clean


class TestJson:
    def test_round_trip(self, tmp_path):
        record = {"z": [1, {"x": -math.inf}], "a": "é", "t": (1, 2), "none": None}
        path = tmp_path / "runs" / "imagenet" / "r.json"
        write_json(path, record)
        assert read_json(path) == record | {"t": [1, 2]}
        text = path.read_text()
        assert text.endswith("}\n")
        assert text.index('"z"') < text.index('"a"')
        assert "é" in text

    def test_nan(self, tmp_path):
        write_json(tmp_path / "r.json", {"x": math.nan})
        assert '"NaN"' in (tmp_path / "r.json").read_text()
        assert math.isnan(read_json(tmp_path / "r.json")["x"])

    def test_a_failed_write_leaves_the_old_one(self, tmp_path, monkeypatch):
        path = tmp_path / "r.json"
        write_json(path, {"x": 1})
        with pytest.raises(TypeError):
            write_json(path, {"x": object()})

        def full(descriptor):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="space"):
            write_atomically(path, b"{}")
        assert read_json(path) == {"x": 1}
        assert [p.name for p in tmp_path.iterdir()] == ["r.json"]

    def test_is_an_object(self, tmp_path):
        (tmp_path / "r.json").write_text("[]")
        with pytest.raises(ValueError, match="object, not list"):
            read_json(tmp_path / "r.json")


def test_every_published_record_can_be_read():
    """Records of earlier versions of the suite are among them."""
    found = read_records(ROOT / "results" / "runs")
    assert len(found) == len(find_records(ROOT / "results" / "runs")) > 100
    assert {one.status for one in found} == {"finished"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", '{"run_id": 1}', DEEP, '{"a": "\ud800"}', '{"final": []}']
)
def test_a_damaged_record_is_named(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RecordError, match=r"bad\.json"):
        read_record(path)


def test_a_metric_of_a_superseded_definition_is_left_out(tmp_path):
    final = {"test/sacrebleu": 28.8, "test/token_bleu": 29.3}
    for signature, kept in (("sacrebleu tok:13a", 1), (f"token_bleu {SIGNED['token_bleu']}", 2)):
        write_record(tmp_path / "r.json", record(final=final, best=final, signature=signature))
        found = read_record(tmp_path / "r.json")
        assert len(found.final) == len(found.best) == kept


def test_metrics_of_a_record_are_numbers(tmp_path):
    write_record(tmp_path / "r.json", record(final={"val/top1": "51"}))
    with pytest.raises(RecordError, match="val/top1 must be a number"):
        read_record(tmp_path / "r.json")


def test_two_records_of_one_run_are_refused(tmp_path):
    for name in ("a", "b"):
        write_record(tmp_path / f"{name}.json", record())
    with pytest.raises(RecordError, match=r"is also in .*a\.json"):
        read_records(tmp_path)


def test_other_json_files_of_a_run_are_no_records(tmp_path):
    folder = tmp_path / "run"
    write_run_file(folder, RunFile("x-0-s0", "0", {}))
    write_status(folder, "finished", "")
    write_record(folder / RECORD_FILE, record())
    assert [path.name for path in find_records(tmp_path)] == [RECORD_FILE]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / RECORD_FILE).write_text("{")
    assert len(read_own_records(tmp_path)) == 1


@pytest.mark.parametrize("text", ["[]", "{}", "", "{", DEEP, '{"status": ', "\0", "3"])
def test_a_damaged_status_counts_as_none(tmp_path, text):
    (tmp_path / "status.json").write_text(text)
    assert read_status(tmp_path) == Status()
    assert read_status(tmp_path / "nowhere") == Status()


def test_a_status_on_a_full_disk_is_written_in_place_or_says_why(tmp_path, monkeypatch):
    write_status(tmp_path, "running", "")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(records, "write_atomically", full)
    write_status(tmp_path, "failed", "no space")
    assert read_status(tmp_path) == Status("failed", "no space")
    (tmp_path / "status.json").unlink()
    with pytest.raises(OSError, match="No space left on device"):
        write_status(tmp_path, "failed", "no space")


def test_a_status_is_read_as_it_was_written(tmp_path):
    write_status(tmp_path, "preempted", "at step 3", step=3)
    assert read_status(tmp_path) == Status("preempted", "at step 3", 3)


numbers = st.integers(-(2**40), 2**40) | st.floats()


@given(st.dictionaries(st.text(min_size=1), numbers), numbers)
def test_rows_keep_every_number(row, step):
    row = row | {"step": step}
    again = decode_row(encode_row(row))
    assert repr(again) == repr(row)


@pytest.mark.parametrize("line", [b"[]", b"{}", b'{"step": "x"}', b'{"step": true}', DEEP.encode()])
def test_anything_else_is_no_row(line):
    with pytest.raises(ValueError, match=r"row|number|nested"):
        decode_row(line)


def test_a_damaged_last_row_is_left_out_and_an_earlier_one_is_named(tmp_path):
    path = tmp_path / ROWS_FILE
    path.write_bytes(encode_row({"step": 1}) + b'{"step": 2')
    assert read_rows(path) == [{"step": 1}]
    path.write_bytes(encode_row({"step": 1}) + b"?\n" + encode_row({"step": 3}))
    with pytest.raises(RecordError, match="line 2 is not a row"):
        read_rows(path)


def test_the_tail_follows_a_growing_file_and_one_that_was_cut_back(tmp_path):
    path = tmp_path / ROWS_FILE
    tail = RowTail(path)
    assert tail.read() == {}
    path.write_bytes(encode_row({"step": 1, "train/loss": 2.0}))
    assert tail.read()["train/loss"] == 2.0
    with path.open("ab") as file:
        file.write(encode_row({"step": 2, "val/top1": 3.0}) + b'{"step": 3')
    assert tail.read() == {"step": 2, "train/loss": 2.0, "val/top1": 3.0}
    path.write_bytes(encode_row({"step": 1, "train/loss": 4.0}))
    assert tail.read() == {"step": 1, "train/loss": 4.0}


def test_rows_are_sorted_and_the_last_of_equal_steps_counts():
    rows = [
        {"step": 2, "val/x": 1.0},
        {"step": 2, "train/loss": 5.0},
        {"step": 1, "train/loss": 1.0},
    ]
    again = {"step": 2, "train/loss": 6.0}
    assert sort_rows([*rows, again]) == [rows[2], again, rows[0]]


def test_curves_are_thinned_at_steps_that_do_not_depend_on_the_values():
    def rows(seed: int) -> list[dict[str, float]]:
        return [{"step": i, "epoch": i / 9, "train/loss": (i * 7 + seed) % 5} for i in range(500)]

    one, other = thin_curves(rows(0)), thin_curves(rows(1))
    assert one["train/loss"]["step"] == other["train/loss"]["step"]
    assert len(one["train/loss"]["step"]) == 60
    assert one["train/loss"]["value"] != other["train/loss"]["value"]


def test_a_run_file_of_an_earlier_version_is_read(tmp_path):
    config = compose(["experiment=imagenet/novograd_100ep", "scale=smoke"])
    old = config | {
        "paths": {"data": "data", "outputs": "outputs", "records": "results/runs"},
        "decay": {"apply_to": "all", "rules": {"*": {"per_weight": True}, "x": {"lr": 1.0}}},
    }
    old.pop("lr_per_tensor")
    write_run_file(tmp_path, RunFile("a-b-s0", "b", old))
    found = read_config(read_run_file(tmp_path).config)
    assert found.lr_per_tensor == "sqrt_size"
    assert found.decay.rules == {"x": {"lr": 1.0}}
    assert upgrade_config(config) == config


def test_a_damaged_run_file_is_named(tmp_path):
    (tmp_path / "run.yaml").write_text("config: [")
    with pytest.raises(RecordError, match=r"run\.yaml is not a run file"):
        read_run_file(tmp_path)


def test_an_option_that_is_not_used_does_not_change_a_fingerprint():
    """That of a published record, made before `lr_per_tensor` existed, at a scale since renamed."""
    config = read_config(compose(["experiment=wikitext103/adam", "scale=short"]))
    known = {one.fingerprint for one in read_records(ROOT / "results" / "runs" / "wikitext103")}
    assert recipe_fingerprint(config) in known
    assert recipe_fingerprint(replace(config, lr_per_tensor="sqrt_size")) not in known


@pytest.mark.parametrize("key", [key for key in ADDED_LATER if key.startswith("data.")])
def test_a_later_option_of_the_data_counts_only_if_it_changes_something(key):
    config = read_config(compose(["experiment=librispeech/adam", "scale=smoke"]))
    name, default = key.partition(".")[2], ADDED_LATER[key]
    without = {k: v for k, v in config.data.items() if k != name}
    known = recipe_fingerprint(replace(config, data=without))
    assert recipe_fingerprint(replace(config, data=without | {name: default})) == known
    assert recipe_fingerprint(replace(config, data=without | {name: "another"})) != known
