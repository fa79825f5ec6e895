"""From texts to pairs of numbers, once."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import random
import signal
from pathlib import Path

import numpy as np
import pytest

from tasks.base import DataProblem
from tasks.wmt14 import corpus as corpus_module
from tasks.wmt14.corpus import Corpus, Limits, check_files, lines_of
from tasks.wmt14.packing import Packing
from tasks.wmt14.units import BEGIN, END

SIZE = 60
LIMITS = Limits(shortest=4, longest=11, difference=5, ratio=2.5)
Texts = dict[str, list[str]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "novograd-repro" / "wmt14"


def some_texts(pairs: int = 400) -> Texts:
    """Words of few letters, so that all rules have something to drop."""
    draw = random.Random(0)
    words = ["der", "die", "ein", "Haus", "haus", "the", "a", "house", "of", "und", "ß.", "x y"]
    sides: tuple[list[str], list[str]] = ([], [])
    for i in range(pairs):
        for side in sides:
            side.append(" ".join(draw.choices(words, k=draw.randint(0, 9))))
        if i % 11 == 0:
            sides[1][-1] = f" {sides[0][-1]} "
    return {"en": sides[0], "de": sides[1]}


def write(folder: Path, texts: Texts | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for language, lines in (texts or some_texts()).items():
        for split, some in (("train", lines), ("valid", lines[:3]), ("test", lines[3:5])):
            text = "".join(f"{line}\n" for line in some)
            (folder / f"{split}.{language}").write_bytes(text.encode())
    return folder


def naive_rule(limits: Limits, source: list[int], target: list[int], same: bool) -> str:
    """What NeMo's clean_src_and_target asks, and in which order we count it."""
    lengths = len(source), len(target)
    if min(lengths) == 2:
        return "empty"
    if same:
        return "same"
    if any(length < limits.shortest for length in lengths):
        return "short"
    if any(length > limits.longest for length in lengths):
        return "long"
    if abs(lengths[0] - lengths[1]) > limits.difference:
        return "difference"
    inner = lengths[0] - 2, lengths[1] - 2
    if max(inner[0] / inner[1], inner[1] / inner[0]) > limits.ratio:
        return "ratio"
    return "kept"


@pytest.mark.parametrize("at_once", [7, 20_000])
def test_pairs_are_the_filtered_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int):
    monkeypatch.setattr(corpus_module, "PAIRS_AT_ONCE", at_once)
    texts = some_texts()
    corpus = Corpus(write(tmp_path / "a", texts), SIZE, LIMITS)
    kept: list[tuple[list[int], list[int]]] = []
    counts = {"kept": 0, **{f"dropped_{rule}": 0 for rule in corpus_module.RULES}}
    for lines in zip(texts["en"], texts["de"], strict=True):
        source, target = ([BEGIN, *ids, END] for ids in corpus.units.encode(lines))
        rule = naive_rule(LIMITS, source, target, lines[0].strip() == lines[1].strip())
        counts[rule if rule == "kept" else f"dropped_{rule}"] += 1
        if rule == "kept":
            kept.append((source, target))
    assert all(counts.values())
    pairs = corpus.train
    found = [(pairs.source(i).tolist(), pairs.target(i).tolist()) for i in range(len(pairs))]
    assert found == kept
    assert pairs.source_lengths.tolist() == [len(source) for source, _ in kept]
    assert pairs.target_lengths.tolist() == [len(target) for _, target in kept]
    sums = {
        "pairs": len(texts["en"]),
        "source_tokens": sum(len(source) for source, _ in kept),
        "target_tokens": sum(len(target) for _, target in kept),
    }
    assert corpus.statistics == counts | sums


@pytest.mark.parametrize(
    ("source", "target", "same", "rule"),
    [
        (2, 9, False, "empty"),
        (2, 2, True, "empty"),
        (9, 9, True, "same"),
        (3, 3, False, "kept"),
        (128, 128, False, "kept"),
        (128, 129, False, "long"),
        (60, 85, False, "kept"),
        (86, 60, False, "difference"),
        (12, 27, False, "kept"),
        (12, 28, False, "ratio"),
    ],
)
def test_the_papers_limits(source: int, target: int, same: bool, rule: str):
    [found] = Limits().broken(np.array([source]), np.array([target]), np.array([same]))
    assert [*corpus_module.RULES, "kept"][found] == rule
    assert naive_rule(Limits(), [0] * source, [0] * target, same) == rule


def test_held_out_lines_are_all_there(tmp_path: Path):
    folder = write(tmp_path / "a")
    long = "house " * 300
    (folder / "valid.en").write_bytes(f"a\u2028b\u0085c\r\n\r\n{long}".encode())
    (folder / "valid.de").write_bytes(b"a b\n\nein Haus\n")
    corpus = Corpus(folder, SIZE, LIMITS)
    valid = corpus.held_out("valid")
    assert valid.sources == ["a\u2028b\u0085c", "", long]
    assert valid.references == ["a b", "", "ein Haus"]
    for lines, tokens in (
        (valid.sources, valid.source_tokens),
        (valid.references, valid.target_tokens),
    ):
        assert [t.tolist() for t in tokens] == [
            [BEGIN, *ids, END] for ids in corpus.units.encode(lines)
        ]
    assert len(corpus.held_out("test")) == 2
    with pytest.raises(ValueError, match="train"):
        corpus.held_out("train")


