"""Runs read back from W&B, and a W&B report of them; nothing here belongs to training."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.plan import Duration
from engine.records import EVALUATED, FINISHED, PLACES, RunRecord, from_json
from engine.rows import sort_rows, thin_curves
from tasks.files import parse_json

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as reports

SEGMENTS = "offline-run-*"
INSPECT = (sys.executable, "-m", "wandb", "leet", "inspect", "--json")
TIMEOUT = 30  # seconds that W&B may take to answer
# What our mirror adds to a run's configuration.
DERIVED = ("plan", "parameters", "signature", "fingerprint", "paper_row", "provenance")
HOW_TO_LOG_IN = "log in with `wandb login`, or set WANDB_API_KEY"


class WandbProblem(Exception):
    """W&B does not give what was requested; the message is for the user."""


@dataclass(frozen=True)
class WandbRun:
    """A run as W&B has it. `read` fetches its rows, which may take a while."""

    wandb_id: str
    run_id: str
    config: dict[str, Any]
    status: str  # "finished", or what W&B calls another end
    read: Callable[[], list[dict[str, float]]]
    summary: dict[str, Any] = field(default_factory=dict)
    url: str = ""


def find_segments(folder: Path) -> list[Path]:
    """The offline segments below a folder, oldest first: their names begin with the time."""
    found = (path for path in folder.rglob(SEGMENTS) if any(path.glob("*.wandb")))
    return sorted(found, key=lambda path: (path.name, path))


def read_offline(folder: Path) -> WandbRun:
    """An offline run from its segment, or from all segments of a run's folder.

    Rows of later segments come last; a step that was logged twice is there twice.
    """
    is_segment = any(folder.glob("*.wandb"))
    segments = [folder] if is_segment else find_segments(folder / "wandb")
    if not segments:
        raise WandbProblem(f"{folder}: there is no {SEGMENTS} with a .wandb file in it")
    config: dict[str, Any] = {}
    rows: list[dict[str, float]] = []
    wandb_id = run_id = ""
    status = "unfinished"
    for segment in segments:
        status = "unfinished"  # unless its last record differs
        for record in _inspect(segment):
            body: dict[str, Any] = record.get(record["type"]) or {}
            if record["type"] == "run":
                config |= body.get("config", {}).get("update", {})
                wandb_id = body.get("run_id") or wandb_id
                run_id = body.get("display_name") or wandb_id
            elif record["type"] == "history":
                rows += [_row(body["item"])] if "step" in body["item"] else []
            elif record["type"] == "exit":
                status = "failed" if body.get("exit_code") else "finished"
    return WandbRun(wandb_id, run_id, _ours(config), status, lambda: rows)


def offline_places(segments: Sequence[Path]) -> set[int]:
    """Places in metrics.jsonl of the rows in some segments of a run."""
    places = set()
    for segment in segments:
        for record in _inspect(segment):
            if record["type"] == "history":
                item = record["history"]["item"]
                if "step" in item:
                    places.add(int(item["_step"]))
    return places


def is_project(text: str) -> bool:
    """Whether a text is ENTITY/PROJECT."""
    entity, slash, name = text.strip("/").partition("/")
    return bool(entity and slash and name) and "/" not in name


def read_project(project: str) -> list[WandbRun]:
    """The runs of ENTITY/PROJECT without its evaluations; their rows come later, run by run."""
    import wandb

    require_login()
    project = project.strip("/")
    with _as_problem(f"{project} can't be read"):
        found = [_remote(run) for run in wandb.Api(timeout=TIMEOUT).runs(project)]
    return [run for run in found if EVALUATED not in run.config]


def read_records(project: str) -> list[RunRecord]:
    """Records of the finished runs of ENTITY/PROJECT; WandbProblem where there is none."""
    found = [record for run in read_project(project) if (record := record_of(run)) is not None]
    if not found:
        raise WandbProblem(f"W&B: {project} has no finished run of this suite")
    return found


def record_of(run: WandbRun) -> RunRecord | None:
    """What a finished run's record is, from what W&B was told; None for any other run."""
    config, summary = run.config, run.summary
    if summary.get("outcome") != FINISHED or not set(DERIVED) <= set(config):
        return None

    def below(prefix: str) -> dict[str, float]:
        found = {k.removeprefix(prefix): v for k, v in summary.items() if k.startswith(prefix)}
        return {name: from_json(value) for name, value in found.items() if "/" in name}

    return RunRecord(
        run_id=run.run_id,
        experiment=config["experiment"],
        scale=config["scale"],
        seed=config["seed"],
        fingerprint=config["fingerprint"],
        final=below("final/"),
        best=below("best/"),  # without its step and epoch
        wall_s=summary["wall_s"],
        plan=config["plan"],
        environment=config["provenance"],
        config={key: value for key, value in config.items() if key not in (*DERIVED, *PLACES)},
        signature=config["signature"],
        curves=thin_curves(sort_rows(run.read())),
        parameters=config["parameters"],
        url=run.url,
    )


