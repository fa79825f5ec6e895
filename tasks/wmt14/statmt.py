"""The archives of statmt.org that the paper's code trained and tested on, and their checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tasks.base import DataProblem


@dataclass(frozen=True)
class Corpus:
    """An archive and the two texts of it that are read."""

    name: str
    split: str
    urls: tuple[str, ...]
    sums: Mapping[str, str]  # of the archive, by the names of hashlib
    texts: tuple[str, str]  # en, de: names in the archive; SGM if they end so, otherwise lines
    about: int  # bytes of both texts, to see that there is space
    size: int | None = None  # bytes of the archive

    @property
    def archive(self) -> str:
        return self.urls[0].rpartition("/")[2]


def _statmt(path: str) -> tuple[str, ...]:
    return f"https://{path}", f"http://{path}"


def _lines_of(name: str) -> tuple[str, str]:
    return f"{name}.en", f"{name}.de"


EUROPARL = Corpus(
    "europarl-v7",
    "train",
    _statmt("www.statmt.org/wmt13/training-parallel-europarl-v7.tgz"),
    {"sha256": "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7"},
    _lines_of("training/europarl-v7.de-en"),
    about=700_000_000,
    size=657_632_379,
)
COMMON_CRAWL = Corpus(
    "commoncrawl",
    "train",
    _statmt("www.statmt.org/wmt13/training-parallel-commoncrawl.tgz"),
    {"sha256": "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5"},
    _lines_of("commoncrawl.de-en"),
    about=800_000_000,
    size=918_311_367,
)
NEWS_COMMENTARY = {
    "v11": Corpus(
        "news-commentary-v11",
        "train",
        _statmt("data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz"),
        {"sha256": "cfe8ab047e05043476e498ee765c98e939c7b7d6d294e856344c84476b619d6a"},
        _lines_of("training-parallel-nc-v11/news-commentary-v11.de-en"),
        about=100_000_000,
        size=75_178_032,
    ),
    "v9": Corpus(
        "news-commentary-v9",
        "train",
        _statmt("www.statmt.org/wmt14/training-parallel-nc-v9.tgz"),
        {"sha256": "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485"},
        _lines_of("training/news-commentary-v9.de-en"),
        about=100_000_000,
        size=80_418_416,
    ),
}
NEWSTEST_2013 = Corpus(
    "newstest2013",
    "valid",
    _statmt("www.statmt.org/wmt13/test.tgz"),
    {"md5": "48eca5d02f637af44e85186847141f67"},
    # In this archive every language is a source.
    ("test/newstest2013-src.en.sgm", "test/newstest2013-src.de.sgm"),
    about=2_000_000,
)
NEWSTEST_2014 = Corpus(
    "newstest2014",
    "test",
    _statmt("www.statmt.org/wmt14/test-full.tgz"),
    {"md5": "a8cd784e006feb32ac6f3d9ec7eb389a"},
    ("test-full/newstest2014-deen-src.en.sgm", "test-full/newstest2014-deen-ref.de.sgm"),
    about=2_000_000,
)


@dataclass(frozen=True)
class Wmt:
    """The corpora in the order in which they are written: other ones for tests.

    The checksums of the training corpora are those of TensorFlow Datasets, of the others those of
    sacreBLEU. WMT14 has version 9 of the News Commentary; the paper's code takes WMT16's, 11.
    """

    always: tuple[Corpus, ...] = (EUROPARL, COMMON_CRAWL, NEWSTEST_2013, NEWSTEST_2014)
    news_commentary: Mapping[str, Corpus] = field(
        default_factory=lambda: MappingProxyType(NEWS_COMMENTARY)
    )

    def corpora(self, news_commentary: str) -> tuple[Corpus, ...]:
        if news_commentary not in self.news_commentary:
            raise DataProblem(
                f"news_commentary: must be one of {[*self.news_commentary]}, not"
                f" {news_commentary!r}"
            )
        return (*self.always, self.news_commentary[news_commentary])


OFFICIAL_PAIRS = {  # of the sets that are evaluated: newstest2013 and newstest2014
    "valid": {"pairs": 3_000},
    "test": {"pairs": 3_003},
}
