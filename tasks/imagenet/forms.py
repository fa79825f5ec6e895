"""The forms in which ImageNet is accepted, in the order in which they are recognised."""

from __future__ import annotations

from tasks.imagenet.folders import Folders, OfficialArchives
from tasks.imagenet.kaggle_zip import KaggleZip
from tasks.imagenet.packed import ParquetImages
from tasks.imagenet.webdataset import WebDataset
from tasks.sources import Source

FORMS: tuple[type[Source], ...] = (
    OfficialArchives,
    KaggleZip,
    ParquetImages,
    WebDataset,
    Folders,
)
