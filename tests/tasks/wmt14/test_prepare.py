"""WMT's archives, by small ones that are packed in the same way, on a server of our own."""

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
from tasks.wmt14.prepare import FILES, prepare, read_statistics
from tasks.wmt14.statmt import NEWS_COMMENTARY, NEWSTEST_2013, NEWSTEST_2014, Corpus, Wmt

Texts = tuple[bytes, bytes]  # English, German


def lines(name: str, count: int) -> Texts:
    english = (f"{name} sentence {i} ." for i in range(count))
    german = (f"{name} Satz {i} – größer ." for i in range(count))
    return "\n".join([*english, ""]).encode(), "\n".join([*german, ""]).encode()


def sgm(documents: Mapping[str, list[str]], kind: str = "src") -> bytes:
    text = f'<{kind}set setid="newstest" srclang="any">\n'
    for name, segments in documents.items():
        text += f'<doc sysid="ref" docid="{name}" genre="news" origlang="en">\n<hl>\n'
        for number, segment in enumerate(segments, 1):
            text += f'<seg id="{number}">{segment}</seg>\n'
        text += "</hl>\n</doc>\n"
    return f"{text}</{kind}set>\n".encode()


NEWS = (
    {"bbc": ["A &amp; B", "S&P; rose &lt;1&gt; AT&T &quot;x&quot; &#252; &copy"], "cnn": ["Third"]},
    {"bbc": ["A &amp; Bä", " Zwei\nZeilen "], "cnn": ["Dritter"]},
)
TEXTS: dict[str, Texts] = {
    "europarl-v7": lines("europarl", 50),
    "commoncrawl": (
        "one\u2028still one\r\n\ntwo\x0bstill two\x85\rand more\nthree \nno German\n".encode(),
        "eins\r\nkein Englisch\nzwei\n drei\n\xa0\n".encode(),
    ),
    "newstest2013": (sgm({"a": ["Valid."]}), sgm({"a": ["Gültig."]})),
    "newstest2014": (sgm(NEWS[0]), sgm(NEWS[1], "ref")),
    "news-commentary-v11": lines("eleven", 3),
    "news-commentary-v9": lines("nine", 2),
}


def pack(corpus: Corpus, texts: Texts, prefix: str = "") -> bytes:
    """With other languages, and with names that must not be followed."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        others = {"training/europarl-v7.fr-en.en": os.urandom(30_000), "../evil": b"x"}
        both = dict(zip(corpus.texts, texts, strict=True))
        for name, data in {**others, **both, "/tmp/evil": b"x"}.items():
            entry = tarfile.TarInfo(f"{prefix}{name}" if name in both else name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("training/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return file.getvalue()


@dataclass
class World:
    root: Path
    address: str = ""
    served: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    cut_at: dict[str, int] = field(default_factory=dict)  # bytes, for the next answer of a name
    expected: Wmt = field(default_factory=Wmt)
    said: list[str] = field(default_factory=list)
    reports: list[tuple[str, int, int]] = field(default_factory=list)

    def give(self, name: str, texts: Texts | bytes, prefix: str = "") -> None:
        """Serves these texts, and takes what is served for the right archive."""

        def trusted(corpus: Corpus) -> Corpus:
            if corpus.name != name:
                return corpus
            data = texts if isinstance(texts, bytes) else pack(corpus, texts, prefix)
            self.served[corpus.archive] = data
            sums = {key: hashlib.new(key, data).hexdigest() for key in corpus.sums}
            url = f"{self.address}/{corpus.archive}"
            return replace(corpus, urls=(url,), sums=sums, size=len(data), about=10_000)

        self.expected = Wmt(
            tuple(map(trusted, self.expected.always)),
            {key: trusted(c) for key, c in self.expected.news_commentary.items()},
        )

    def make(self, archives: Path | None = None, news_commentary: str = "v11") -> bool:
        return prepare(
            self.root,
            lambda *line: self.reports.append(line),
            archives,
            news_commentary=news_commentary,
            expected=self.expected,
            patience=Patience(silence=1, tries=1, pause=0),
            say=self.said.append,
        )

    def read(self, name: str) -> list[str]:
        return (self.root / name).read_bytes().decode().removesuffix("\n").split("\n")

    def names(self) -> list[str]:
        return sorted(p.name for p in self.root.iterdir()) if self.root.exists() else []

    def beside(self) -> list[str]:
        found = {p.name for p in self.root.parent.iterdir()} if self.root.parent.exists() else set()
        return sorted(n for n in found if not n.endswith(".lock"))

    def own(self) -> Path:
        """A folder of the user's with all archives."""
        folder = self.root.parent.parent / "mine"
        folder.mkdir()
        for name, data in self.served.items():
            (folder / name).write_bytes(data)
        return folder


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    state = World(tmp_path / "data" / "wmt14")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            name, wanted = self.path[1:], self.headers.get("Range")
            state.asked.append((name, wanted))
            data = state.served[name]
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start : start + state.cut_at.pop(name, len(data))])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    for name, texts in TEXTS.items():
        state.give(name, texts, prefix="./" if name == "commoncrawl" else "")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield state
    server.shutdown()
    thread.join()
    server.server_close()


