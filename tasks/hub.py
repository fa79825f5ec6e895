"""Data sets of the Hugging Face hub: `hf://owner/name[/folder][@revision]`, by huggingface_hub.

Files go to the hub's own cache; files that are complete there are not downloaded again. Sizes are
checked by huggingface_hub, SHA-256 sums, where the hub has them, here.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from tasks.base import DataProblem
from tasks.caches import checksum
from tasks.making import Say

ADDRESS = re.compile(
    r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<folder>[\w./-]+?))?/?(?:@(?P<revision>[\w./-]+))?",
    re.ASCII,
)
PATTERNS = ("*.parquet", "*.tar", "*.zip", "*.tar.gz")  # what the forms read


class _File(NamedTuple):
    name: str
    size: int
    sha256: str | None


def is_hub_address(source: str) -> bool:
    """Whether it is to be downloaded from the hub."""
    return source.startswith("hf://")


def obtain(source: str, data: Path, say: Say) -> Path:
    """A path as it is; an address of the hub as the folder of its downloaded files."""
    return download(source, say) if is_hub_address(source) else Path(source).expanduser()


def download(address: str, say: Say) -> Path:
    """The folder of a snapshot; DataProblem if it can't be had, or a checksum is wrong."""
    match = ADDRESS.fullmatch(address)
    if match is None or ".." in address:
        raise DataProblem(f"{address}: must be as hf://owner/name or hf://owner/name/folder")
    hub = _library(address)
    endpoint = os.environ.get("HF_ENDPOINT") or None
    folder = match["folder"]
    patterns = [f"{folder}/{p}" for p in PATTERNS] if folder else list(PATTERNS)
    try:
        revision, files = _list(hub, match, endpoint, patterns)
        if not files:
            raise DataProblem(f"{address}: no {', '.join(PATTERNS)} in it")
        _check_space(hub, files)
        say(f"{address}: {len(files):,} files, {sum(f.size for f in files) / 1e9:,.2f} GB")
        options = {
            "repo_id": match["repo"],
            "repo_type": "dataset",
            "revision": revision,
            "allow_patterns": patterns,
            "endpoint": endpoint,
        }
        place = Path(hub.snapshot_download(**options))
        if _wrong(place, files):
            say(f"{address}: a file in the hub's cache is damaged and is downloaded again")
            place = Path(hub.snapshot_download(**options, force_download=True))
    except DataProblem:
        raise
    except Exception as error:  # the hub's own, its HTTP library's, and those of the disk
        raise DataProblem(f"{address}: {_reason(error)}") from error
    wrong = _wrong(place, files)
    if wrong:
        raise DataProblem(f"{place / wrong}: its size or SHA-256 is not the one that the hub names")
    return place / folder if folder else place


def _list(
    hub: Any, match: re.Match[str], endpoint: str | None, patterns: list[str]
) -> tuple[str, list[_File]]:
    """The commit, and the files with sizes and checksums."""
    api = hub.HfApi(endpoint=endpoint)
    info = api.dataset_info(match["repo"], revision=match["revision"], files_metadata=True)
    names = set(
        hub.utils.filter_repo_objects(
            [file.rfilename for file in info.siblings], allow_patterns=patterns
        )
    )
    files = [
        _File(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings
        if file.rfilename in names
    ]
    return str(info.sha), files


def _check_space(hub: Any, files: list[_File]) -> None:
    cache = Path(hub.constants.HF_HUB_CACHE)
    there = next(p for p in [cache, *cache.absolute().parents] if p.exists())
    needed, free = sum(file.size for file in files), shutil.disk_usage(there).free
    if free < needed:
        raise DataProblem(
            f"{cache}: not enough space: {needed / 1e9:,.1f} GB are needed and {free / 1e9:,.1f} GB"
            " are free; HF_HOME names another place"
        )


def _wrong(place: Path, files: list[_File]) -> str | None:
    """The first file whose size or checksum is not the hub's."""
    for file in files:
        path = place / file.name
        if not path.is_file() or path.stat().st_size != file.size:
            return file.name
        if file.sha256 and checksum(path) != file.sha256:
            return file.name
    return None


def _library(address: str) -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise DataProblem(
            f"{address}: needs huggingface_hub: pip install huggingface_hub; or download the files"
            " yourself and name their folder"
        ) from None
    return huggingface_hub


def _reason(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return f"cannot be had from the hub: {text.splitlines()[0]}"
