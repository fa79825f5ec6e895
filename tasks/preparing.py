"""The data sets that `scripts.prepare` makes: from what the user has, or from their own hosts."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from tasks.base import DataProblem
from tasks.download import Report
from tasks.hub import obtain
from tasks.making import Say
from tasks.manifests import Manifest, read_manifest
from tasks.sources import Source, check_links, recognise

WMT14_VOCABULARY = 8192  # the paper's


@dataclass(frozen=True)
class Options:
    """What a user may ask for."""

    data: Path  # the data root
    sources: Sequence[str] = ()  # paths and hf:// addresses; none: download
    subsets: Sequence[str] = ()  # of LibriSpeech
    news_commentary: str = "v11"  # of WMT14


@dataclass(frozen=True)
class DataSet:
    """One task's data: its folder below the data root, and how it is had without a source."""

    name: str
    folder: str
    forms: str  # the module that lists them as FORMS
    download: Callable[[Options, Path, Report, Say], bool]
    size_option: str = ""  # what a run has to be told about a set of another size


def prepare(data_set: DataSet, options: Options, report: Report, say: Say) -> Manifest:
    """Makes the set and says what it is; DataProblem if that is not possible."""
    root = options.data / data_set.folder
    forms: tuple[type[Source], ...] = import_module(data_set.forms).FORMS
    if options.sources:
        paths = [obtain(source, options.data, say) for source in options.sources]
        source, _ = recognise(forms, paths, data_set.name)
        _apply(source, options)
        manifest, is_new = source.prepare(root, data_set.name, report, say)
    else:
        manifest, is_new = _without_source(data_set, forms, options, root, report, say)
    for line in summary(manifest):
        say(f"  {line}")
    say(f"{root}: {'ready' if is_new else 'complete; nothing to do'}; {manifest.verdict()}")
    if manifest.differences:
        option = data_set.size_option
        say(
            "The report will list this among its deviations."
            + (f" Runs refuse another size unless they are told: {option}." if option else "")
        )
    return manifest


def _without_source(
    data_set: DataSet,
    forms: Sequence[type[Source]],
    options: Options,
    root: Path,
    report: Report,
    say: Say,
) -> tuple[Manifest, bool]:
    """What lies in the folder is checked in place; otherwise the set is downloaded."""
    known = read_manifest(root)
    is_own = known is None or all(part.action == "in place" for part in known.parts.values())
    if is_own and root.is_dir():
        source = _in_place(data_set, forms, options, root)
        if source is not None:
            return source.prepare(root, data_set.name, report, say)
    elif known is not None and root.is_dir():
        check_links(root)
        if data_set.name == "imagenet" or not (root / "statistics.json").exists():
            if data_set.name != "librispeech":  # of which subsets may be missing
                return known, False
    is_new = data_set.download(options, root, report, say)
    manifest = read_manifest(root)
    assert manifest is not None, "whoever makes a set leaves a manifest"
    return manifest, is_new


def _in_place(
    data_set: DataSet, forms: Sequence[type[Source]], options: Options, root: Path
) -> Source | None:
    """The user's own data in the folder; None if there is none, or a download was begun there."""
    if (root / "statistics.json").exists() or not any(root.iterdir()):
        return None
    try:
        linked = [form for form in forms if form.action == "linked"]
        source, _ = recognise(linked, [root], data_set.name)
        _apply(source, options)
    except DataProblem:
        if data_set.name == "imagenet":  # which is never downloaded
            raise
        return None
    if data_set.name == "librispeech" and not options.subsets:
        from tasks.librispeech.prepare import SUBSETS

        return source if set(SUBSETS) <= set(source.part_names() or ()) else None
    return source


def summary(manifest: Manifest) -> list[str]:
    """A line for each part."""
    lines = []
    for name, part in manifest.parts.items():
        counts = ", ".join(f"{count:,} {what}" for what, count in part.counts.items())
        lines.append(f"{name}: {counts}, {part.bytes / 1e6:,.1f} MB ({part.form}, {part.action})")
        lines += [f"{name}: {remark}" for remark in part.remarks]
    return lines


def describe(error: OSError, root: Path) -> str:
    """One line for what a disk or a permission prevents."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{root}: its disk is full: free some space, then run the same command to resume"
    what = error.strerror or str(error)
    return f"{error.filename or root}: {what}; put this right, then run the same command to resume"


def _apply(source: Source, options: Options) -> None:
    choose = getattr(source, "choose", None)
    if choose is not None and options.subsets:
        choose(options.subsets)
    if hasattr(source, "news_commentary"):
        source.news_commentary = options.news_commentary


def _imagenet(options: Options, root: Path, report: Report, say: Say) -> bool:
    raise DataProblem(
        f"{root}: ImageNet (ILSVRC2012) has to be obtained from https://image-net.org or Kaggle,"
        " after registration; then: python -m scripts.prepare imagenet --from PATH"
    )


def _librispeech(options: Options, root: Path, report: Report, say: Say) -> bool:
    from tasks.librispeech.prepare import SUBSETS, prepare

    return prepare(root, report, options.subsets or list(SUBSETS), say=say)


def _wmt14(options: Options, root: Path, report: Report, say: Say) -> bool:
    from tasks.wmt14.prepare import prepare

    return prepare(root, report, news_commentary=options.news_commentary, say=say)


def _wikitext103(options: Options, root: Path, report: Report, say: Say) -> bool:
    from tasks.wikitext103.prepare import prepare

    return prepare(root, report, say=say)


DATA_SETS = {
    "imagenet": DataSet(
        "imagenet",
        "imagenet",
        "tasks.imagenet.forms",
        _imagenet,
        "data.train_images=null",
    ),
    "librispeech": DataSet(
        "librispeech",
        "LibriSpeech",
        "tasks.librispeech.forms",
        _librispeech,
        "data.train_utterances=null",
    ),
    "wmt14": DataSet("wmt14", "wmt14", "tasks.wmt14.forms", _wmt14),
    "wikitext103": DataSet("wikitext-103", "wikitext-103", "tasks.wikitext103.forms", _wikitext103),
}


def prepare_task(name: str, options: Options, report: Report, say: Say) -> None:
    """A task's data; of WMT14 the vocabulary is learned and the pairs are encoded as well."""
    data_set = DATA_SETS[name]
    prepare(data_set, options, report, say)
    if name == "wmt14":
        from tasks.wmt14.corpus import Corpus

        corpus = Corpus(options.data / data_set.folder, WMT14_VOCABULARY, report=report)
        for what, count in corpus.statistics.items():
            say(f"  {what}: {count:,}")