def is_cut_short(config: Mapping[str, Any], rows: Sequence[Mapping[str, float]], unit: str) -> bool:
    """Whether a run ended before its budget, of which W&B knows nothing."""
    if not rows or not rows[-1].get("epoch"):
        return False
    step = rows[-1]["step"]
    budget = Duration.parse(str(config["budget"]), "budget", unit)
    steps = budget.in_steps(
        round(step / rows[-1]["epoch"]), int(config["batch"]["global_size"]), None
    )
    return step < steps - 1


def require_login(verify: bool = False) -> None:
    """A WandbProblem where no key is configured or, if asked to verify, W&B does not take it."""
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    with _as_problem("there is no way to it, or it does not know the key"):
        if not wandb.login(prompt=False, verify=verify):
            raise WandbProblem(f"W&B: no key is configured; {HOW_TO_LOG_IN}")


def build_report(
    project: str,
    title: str,
    run_ids: Sequence[str],
    metrics: Sequence[str],
    axis: str,
    group_key: str,
    along: str | None = None,
) -> reports.Report:
    """A report that is not saved yet: a panel for each metric, one line for each group.

    `project` is ENTITY/PROJECT, `run_ids` are W&B's own, `group_key` is a dotted key of a run's
    configuration. Lines are means over the group's runs, bands their standard deviation. `along`,
    another such key, adds a panel of each run's final value of the first metric against it.
    """
    import wandb_workspaces.reports.v2 as reports
    from wandb_workspaces import expr

    entity, _, name = project.rpartition("/")
    runs = reports.Runset(
        entity=entity,
        project=name,
        name=f"by {group_key}",
        filters=expr.And(expr.Metric("ID").isin(list(run_ids))),
        groupby=[f"config.{group_key}"],
    )
    panels: list[Any] = [
        reports.LinePlot(
            title=metric,
            x=axis,
            y=[metric],
            groupby=reports.Config(group_key),
            groupby_aggfunc="mean",
            groupby_rangefunc="stddev",
            layout=reports.Layout(x=12 * (number % 2), y=10 * (number // 2), w=12, h=10),
        )
        for number, metric in enumerate(metrics)
    ]
    if along:
        at = reports.Layout(x=0, y=10 * ((len(panels) + 1) // 2), w=24, h=10)
        y = reports.SummaryMetric(f"final/{metrics[0]}")
        panels.append(
            reports.ScatterPlot(
                title=f"final {metrics[0]}", x=reports.Config(along), y=y, log_x=True, layout=at
            )
        )
    return reports.Report(
        project=name,
        entity=entity,
        title=title[:128],  # W&B's limit
        description="Mean and standard deviation over the runs of a group.",
        blocks=[reports.PanelGrid(runsets=[runs], panels=panels)],
        width="fluid",
    )


def save_report(report: reports.Report) -> str:
    """Uploads a report and returns its address; a WandbProblem without a login."""
    import wandb

    require_login()
    with _as_problem("the report can't be saved"):
        if not report.entity:
            report.entity = str(wandb.Api(timeout=TIMEOUT).default_entity)
            for block in report.blocks:
                for runs in getattr(block, "runsets", ()):
                    runs.entity = report.entity
        return str(report.save().url)


def _remote(run: Any) -> WandbRun:
    def read() -> list[dict[str, float]]:
        with _as_problem(f"the rows of {run.name} can't be read"):
            return [_row(item) for item in run.scan_history() if "step" in item]

    config, summary = _ours(run.config), dict(run.summary_metrics or {})
    return WandbRun(run.id, run.name, config, run.state, read, summary, run.url)


def _inspect(segment: Path) -> Iterator[dict[str, Any]]:
    """The records of a segment as `wandb leet inspect` prints them; damaged ones are left out."""
    done = subprocess.run([*INSPECT, str(segment)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise WandbProblem(f"{segment}: W&B can't read it: {last}")
    for line in done.stdout.splitlines():
        try:
            record = parse_json(line)
        except ValueError:
            continue
        if isinstance(record, dict) and "type" in record:
            yield record


def _row(item: Mapping[str, Any]) -> dict[str, float]:
    """What our tracker logged: W&B's own columns begin with an underscore."""
    return {
        key: number
        for key, value in item.items()
        if not key.startswith("_") and isinstance(number := from_json(value), int | float)
    }


def _ours(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith("_")}


@contextmanager
def _as_problem(what: str) -> Iterator[None]:
    """W&B raises errors of many kinds, also of the network's; each becomes one clear line."""
    try:
        yield
    except WandbProblem:
        raise
    except Exception as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WandbProblem(f"W&B: {what}: {first}") from error
