"""Subjects by name, imported only when they are asked for."""

from __future__ import annotations

import importlib

from tasks.base import Task

TASKS = {
    "imagenet": "tasks.imagenet.task:ImageNet",
    "librispeech": "tasks.librispeech.task:LibriSpeech",
    "wmt14": "tasks.wmt14.task:Wmt14",
    "wikitext103": "tasks.wikitext103.task:WikiText103",
}


def task_class(name: str) -> type[Task]:
    """The class of a task; KeyError for a name that is not in TASKS."""
    module, _, attribute = TASKS[name].partition(":")
    found: type[Task] = getattr(importlib.import_module(module), attribute)
    return found
