"""What a model of images predicts: of the examples of an evaluation, and of any image file."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tasks.base import BadInput, Batch, DataProblem, HubFacts, Input, Prediction, Task
from tasks.files import parse_json
from tasks.imagenet.data import ImageNetDataOptions, Images
from tasks.imagenet.images import MEANS, RANGE, RESIZE_TO_CROP, UnreadableImage, evaluation_image
from tasks.imagenet.index import class_names
from tasks.imagenet.model import ResNetOptions

SHOWN = 5  # classes of a prediction
FOLDERS_FILE, NAMES_FILE = "classes.json", "class_names.json"  # by label, and by folder
# Names of WordNet's ids, as ILSVRC2012's and Tiny ImageNet's releases have them: a line each.
DESCRIPTIONS = ("LOC_synset_mapping.txt", "synset_words.txt", "words.txt", "classes.txt")


class ImagePredictions(Task):
    """The part of the task that names classes."""

    hub = HubFacts(
        "image-classification",
        {"top1": ("accuracy", "top-1 accuracy (%)"), "top5": ("accuracy", "top-5 accuracy (%)")},
        example="image.jpeg",
    )

    model_options: ResNetOptions
    data_options: ImageNetDataOptions
    given_classes: list[str] | None = None  # folders, in the order of the labels
    _given_names: dict[str, str] | None = None

    @property
    @abstractmethod
    def root(self) -> Path:
        """The data set's folder."""

    @abstractmethod
    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """(N, classes) of a batch's images."""

    @abstractmethod
    def image_path(self, split: str, index: int) -> Path:
        """The file of an example, relative to the data set's folder."""

    @cached_property
    def classes(self) -> list[str]:
        """Folders of the classes, in the order of the labels."""
        return self.given_classes or class_names(self.root / "train")

    @cached_property
    def names(self) -> dict[str, str]:
        """Names of classes by folder, where something tells them."""
        if self._given_names is not None:
            return self._given_names
        for file in DESCRIPTIONS:
            if (self.root / file).is_file():
                text = (self.root / file).read_text(encoding="utf-8", errors="replace")
                lines = text.splitlines()
                found = dict([*line.split(maxsplit=1), ""][:2] for line in lines if line.strip())
                return {folder: found[folder] for folder in self.classes if folder in found}
        return {}

    def model_files(self) -> dict[str, bytes]:
        """The names are a file of their own: they may become known later, and change no label."""
        files: dict[str, Any] = {FOLDERS_FILE: self.classes}
        if self.names:
            files[NAMES_FILE] = self.names
        return {
            name: (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()
            for name, content in files.items()
        }

    def use_model_files(self, files: Mapping[str, bytes]) -> None:
        try:
            self.given_classes = [str(folder) for folder in parse_json(files[FOLDERS_FILE])]
            self._given_names = dict(parse_json(files.get(NAMES_FILE, b"{}")))
        except (KeyError, TypeError, ValueError) as error:
            raise DataProblem(f"{FOLDERS_FILE}: not a list of classes: {error!r}") from error
        found, wanted = len(self.given_classes), self.model_options.classes
        if found != wanted:
            raise DataProblem(f"{FOLDERS_FILE}: {found:,} classes, but the model has {wanted:,}")
        for cached in ("classes", "names"):
            self.__dict__.pop(cached, None)

    def protocol(self, split: str) -> str:
        size = self.data_options.image_size
        return f"central {size} × {size} of the shorter side at {round(RESIZE_TO_CROP * size)}"

    def preprocessing(self) -> dict[str, Any]:
        size = self.data_options.image_size
        return {
            "image_size": size,
            "shorter_side": round(RESIZE_TO_CROP * size),
            "crop": "central",
            "interpolation": "bilinear without antialiasing",
            "channels": "RGB",
            "mean": list(MEANS),
            "divide_by": RANGE,
        }

    def keep(self, batch: Images, logits: Tensor) -> None:
        """Adds the wanted ones of a batch to the predictions."""
        assert self.predictions is not None
        for row, index in enumerate(batch.tensors["index"].tolist()):
            if self.predictions.wants(index):
                label = int(batch.tensors["label"][row])
                file = self.image_path(batch.split, index)
                scores = self._top(logits[row])
                self.predictions.rows[index] = {
                    "id": f"{self.classes[label]}/{file.name}",
                    "file": file.as_posix(),
                    "reference": self._name(label),
                    "hypothesis": scores[0]["class"],
                    "top5": scores,
                    "loss": F.cross_entropy(
                        logits[row : row + 1], batch.tensors["label"][row : row + 1]
                    ).item(),
                }

    def read_inputs(self, sources: Sequence[str], options: Any) -> Iterator[Input]:
        if not sources:
            yield Input("images", BadInput("no image files were given"))
        for source in sources:
            try:
                if not Path(source).is_file():
                    raise BadInput("no such file")
                yield Input(source, evaluation_image(source, self.data_options.image_size))
            except BadInput as problem:
                yield Input(source, problem)
            except (UnreadableImage, OSError):  # Pillow's message names a buffer, not the file
                yield Input(source, BadInput("no image that can be read"))

    def predict(self, model: nn.Module, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        device = next(model.parameters()).device
        images = torch.stack([torch.from_numpy(image) for image in inputs]).permute(0, 3, 1, 2)
        batch = Batch({"image": images}, len(images)).to(device)
        found = []
        for row in self.logits(model, batch):
            top = self._top(row)
            text = "  ".join(f"{100 * one['p']:.1f} % {one['class']}" for one in top)
            found.append({"hypothesis": top[0]["class"], "top5": top, "text": text})
        return found

    def _top(self, logits: Tensor) -> list[dict[str, Any]]:
        """The likeliest classes; of equal ones those with the smaller label, as `places` has it."""
        p, labels = logits.double().softmax(0).sort(descending=True, stable=True)
        pairs = zip(labels.tolist()[:SHOWN], p.tolist()[:SHOWN], strict=True)
        return [{"class": self._name(label), "p": p} for label, p in pairs]

    def _name(self, label: int) -> str:
        return self.names.get(self.classes[label], self.classes[label])