def test_it_is_made_once_for_each_text_and_wish(tmp_path: Path, monkeypatch, cache: Path):
    folder = write(tmp_path / "a")
    reports: list[tuple[str, int, int]] = []
    first = Corpus(folder, SIZE, LIMITS, lambda *report: reports.append(report))
    total = sum((folder / f"train.{language}").stat().st_size for language in ("en", "de"))
    assert reports == [("learning the vocabulary of a", total, total), ("encoding a", total, total)]
    with monkeypatch.context() as patched:
        patched.setattr(corpus_module, "_write", lambda *_: pytest.fail("made again"))
        again = Corpus(folder, SIZE, LIMITS)
        assert again.statistics == first.statistics
        copied = pickle.loads(pickle.dumps(again))
        assert copied.train.folder == first.train.folder  # not its tokens
        assert copied.train.target(3).tolist() == first.train.target(3).tolist()
    Corpus(folder, SIZE + 1, LIMITS)
    Corpus(folder, SIZE, Limits(longest=12, difference=5))
    os.utime(folder / "train.de", ns=(1, 1))
    Corpus(folder, SIZE, LIMITS)
    assert len([place for place in cache.iterdir() if place.is_dir()]) == 3  # the first is replaced


@pytest.mark.parametrize(
    "name", ["units.model", "made.json", *(f"pairs/{n}" for n in corpus_module.ARRAYS)]
)
def test_damage_is_repaired(tmp_path: Path, name: str):
    folder = write(tmp_path / "a")
    first = Corpus(folder, SIZE, LIMITS)
    place = first.train.folder.parent
    before = (place / name).read_bytes()
    (place / name).write_bytes(before[:-1])
    Corpus(folder, SIZE, LIMITS)
    assert (place / name).read_bytes() == before
    (place / name).unlink()
    Corpus(folder, SIZE, LIMITS)
    assert (place / name).read_bytes() == before


def _make_in_child(folder: Path, killed: bool, answers) -> None:
    if killed:  # in the middle of its work
        corpus_module.Units = lambda _: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore
    answers.put(Corpus(folder, SIZE, LIMITS).statistics)


def test_a_killed_process_leaves_nothing_and_two_make_one(tmp_path: Path, cache: Path):
    folder = write(tmp_path / "a")
    fork = multiprocessing.get_context("fork")
    answers = fork.Queue()
    killed = fork.Process(target=_make_in_child, args=(folder, True, answers))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    assert [p.name.split(".")[-1] for p in sorted(cache.iterdir())] == ["lock", "making"]
    both = [fork.Process(target=_make_in_child, args=(folder, False, answers)) for _ in range(2)]
    for process in both:
        process.start()
    found = [answers.get(timeout=60) for _ in both]
    for process in both:
        process.join()
    assert found == [Corpus(folder, SIZE, LIMITS).statistics] * 2
    assert len([place for place in cache.iterdir() if place.is_dir()]) == 1


def test_what_is_missing_or_wrong_is_named(tmp_path: Path, cache: Path):
    folder = write(tmp_path / "a")
    (folder / "valid.de").unlink()
    with pytest.raises(DataProblem, match=r"a/valid.de: no such file. Expected .*\.{en,de}"):
        check_files(folder)
    (folder / "valid.de").touch()
    with pytest.raises(DataProblem, match=r"a/valid.de: it is empty"):
        check_files(folder)
    (folder / "valid.de").write_text("1\n2\n")
    with pytest.raises(DataProblem, match=r"a/valid.de: 2 lines, but valid.en has 3"):
        Corpus(folder, SIZE, LIMITS).held_out("valid")
    with pytest.raises(DataProblem, match=r"a/train.\*: 9,000 units .* it gives at most \d+"):
        Corpus(folder, 9000, LIMITS)
    with pytest.raises(DataProblem, match=r"a: Limits\(.* leaves none of 400 pairs"):
        Corpus(folder, SIZE, Limits(shortest=100))
    with (folder / "train.de").open("ab") as file:
        file.write(b"one more")
    with pytest.raises(DataProblem, match=r"a/train.de: 401 lines, but train.en has 400"):
        Corpus(folder, SIZE, LIMITS)
    (folder / "train.de").write_bytes(b"\xc3\xa4\n\xff\n")
    with pytest.raises(DataProblem, match=r"a/train.de: line 2 is not UTF-8"):
        Corpus(folder, SIZE, LIMITS)
    with pytest.raises(DataProblem, match=r"line 2 is not UTF-8"):
        [*lines_of(folder / "train.de")]
    assert len([place for place in cache.iterdir() if place.is_dir()]) == 1  # nothing half-made


def test_real_text():
    """Multi30k: what is kept, how long it is, that nothing is lost, and how well it is packed."""
    root = Path(os.environ.get("DATA_ROOT", "/nowhere")) / "multi30k"
    if not root.is_dir():
        pytest.skip("needs $DATA_ROOT/multi30k/{train,valid,test}.{en,de}")
    corpus = Corpus(root, 8192)
    found = corpus.statistics
    assert found["pairs"] == 29_000
    assert 28_900 < found["kept"] == len(corpus.train) < 29_000
    assert 14 < found["source_tokens"] / found["kept"] < 18  # 12 words, punctuation, both ends
    assert 14 < found["target_tokens"] / found["kept"] < 18
    test = corpus.held_out("test")
    assert len(test) == 1000
    for lines, tokens in (
        (test.sources, test.source_tokens),
        (test.references, test.target_tokens),
    ):
        decoded = corpus.units.decode([t.tolist() for t in tokens])
        assert decoded == [" ".join(line.split()) for line in lines]
    for budget, most in ((12_288, 0.05), (2_048, 0.02)):
        pairs = corpus.train
        assert Packing(pairs.source_lengths, pairs.target_lengths, budget).waste < most
