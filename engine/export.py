"""A trained model as a folder that needs neither its run nor this suite's checkpoints.

    model.safetensors  the weights
    config.json        task, model options, preprocessing, recipe, training, and the sums of all
    …                  the task's own files: classes, alphabet, subword or word vocabulary
    README.md          the model card

Nothing in it is a pickle.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from engine.records import read_json, to_json
from tasks.files import parse_json, rename

FORMAT = 1
WEIGHTS_FILE, CONFIG_FILE, CARD_FILE = "model.safetensors", "config.json", "README.md"


class DamagedExport(Exception):
    """What is wrong with which file."""


@dataclass(frozen=True)
class Export:
    """The content of an export, checked."""

    config: dict[str, Any]
    weights: dict[str, Tensor]
    files: dict[str, bytes]


def write_export(
    folder: Path,
    weights: Mapping[str, Tensor],
    config: Mapping[str, Any],
    files: Mapping[str, bytes],
    card: str,
) -> None:
    """The whole folder or nothing; FileExistsError if there is something already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder}: exists and is not empty; give a new folder")
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    content = {WEIGHTS_FILE: save(plain, {"format": "pt"}), **files}
    sums = {name: {"size": len(data), "sha256": _sha256(data)} for name, data in content.items()}
    whole = to_json({"format": FORMAT, **config, "files": sums})
    whole["checksum"] = _checksum(whole)
    content[CONFIG_FILE] = (json.dumps(whole, indent=2, ensure_ascii=False) + "\n").encode()
    content[CARD_FILE] = card.encode()
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        made.chmod(0o755)  # mkdtemp's is for its owner alone
        for name, data in content.items():
            (made / name).write_bytes(data)
        rename(made, folder)  # also over an empty folder
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def read_export(folder: Path) -> Export:
    """Every file that config.json names, with the size and the sum that it says."""
    config = read_export_config(folder)
    content = {}
    for name, wanted in config["files"].items():
        if Path(name).name != name:
            raise DamagedExport(f"{folder / CONFIG_FILE}: {name!r} is not the name of a file")
        content[name] = _read(folder / name)
        if _sha256(content[name]) != wanted["sha256"]:
            size, right = len(content[name]), wanted["size"]
            what = "bytes were changed" if size == right else f"{size:,} bytes, not {right:,}"
            raise DamagedExport(f"{folder / name}: is damaged: its SHA-256 is another: {what}")
    if WEIGHTS_FILE not in content:
        raise DamagedExport(f"{folder / CONFIG_FILE}: does not name {WEIGHTS_FILE}")
    try:
        weights = load(content.pop(WEIGHTS_FILE))
    except (SafetensorError, ValueError) as error:
        raise DamagedExport(f"{folder / WEIGHTS_FILE}: is damaged: {error}") from None
    return Export(config, weights, content)


def read_export_config(folder: Path) -> dict[str, Any]:
    """config.json as it was written."""
    path = folder / CONFIG_FILE
    _read(path)
    try:
        raw = parse_json(path.read_text(encoding="utf-8"))
        checksum = raw.pop("checksum")
        if raw["format"] != FORMAT:
            raise DamagedExport(f"{path}: has format {raw['format']}; {FORMAT} can be read")
        if checksum != _checksum(raw):
            raise DamagedExport(f"{path}: is damaged: its content does not have its checksum")
        config = read_json(path)
        _ = config["recipe"]["task"], config["weights_sha256"], config["training"]["run_id"]
        return config
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DamagedExport(f"{path}: is not an export's configuration: {error!r}") from None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DamagedExport(f"{path}: can't be read: {error.strerror}") from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return _sha256(json.dumps(content, sort_keys=True).encode())
