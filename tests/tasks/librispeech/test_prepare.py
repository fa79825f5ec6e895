"""LibriSpeech's archives, by small ones that are packed in the same way, on a local server."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import shutil
import signal
import tarfile
import threading
from collections import namedtuple
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tasks.base import DataProblem
from tasks.download import Patience
from tasks.librispeech import prepare as prepare_module
from tasks.librispeech.prepare import ALL, SUBSETS, LibriSpeech, Subset, prepare
from tasks.manifests import read_manifest
from tests.tasks.imagenet.archives import tree

SMALL = ("dev-clean", "train-clean-100")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "sync", lambda: None)


QUICK = Patience(silence=1, tries=1, pause=0)


def files_of(subset: str) -> dict[str, bytes]:
    """Two chapters of two utterances each."""
    files = {f"LibriSpeech/{name}.TXT": name.encode() for name in ("README", "SPEAKERS")}
    for chapter in (20, 30):
        at, name = f"LibriSpeech/{subset}/1/{chapter}", f"1-{chapter}"
        files[f"{at}/{name}-0000.flac"] = os.urandom(50_000)
        files[f"{at}/{name}-0001.flac"] = os.urandom(50_000)
        files[f"{at}/{name}.trans.txt"] = f"{name}-0000 A CAT\n{name}-0001 IT'S A DOG\n".encode()
    return files


def pack(files: Mapping[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """A tarball with the folders, the files, and other members at its end."""
    packed = io.BytesIO()
    folders = {str(parent) for name in files for parent in Path(name).parents} - {".", "/"}
    with tarfile.open(fileobj=packed, mode="w:gz") as members:
        for name in sorted(folders | set(files)):
            member = tarfile.TarInfo(name)
            if name in files:
                member.size = len(files[name])
                members.addfile(member, io.BytesIO(files[name]))
            else:
                member.type = tarfile.DIRTYPE
                members.addfile(member)
        for member in others:
            members.addfile(member)
    return packed.getvalue()


@dataclass
class World:
    """What the server has, what it was asked, and what must come out."""

    root: Path
    archives: dict[str, bytes] = field(default_factory=dict)
    expected: LibriSpeech = field(default_factory=LibriSpeech)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    cut_at: int | None = None  # bytes of the next answer
    reports: list[tuple[str, int, int]] = field(default_factory=list)

    def give(self, subset: str, archive: bytes, utterances: int = 4) -> None:
        """Takes the archive for the right one, whatever is in it."""
        self.archives[f"/{subset}.tar.gz"] = archive
        md5, sha256 = hashlib.md5(archive).hexdigest(), hashlib.sha256(archive).hexdigest()
        known = Subset(len(archive), md5, sha256, utterances)
        subsets = {**self.expected.subsets, subset: known}
        self.expected = replace(self.expected, subsets=subsets)

    def make(self, *subsets: str, archives: Path | None = None) -> bool:
        return prepare(
            self.root,
            lambda *line: self.reports.append(line),
            subsets or SMALL,
            archives,
            expected=self.expected,
            patience=QUICK,
        )

    def left(self) -> list[str]:
        """In the root, and beside it what is not only a lock."""
        beside = [p.name for p in self.root.parent.iterdir() if not p.name.endswith(".lock")]
        assert beside == [self.root.name]
        return sorted(path.name for path in self.root.iterdir())

    def saved(self, folder: Path) -> Path:
        folder.mkdir()
        for name, data in self.archives.items():
            (folder / name.removeprefix("/")).write_bytes(data)
        return folder


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    state = World(tmp_path / "data" / "LibriSpeech")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            wanted = self.headers.get("Range")
            state.asked.append((self.path, wanted))
            data = state.archives.get(self.path)
            if data is None:
                return self.send_error(404)
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start : state.cut_at])
            state.cut_at = None

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.expected = LibriSpeech(mirrors=(f"http://127.0.0.1:{http.server_address[1]}",))
    for subset in SMALL:
        state.give(subset, pack(files_of(subset)))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    http.shutdown()
    thread.join()
    http.server_close()


COMPLETE = ["README.TXT", "SPEAKERS.TXT", "dev-clean", "manifest.json", "train-clean-100"]


def test_downloaded_unpacked_and_removed(world: World):
    files = files_of("dev-clean")
    world.give("dev-clean", pack(files))
    assert world.make()
    assert world.left() == COMPLETE
    for name, data in files.items():
        assert (world.root / name.removeprefix("LibriSpeech/")).read_bytes() == data
    assert [path for path, _ in world.asked] == ["/dev-clean.tar.gz", "/train-clean-100.tar.gz"]
    done = {what for what, *_ in world.reports}
    assert {"downloading dev-clean.tar.gz", "unpacking train-clean-100.tar.gz"} <= done
    assert all(done <= total for _, done, total in world.reports)


def test_a_second_call_has_nothing_to_do(world: World):
    assert world.make()
    world.reports.clear()
    world.asked.clear()
    assert not world.make()
    assert not world.make("dev-clean")
    assert not world.reports
    assert not world.asked


def test_only_what_is_missing_is_made(world: World):
    assert world.make("dev-clean")
    assert "train-clean-100" not in world.left()
    assert world.make()
    assert world.left() == COMPLETE
    assert [path for path, _ in world.asked] == ["/dev-clean.tar.gz", "/train-clean-100.tar.gz"]


def test_an_interrupted_download_is_resumed(world: World):
    world.cut_at = 70_000
    with pytest.raises(DataProblem, match=r"cut after 70,000 of [0-9,]* bytes"):
        world.make()
    assert world.left() == ["dev-clean.tar.gz.part"]
    assert world.make()
    assert world.left() == COMPLETE
    assert world.asked[1] == ("/dev-clean.tar.gz", "bytes=70000-")


def test_the_next_mirror(world: World):
    nowhere = "http://127.0.0.1:1"
    world.expected = replace(world.expected, mirrors=(nowhere, *world.expected.mirrors))
    assert world.make()
    assert world.left() == COMPLETE


def test_the_wrong_file_is_refused(world: World):
    path = "/dev-clean.tar.gz"
    data = world.archives[path]
    world.archives[path] = bytes([*data[:-1], data[-1] ^ 1])
    with pytest.raises(DataProblem, match=r"MD5 [0-9a-f]{32} instead of"):
        world.make()
    assert world.left() == []


def test_the_users_archives_are_only_read(world: World, tmp_path: Path):
    archives = world.saved(tmp_path / "mine")
    before = sorted(path.name for path in archives.iterdir())
    assert world.make(archives=archives)
    assert world.asked == []
    assert world.left() == COMPLETE
    assert sorted(path.name for path in archives.iterdir()) == before


def test_wrong_archives_of_the_user(world: World, tmp_path: Path):
    with pytest.raises(DataProblem, match=r"^nowhere \(no such folder\): missing dev-clean\.tar"):
        world.make(archives=Path("nowhere"))
    archives = world.saved(tmp_path / "mine")
    file = archives / "train-clean-100.tar.gz"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(DataProblem, match=f"^{file}: [0-9,]* bytes, but must have [0-9,]*; down"):
        world.make(archives=archives)
    file.write_bytes(bytes([data[0] ^ 1, *data[1:]]))
    with pytest.raises(DataProblem, match=f"^{file}: its MD5 is [0-9a-f]*, but must be"):
        world.make(archives=archives)
    assert "train-clean-100" not in world.left()
    file.unlink()
    with pytest.raises(DataProblem, match=r"^.*/mine: missing train-clean-100\.tar\.gz; put them"):
        world.make(archives=archives)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


GOOD = "LibriSpeech/dev-clean/1/20/1-20-0002.flac"


@pytest.mark.parametrize(
    "hostile",
    [
        member("../evil.flac"),
        member("/tmp/evil.flac"),
        member("LibriSpeech/dev-clean/1/20/../../../../1-20-0002.flac"),
        member("LibriSpeech/../README.TXT"),
        member("LibriSpeech/dev-clean/../1/1-1-0000.flac"),
        member("LibriSpeech/dev-clean/1/20/1-30-0002.flac"),
        member("LibriSpeech/dev-clean/1/20/1-20-0002.flac\n"),
        member("LibriSpeech/dev-clean/1/20/.bashrc"),
        member("LibriSpeech/dev-other/1/20/1-20-0002.flac"),
        member("LibriSpeech/readme.txt"),
        member("Other", tarfile.DIRTYPE),
        member("LibriSpeech/..", tarfile.DIRTYPE),
        member(GOOD, tarfile.SYMTYPE, "/etc/passwd"),
        member(GOOD, tarfile.LNKTYPE, "LibriSpeech/README.TXT"),
        member(GOOD, tarfile.FIFOTYPE),
        member("LibriSpeech/dev-clean/1", tarfile.SYMTYPE, "/tmp"),
    ],
    ids=lambda m: f"{m.name.strip()}-{m.type.decode()}",
)
def test_hostile_members_are_refused(hostile: tarfile.TarInfo, world: World):
    world.give("dev-clean", pack(files_of("dev-clean"), hostile))
    with pytest.raises(DataProblem, match=r"dev-clean\.tar\.gz: .* in it, but there must only be"):
        world.make()
    assert world.left() == ["dev-clean.tar.gz"]


def without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if Path(name).name not in names}


def test_what_is_not_whole_is_refused(world: World):
    files = files_of("dev-clean")
    line = b"1-20-0000 A CAT\n"
    short = {"LibriSpeech/dev-clean/1/20/1-20.trans.txt": line}
    empty = {"LibriSpeech/dev-clean/1/20/1-20-0001.flac": b""}
    cases = {
        r"dev-clean has 1 utterances fewer \(4 instead of 5\)": (files, 5),
        r"1/20/1-20-0001\.flac is missing": (without(files, "1-20-0001.flac"), 3),
        r"1/20/1-20-0001\.flac has no line in 1-20\.trans\.txt": (files | short, 4),
        r"1/20/1-20-0001\.flac is empty": (files | empty, 4),
        r"1/20 has no 1-20\.trans\.txt that can be read": (without(files, "1-20.trans.txt"), 4),
        "no utterances of dev-clean in it": ({"LibriSpeech/A.TXT": b""}, 4),
    }
    for message, (some, wanted) in cases.items():
        world.give("dev-clean", pack(some), wanted)
        with pytest.raises(DataProblem, match=f"dev-clean.tar.gz: .*{message}; copy or"):
            world.make()
        assert world.left() == ["dev-clean.tar.gz"]
        (world.root / "dev-clean.tar.gz").unlink()


def test_damaged_archives(world: World):
    whole = pack(files_of("dev-clean"))
    for damaged in (whole[:-60_000], b"no archive", b""):
        world.give("dev-clean", damaged)
        with pytest.raises(DataProblem, match=r"dev-clean\.tar\.gz: cannot be unpacked: "):
            world.make()
        assert world.left() == ["dev-clean.tar.gz"]
        (world.root / "dev-clean.tar.gz").unlink()
    twice = tarfile.TarInfo("LibriSpeech/README.TXT")
    world.give("dev-clean", pack(files_of("dev-clean"), twice))
    with pytest.raises(DataProblem, match=r"README\.TXT is in it twice"):
        world.make()


@pytest.mark.parametrize("moment", ["unpacking dev", "downloading train", "unpacking train"])
def test_after_a_kill_a_second_call_resumes(moment: str, world: World):
    def die(what: str, done: int, total: int) -> None:
        if what.startswith(moment) and done > total / 4:
            os.kill(os.getpid(), signal.SIGKILL)

    context = multiprocessing.get_context("fork")
    options = {"expected": world.expected, "patience": QUICK}
    first = context.Process(target=prepare, args=(world.root, die, SMALL), kwargs=options)
    first.start()
    first.join()
    assert first.exitcode == -signal.SIGKILL
    is_dev_there = (world.root / "dev-clean").exists()
    assert is_dev_there == ("train" in moment)
    assert not (world.root / "train-clean-100").exists()
    world.asked.clear()
    assert world.make()
    assert world.left() == COMPLETE
    assert ("/dev-clean.tar.gz", None) not in world.asked


def test_what_the_user_unpacked_is_counted_once(world: World, monkeypatch: pytest.MonkeyPatch):
    for name, data in (files_of("dev-clean") | files_of("train-clean-100")).items():
        target = world.root.parent / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    before = tree(world.root)
    (world.root / "dev-clean" / "1" / "20" / "1-20-0001.flac").rename(world.root / "aside")
    where = f"{world.root}/dev-clean: dev-clean/1/20/1-20-0001.flac"
    with pytest.raises(DataProblem, match=f"^{where} is missing; copy or download it again"):
        world.make()
    (world.root / "aside").rename(world.root / "dev-clean" / "1" / "20" / "1-20-0001.flac")
    assert not world.make()
    monkeypatch.setattr(prepare_module, "check_subset", None)
    assert not world.make()
    assert tree(world.root) == before  # what is known about it lies in the cache
    manifest = read_manifest(world.root)
    assert manifest is not None
    assert {part.action for part in manifest.parts.values()} == {"in place"}


def test_not_enough_space(world: World, monkeypatch: pytest.MonkeyPatch):
    sizes = [world.expected.subsets[name].space for name in SMALL]
    usage = namedtuple("usage", "total used free")
    needed = round(0.0 + 1.05 * sizes[0] + 1.05 * sizes[1] + sizes[1])  # to the byte
    for free, fits in ((needed - 1, False), (needed, True)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(0, 0, free))
        if fits:
            assert world.make()
        else:
            with pytest.raises(DataProblem, match=f"^{world.root}: not enough space: "):
                world.make()
            assert world.asked == []


def test_no_such_subset(world: World):
    with pytest.raises(DataProblem, match=r"^dev: no subset; they are dev-clean, dev-other, test-"):
        world.make("dev")
    assert not world.root.exists()


def test_the_real_numbers_agree_with_each_other():
    assert set(ALL) == {
        *(f"{split}-{kind}" for split in ("dev", "test") for kind in ("clean", "other")),
        *("train-clean-100", "train-clean-360", "train-other-500"),
    }
    training = [subset for name, subset in SUBSETS.items() if name.startswith("train")]
    assert sum(subset.utterances or 0 for subset in training) == 281_241
    for subset in SUBSETS.values():
        assert [len(digest) for digest in subset.sums.values()] == [32, 64]
        assert subset.size is not None
        assert subset.utterances is not None
        assert 90_000 < subset.size / subset.utterances < 250_000
    assert all(mirror.startswith("https://") for mirror in LibriSpeech().mirrors)


def test_a_bomb_is_refused_before_it_is_written(world: World):
    files = files_of("dev-clean")
    files["LibriSpeech/dev-clean/1/20/1-20-0000.flac"] = bytes(1 << 26)
    world.give("dev-clean", pack(files))
    with pytest.raises(DataProblem, match=r"declares [0-9,]+ bytes and more, too many for"):
        world.make("dev-clean")
    assert world.left() == ["dev-clean.tar.gz"]