COMPLETE = sorted([*FILES, "manifest.json", "statistics.json"])


def test_all_is_downloaded_and_paired(world: World):
    assert world.make()
    assert world.names() == COMPLETE
    assert world.beside() == ["wmt14"]
    crawl = "one\u2028still one\ntwo\x0bstill two\x85 and more\nthree\n", "eins\nzwei\ndrei\n"
    for side, language in enumerate(("en", "de")):
        europarl, comments = (TEXTS[k][side] for k in ("europarl-v7", "news-commentary-v11"))
        found = (world.root / f"train.{language}").read_bytes()
        assert found == europarl + crawl[side].encode() + comments
    assert (world.read("valid.en"), world.read("valid.de")) == (["Valid."], ["Gültig."])
    assert world.read("test.en") == ["A & B", 'S&P; rose <1> AT&T "x" ü &copy', "Third"]
    assert world.read("test.de") == ["A & Bä", "Zwei Zeilen", "Dritter"]
    assert read_statistics(world.root)["corpora"] == {
        "europarl-v7": {"split": "train", "pairs": 50, "dropped": 0},
        "commoncrawl": {"split": "train", "pairs": 3, "dropped": 2},
        "newstest2013": {"split": "valid", "pairs": 1, "dropped": 0},
        "newstest2014": {"split": "test", "pairs": 3, "dropped": 0},
        "news-commentary-v11": {"split": "train", "pairs": 3, "dropped": 0},
    }
    assert [line for line in world.said if "MB freed" in line]
    doings = {what.partition(" ")[0] for what, _, _ in world.reports}
    assert doings == {"downloading", "checking", "unpacking", "writing"}
    assert all(0 <= done <= total for _, done, total in world.reports)


def test_a_second_call_has_nothing_to_do(world: World):
    world.make()
    before = {p: p.stat().st_mtime_ns for p in world.root.iterdir()}
    for noted in (world.asked, world.reports, world.said):
        noted.clear()
    assert not world.make()
    assert (world.asked, world.reports, world.said) == ([], [], [])
    assert {p: p.stat().st_mtime_ns for p in world.root.iterdir()} == before
    (world.root / "downloads").mkdir()  # as a call leaves them that is killed at its very end
    (world.root / "downloads" / "test.tgz").write_bytes(b"x")
    assert not world.make()
    assert world.names() == COMPLETE


def test_strict_wmt14(world: World):
    assert world.make(news_commentary="v9")
    assert world.read("train.en")[-1] == "nine sentence 1 ."
    with pytest.raises(
        DataProblem, match=r"made of .*commentary-v9.*must be of .*-v11.* name another folder"
    ):
        world.make()
    with pytest.raises(DataProblem, match=r"must be one of \['v11', 'v9'\], not 'v10'"):
        world.make(news_commentary="v10")


def test_archives_of_the_user_need_no_network(world: World):
    own = world.own()
    assert world.make(own)
    assert (world.asked, world.said) == ([], [])
    assert {p.name: p.read_bytes() for p in own.iterdir()} == world.served
    assert world.names() == COMPLETE


def test_what_the_user_has_not_is_downloaded(world: World):
    own = world.own()
    (own / "test-full.tgz").unlink()
    assert world.make(own)
    assert [name for name, _ in world.asked] == ["test-full.tgz"]
    with pytest.raises(
        DataProblem, match=r"nowhere: none of the archives in it; expected training-"
    ):
        prepare(world.root.with_name("other"), print, Path("nowhere"), expected=world.expected)


def test_a_cut_download_resumes(world: World):
    name = "training-parallel-commoncrawl.tgz"
    world.cut_at[name] = 10_000
    with pytest.raises(DataProblem, match=f"{name}: not there, .*cut after 10,000 of"):
        world.make()
    assert world.names() == ["downloads"]
    found = {p.name for p in (world.root / "downloads").iterdir()}
    assert found == {f"{name}.part", "training-parallel-europarl-v7.tgz"}
    world.asked.clear()
    assert world.make()
    assert world.asked[0] == (name, "bytes=10000-")
    assert "training-parallel-europarl-v7.tgz" not in [asked for asked, _ in world.asked]
    assert world.names() == COMPLETE


def test_a_wrong_checksum(world: World):
    name = "training-parallel-nc-v11.tgz"
    right = world.served[name]
    world.served[name] = bytes(len(right))
    with pytest.raises(DataProblem, match=f"{name}: not there, .*SHA-256 .* instead of"):
        world.make()
    assert world.names() == ["downloads"]
    own = world.own()
    with pytest.raises(DataProblem, match=f"^{own / name}: its SHA-256 is .*, but must be"):
        world.make(own)
    world.served[name] = right
    assert world.make()


def test_without_a_network_nothing_is_left(world: World):
    nowhere = replace(world.expected.always[0], urls=("http://127.0.0.1:1/training-europarl.tgz",))
    world.expected = replace(world.expected, always=(nowhere,))
    with pytest.raises(DataProblem, match=r"put the file at .*/downloads/training-europarl"):
        world.make()
    assert world.beside() == []


