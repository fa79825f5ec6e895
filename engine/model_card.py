"""The README.md of an export: what the model is, where its numbers come from, how it is used.

Its head is the metadata of the Hugging Face Hub, with the evaluation results as a `model-index`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tasks.base import HubFacts


@dataclass(frozen=True)
class Measured:
    """Metrics of one evaluation of exactly these weights, and where they come from."""

    data: str
    metrics: Mapping[str, float]  # by "<split>/<metric>"
    protocols: Mapping[str, str]  # by split
    source: str  # "the run's evaluation at step 40"
    environment: Mapping[str, Any]  # commit, versions, hardware; empty where not known


@dataclass(frozen=True)
class CardFacts:
    """All that a card states."""

    name: str
    experiment: str
    scale: str
    task: str
    label: str
    step: int
    seed: int
    parameters: int
    sha256: str
    recipe: Mapping[str, Any]
    measured: Sequence[Measured]
    environment: Mapping[str, Any]  # of the training
    initial: Mapping[str, Any] | None = None  # whose weights the training began with


def write_card(facts: CardFacts, hub: HubFacts, folder: str) -> str:
    """Markdown with its YAML head."""
    head = yaml.safe_dump(metadata(facts, hub), sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n{_body(facts, folder, hub.example)}"


def metadata(facts: CardFacts, hub: HubFacts) -> dict[str, Any]:
    """The Hub's: the first evaluation of each split, as far as numbers are finite."""
    results: list[dict[str, Any]] = []
    known: set[tuple[str, str]] = set()
    for measured in facts.measured:
        for split in measured.protocols:
            found = [
                {"type": kind, "value": measured.metrics[f"{split}/{name}"], "name": shown}
                for name, (kind, shown) in hub.metrics.items()
                if math.isfinite(measured.metrics.get(f"{split}/{name}", math.nan))
            ]
            if found and (measured.data, split) not in known:
                known.add((measured.data, split))
                results.append(
                    {
                        "task": {"type": hub.pipeline},
                        "dataset": {"name": measured.data, "type": measured.data, "split": split},
                        "metrics": found,
                    }
                )
    return {
        **({"language": list(hub.languages)} if hub.languages else {}),
        "pipeline_tag": hub.pipeline,
        "tags": [*dict.fromkeys(["novograd", facts.task, facts.recipe["optimizer"]["name"]])],
        "model-index": [{"name": facts.name, "results": results}],
    }


def _body(facts: CardFacts, folder: str, example: str) -> str:
    parts = [f"# {facts.name}", _about(facts), "## Evaluation", _evaluation(facts)]
    parts += ["## Training", _training(facts), "## Use", _use(facts, folder, example)]
    return "\n".join(f"\n{part}" for part in parts) + "\n"


def _about(facts: CardFacts) -> str:
    text = (
        f"Experiment `{facts.experiment}` of the NovoGrad reproduction suite, seed {facts.seed}: "
        f"{facts.parameters:,} parameters, trained with {facts.recipe['optimizer']['name']} on "
        f"{facts.recipe['data']['name']}. The weights are `{facts.label}`, of step {facts.step:,}."
    )
    if facts.scale != "paper":
        text += (
            f"\n\nThis is a small run (`scale={facts.scale}`) for trying things out: its numbers "
            "can't be compared with the paper's."
        )
    return text


def _evaluation(facts: CardFacts) -> str:
    if not facts.measured:
        return "These weights were not evaluated."
    return "\n\n".join(_measured(measured) for measured in facts.measured)


def _measured(measured: Measured) -> str:
    """One evaluation: its origin, a table, and how each split was evaluated."""
    head = f"On {measured.data}, by {measured.source} ({_commit(measured.environment)}):"
    lines = [head, "", "| split | metric | value |", "|---|---|---|"]
    for name, value in measured.metrics.items():
        split, _, metric = name.partition("/")
        lines.append(f"| {split} | {metric} | {value:.6g} |")
    how = [f"- {split}: {protocol}" for split, protocol in measured.protocols.items() if protocol]
    return "\n".join([*lines, *(["", *how] if how else [])])


def _training(facts: CardFacts) -> str:
    recipe = facts.recipe
    options = ", ".join(f"{key} {value}" for key, value in recipe["optimizer"].items())
    hardware = facts.environment.get("hardware", {})
    machine = hardware.get("name") or ", ".join(hardware.get("names", ())) or "not known"
    versions = facts.environment.get("versions", {})
    rows = {
        "optimizer": options,
        "learning rate": f"{recipe['schedule']['shape']}, warm-up {recipe['schedule']['warmup']}",
        "budget": recipe["budget"],
        "batch": f"{recipe['batch']['global_size']} ({recipe['batch']['micro']} at a time)",
        "code": _commit(facts.environment),
        "software": ", ".join(f"{k} {v}" for k, v in versions.items() if v) or "not known",
        "hardware": machine,
        "weights' SHA-256": f"`{facts.sha256}`",
    }
    if facts.initial:
        origin = facts.initial
        rows["began with"] = f"{origin['run_id']}, step {origin['step']} (`{origin['sha256']}`)"
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"| | |\n|---|---|\n{table}\n\nThe complete recipe is in `config.json`."


def _commit(environment: Mapping[str, Any]) -> str:
    commit = environment.get("commit")
    if not commit:
        return "commit not known"
    return f"commit {commit[:12]}" + (" with local changes" if environment.get("dirty") else "")


def _use(facts: CardFacts, folder: str, example: str) -> str:
    scale = "" if facts.scale == "paper" else f" scale={facts.scale}"
    return (
        "In a checkout of the suite; `model.safetensors` and the files beside it can be read "
        "without it, `config.json` says how.\n\n```\n"
        f"python -m scripts.predict {folder} {example}\n"
        f"python -m scripts.evaluate {folder} paths.data=DATA\n"
        f"python -m scripts.launch experiment={facts.experiment}{scale} init_from={folder}\n```"
    )