@pytest.mark.parametrize(
    ("name", "texts", "message"),
    [
        ("europarl-v7", (b"a\nb\n", b"a\n"), r"\.en has 2 sentences and .*\.de 1; both must"),
        ("europarl-v7", (b"a\n", b"a\nb\nc\nd"), r"\.en has 1 sentences and .*\.de 4; both must"),
        ("commoncrawl", (b"a\nb\n", b"a\n\xff\n"), r"commoncrawl\.de-en\.de: line 2 is not UTF-8"),
        (
            "newstest2014",
            (sgm({"a": ["x", "y"]}), sgm({"a": ["x"], "b": ["y"]})),
            r"sentence 2 is segment 2 of 'a' in .*src\.en\.sgm, but segment 1 of 'b' in .*ref\.de",
        ),
        (
            "newstest2013",
            (sgm({"a": ["x", "y"]}), sgm({"a": ["x", "y"]}).replace(b"</seg>", b"", 1)),
            r"src\.de\.sgm: 1 whole segments of 2; each must be as",
        ),
        ("newstest2013", (b"text\n", b"text\n"), r"src\.en\.sgm: 0 whole segments of 0"),
        ("newstest2013", b"no archive", r"test\.tgz: cannot be unpacked: .*; get it again"),
    ],
)
def test_texts_that_are_refused(world: World, name: str, texts: Texts | bytes, message: str):
    world.give(name, texts)
    with pytest.raises(DataProblem, match=message):
        world.make()
    assert world.names() == ["downloads"]
    assert world.beside() == ["wmt14"]


def test_a_damaged_end_and_a_missing_text(world: World):
    whole = world.served["test.tgz"]
    world.give("newstest2013", whole[: len(whole) // 2])
    with pytest.raises(DataProblem, match=r"test\.tgz: cannot be unpacked"):
        world.make(world.own())
    other = pack(NEWSTEST_2014, (b"", b""))
    world.give("newstest2013", other)
    shutil.rmtree(world.root.parent.parent / "mine")
    with pytest.raises(
        DataProblem, match=r"no test/newst.*src\.en\.sgm and no .*src\.de\.sgm in it"
    ):
        world.make(world.own())


def test_no_space(world: World, monkeypatch: pytest.MonkeyPatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 60_000))
    with pytest.raises(DataProblem, match="not enough space"):
        world.make()
    assert world.asked == []
    assert world.beside() == []


@pytest.mark.parametrize("moment", ["unpacking training-parallel-nc-v11.tgz", "publishing"])
def test_killed_in_the_middle_a_second_call_resumes(world: World, moment: str):
    def report(what: str, *_: int) -> None:
        if what == moment:
            os.kill(os.getpid(), signal.SIGKILL)

    replaced = Path.replace

    def die_at_valid(self: Path, target: Path) -> Path:
        if moment == "publishing" and target.name == "valid.en":
            os.kill(os.getpid(), signal.SIGKILL)
        return replaced(self, target)

    def first() -> None:
        Path.replace = die_at_valid  # type: ignore[assignment, method-assign]
        prepare(world.root, report, expected=world.expected)

    process = multiprocessing.get_context("fork").Process(target=first)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert "valid.en" not in world.names()
    world.asked.clear()
    assert world.make()
    assert world.asked == []  # all were downloaded before
    assert world.names() == COMPLETE
    assert world.beside() == ["wmt14"]


def test_files_of_others_are_never_replaced(world: World):
    world.root.mkdir(parents=True)
    own = world.root / "train.de"
    own.write_text("mine\n")
    with pytest.raises(DataProblem, match=f"^{own}: a file of 5 bytes that was not prepared"):
        world.make()
    assert own.read_text() == "mine\n"
    own.unlink()
    world.make()
    for text in ("no json", "[]", '{"bytes": {}}'):
        (world.root / "statistics.json").write_text(text)
        with pytest.raises(
            DataProblem, match=r"train\.en: a file of [0-9,]+ bytes that was not prepared"
        ):
            world.make()


def test_the_real_corpora_agree_with_each_other():
    real = Wmt()
    train = [c.name for c in real.corpora("v11") if c.split == "train"]
    assert train == ["europarl-v7", "commoncrawl", "news-commentary-v11"]
    for corpus in (*real.always, *NEWS_COMMENTARY.values()):
        assert corpus.urls[0].startswith("https://")
        assert {url.rpartition("/")[2] for url in corpus.urls} == {corpus.archive}
        lengths = {"md5": 32, "sha256": 64}
        assert all(len(digest) == lengths[name] for name, digest in corpus.sums.items())
        for text, language in zip(corpus.texts, ("en", "de"), strict=True):
            assert text.removesuffix(".sgm").endswith(f".{language}")


def test_newstests_are_those_of_sacrebleu():
    from sacrebleu.dataset import DATASETS

    for name, corpus in {"wmt13": NEWSTEST_2013, "wmt14/full": NEWSTEST_2014}.items():
        theirs = DATASETS[name]
        assert tuple(theirs.langpairs["en-de"]) == corpus.texts
        assert [corpus.sums["md5"]] == theirs.md5
