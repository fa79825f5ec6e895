"""The life of a run: build, restore, steps, evaluations, checkpoints, an orderly end."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engine.checkpoint import CheckpointError, CheckpointStore
from engine.clock import Clock
from engine.config import NOT_SCIENCE, RunConfig
from engine.distributed import Group
from engine.evaluation import evaluate
from engine.initialisation import scale_weights
from engine.plan import Plan
from engine.precision import autocast, make_scaler, parameter_dtype
from engine.progress import Progress
from engine.provenance import fingerprint
from engine.step import NonFiniteLoss, Stepper
from engine.tracking import Tracker, WandbSettings
from optim.factory import build_optimizer
from optim.larc import Larc
from optim.param_groups import Rule, build_param_groups
from optim.transforms import ClipGlobalNorm, Transform
from tasks.base import Batch, Shard, Task
from tasks.seeding import derive_seed


@dataclass
class Outcome:
    """How a run ended: "finished", "preempted" or "diverged"."""

    status: str
    step: int
    message: str
    final: dict[str, float]
    best: dict[str, float]
    wall_s: float
    skipped: int
    meters: dict[str, float]  # medians over the logged rows of this start


@dataclass
class Progressed:
    """All that changes in a run besides weights, optimizer and scaler; saved with these."""

    step: int = 0
    position: int = 0  # of the data: steps, and fp16's skipped ones
    skipped: int = 0
    wall_s: float = 0.0
    window_total: float = 0.0  # of the loss since the last logged row, as of the checkpoint
    window_weight: float = 0.0
    evaluated: int = -1  # the last step whose evaluation is done
    best_step: int = -1
    best_value: float = math.nan

    def epoch(self, plan: Plan) -> float:
        return self.step / plan.steps_per_epoch


class Trainer:
    """Knows the Task contract, and no task."""

    def __init__(
        self, config: RunConfig, plan: Plan, task: Task, group: Group, folder: Path, run_id: str
    ) -> None:
        self.config, self.plan, self.task, self.group = config, plan, task, group
        self.folder, self.run_id = folder, run_id
        self.at = Progressed()
        self.final: dict[str, float] = {}
        self.best: dict[str, float] = {}
        self.stop_requested = False
        self.device = group.device
        self.window = torch.zeros(2, dtype=torch.float64, device=self.device)  # loss: sum, weight
        self.module = self._build_model()
        self.optimizer = build_optimizer_of(config, self.module)
        self.scaler = make_scaler(config.hardware.precision, self.device)
        compiled: Any = torch.compile(self.module) if config.hardware.compile else self.module
        self.model = group.wrap(compiled)
        self.stepper = Stepper(
            task,
            self.model,
            self.optimizer,
            self.scaler,
            make_transforms(config),
            plan,
            group,
            config.seed,
            config.hardware.precision,
        )
        self.store = CheckpointStore(
            folder / "checkpoints",
            fingerprint(asdict(config), NOT_SCIENCE),
            {
                key: value
                for key, value in _flat(asdict(config)).items()
                if not any(key == name or key.startswith(f"{name}.") for name in NOT_SCIENCE)
            },
            config.checkpoint.keep,
            log=self.say,
        )

    def _build_model(self) -> nn.Module:
        hardware = self.config.hardware
        torch.manual_seed(derive_seed("init", self.config.seed))
        module = self.task.build_model()
        scale_weights(module, self.config.init_gain)
        module = module.to(self.device, parameter_dtype(hardware.precision))
        if hardware.channels_last:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return module

    def say(self, text: str) -> None:
        """One line for the reader, from the first process."""
        if self.group.is_first:
            print(text, flush=True)

    def request_stop(self) -> None:
        """From a signal handler: all processes stop together at the end of a step."""
        self.stop_requested = True

    def fit(self) -> Outcome:
        """Trains to the end of the plan, or to the first reason to stop before."""
        if self.group.world > 2:
            self._settle_buckets()
        self._restore()
        config, plan = self.config, self.plan
        tracker = None
        if self.group.is_first:
            tracker = Tracker(self.folder, self._wandb(), self.at.step, self.say)
        progress = Progress(
            plan.steps, self.at.step, plan.unit, config.experiment, stream=sys.__stderr__
        )
        try:
            with progress if self.group.is_first else _Silent():
                status, message = self._loop(tracker, progress)
        finally:
            if tracker is not None:
                tracker.finish()
        at = self.at
        return Outcome(
            status,
            at.step,
            message,
            self.final,
            self.best,
            round(at.wall_s, 3),
            at.skipped,
            self.clock.medians(),
        )

    def _loop(self, tracker: Tracker | None, progress: Progress) -> tuple[str, str]:
        at = self.at
        shard = Shard(self.group.rank, self.group.world)
        with closing(self.task.train_stream(shard, at.position)) as batches:  # type: ignore[type-var]
            return self._steps(batches, tracker, progress)

    def _steps(
        self, batches: Iterator[Batch], tracker: Tracker | None, progress: Progress
    ) -> tuple[str, str]:
        at, plan = self.at, self.plan
        clock = self.clock = Clock(at.wall_s, self.task, self.group.world)
        if self._evaluation_is_due() and not self._evaluate(tracker, clock):
            return self._preempted(tracker, clock)
        while at.step < plan.steps:
            logs = (at.step + 1) % plan.log_every == 0 or at.step + 1 == plan.steps
            saves = (at.step + 1) % plan.checkpoint_every == 0 or at.step + 1 == plan.steps
            try:
                result = self.stepper.run(
                    at.step,
                    at.position,
                    batches,
                    want_norm=logs or saves,
                    stop=self.stop_requested,
                )
            except NonFiniteLoss as problem:
                return "diverged", f"{problem} at step {at.step}, lr {plan.schedule(at.step):g}"
            at.position += 1
            clock.units += result.units * self.group.world
            if result.skipped:
                at.skipped += 1
                if self.scaler.get_scale() < 1.0:
                    return "diverged", f"the fp16 loss scale fell below 1 at step {at.step}"
                continue
            at.step += 1
            self.window += result.tally[:2]
            if logs:
                self._log_row(tracker, progress, clock, result.grad_norm)
            if self._evaluation_is_due() and not self._evaluate(tracker, clock):
                return self._preempted(tracker, clock)
            saves = saves or at.best_step == at.step  # the best is kept, whenever it comes
            if saves:
                self._save(tracker, clock)
            if result.asked_to_stop and at.step < plan.steps:
                if not saves:
                    self._save(tracker, clock)
                return "preempted", f"stopped on request after step {at.step}, and saved"
        return "finished", f"all {plan.steps} steps done"

    def _preempted(self, tracker: Tracker | None, clock: Clock) -> tuple[str, str]:
        self._save(tracker, clock)
        return "preempted", f"stopped on request at step {self.at.step}, and saved"

    def _log_row(
        self, tracker: Tracker | None, progress: Progress, clock: Clock, norm: torch.Tensor | None
    ) -> None:
        at, plan = self.at, self.plan
        total, weight = self.window.tolist()
        self.window.zero_()
        loss = total / weight
        lr, meters = plan.schedule(at.step - 1), clock.meters()
        if tracker is None:
            return
        row = self._position_row(clock) | {"train/loss": loss, "train/lr": lr}
        if norm is not None:
            row["train/grad_norm"] = norm.item()
        if self.scaler.is_enabled():
            row["train/skipped"] = at.skipped
        tracker.log(row | meters)
        progress.update(at.step, loss=loss, lr=lr, units_per_s=meters["speed/units_per_s"])

    def _position_row(self, clock: Clock) -> dict[str, float | int]:
        at, plan = self.at, self.plan
        return {
            "step": at.step,
            "epoch": round(at.epoch(plan), 6),
            "units": at.step * plan.global_batch,
            "wall_s": round(clock.wall_s(), 3),
        }

    def _evaluation_is_due(self) -> bool:
        at, plan = self.at, self.plan
        due = at.step > 0 and (at.step % plan.eval_every == 0 or at.step == plan.steps)
        return due and at.evaluated != at.step

    def _evaluate(self, tracker: Tracker | None, clock: Clock) -> bool:
        """False if a process was asked to stop: the evaluation is then done after resuming."""
        at, headline = self.at, self.task.headline
        self.group.average_buffers(self.module)
        metrics: dict[str, float] = {}
        final = self.config.evaluation.final and at.step == self.plan.steps
        at_the_end = self.task.final_splits if final else ()
        for split in (*self.task.splits, *at_the_end):
            found = evaluate(
                self.task,
                self.module,
                split,
                self.group,
                self.config.hardware.precision,
                lambda: self.stop_requested,
            )
            if found is None:
                return False
            metrics |= {f"{split}/{name}": value for name, value in found.items()}
        at.evaluated = at.step
        self.final = metrics
        value = metrics[headline.name]
        better = value > at.best_value if headline.higher_is_better else value < at.best_value
        if math.isnan(at.best_value) or better:
            at.best_step, at.best_value, self.best = at.step, value, metrics
        if tracker is not None:
            tracker.log(self._position_row(clock) | metrics)
        clock.pause()
        return True

    def _save(self, tracker: Tracker | None, clock: Clock) -> None:
        # Statistics of batch norm are each process's own between evaluations: all are saved.
        own = {name: b.cpu() for name, b in self.module.named_buffers()}
        parts = self.group.gather_to_first(([_to_cpu(c) for c in self.stepper.carry], own))
        self.at.wall_s = clock.wall_s()
        self.at.window_total, self.at.window_weight = self.window.tolist()
        if self.group.is_first:
            if tracker is not None:
                tracker.sync()
            state = {
                "at": asdict(self.at),
                "final": self.final,
                "best": self.best,
                "model": self.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "scaler": self.scaler.state_dict(),
                "carry": [carry for carries, _ in parts for carry in carries],
                "buffers": [buffers for _, buffers in parts],
            }
            self.store.save(self.at.step, state, best=self.at.best_step == self.at.step)
        # Where the first process raises here the launcher ends the others, which wait.
        self.group.wait_for_all()
        clock.pause()

    def _restore(self) -> None:
        loaded = self.store.load_latest()
        steps = set(self.group.gather(None if loaded is None else loaded.step))
        if len(steps) > 1:
            raise CheckpointError(f"the processes see different checkpoints: steps {steps}")
        if loaded is None:
            return
        state = loaded.state
        self.at = Progressed(**state["at"])
        self.final, self.best = state["final"], state["best"]
        self.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._restore_buffers(state["buffers"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        window = [self.at.window_total, self.at.window_weight]
        self.window.copy_(torch.tensor(window, dtype=torch.float64))
        own = self.plan.accumulation
        first = self.group.rank * own
        carries = state["carry"][first : first + own]
        self.stepper.carry = [_to_device(carry, self.device) for carry in carries]
        self.say(f"resuming {self.run_id} at step {self.at.step} of {self.plan.steps}")

    def _restore_buffers(self, saved: list[dict[str, torch.Tensor]]) -> None:
        """This process's own, or the mean of all where the number of processes has changed."""
        for name, buffer in self.module.named_buffers():
            if len(saved) == self.group.world:
                buffer.copy_(saved[self.group.rank][name])
            elif buffer.is_floating_point():
                whole = torch.stack([part[name].double() for part in saved])
                buffer.copy_(whole.mean(dim=0))

    def _settle_buckets(self) -> None:
        """Lets DDP regroup its buckets before the first step.

        It does so after the first backward pass, which changes the order of summation: a resumed
        run of more than two processes would differ in the last bits from an undisturbed one.
        """
        kept = {name: value.clone() for name, value in self.module.state_dict().items()}
        batch = self.task.example_batch().to(self.device)
        for _ in range(2):
            with autocast(self.config.hardware.precision, self.device):
                out = self.task.loss(self.model, batch, None)
            (out.total * 0.0).backward()  # type: ignore[no-untyped-call]
        self.optimizer.zero_grad()
        self.module.load_state_dict(kept)

    def _wandb(self) -> WandbSettings:
        config = self.config
        return WandbSettings(
            mode=config.tracking.wandb,
            project=config.tracking.project,
            entity=config.tracking.entity,
            run_id=self.run_id.replace("/", "-"),
            group=config.experiment,
            name=self.run_id,
            tags=(config.task.name, str(config.optimizer["name"]), config.scale),
            config=asdict(config),
        )


def build_optimizer_of(config: RunConfig, module: nn.Module) -> Any:
    """The optimizer that a configuration names, for a model's parameters."""
    options = dict(config.optimizer)
    name, weight_decay = options.pop("name"), float(options.pop("weight_decay", 0.0))
    rules = [Rule(pattern, dict(given)) for pattern, given in config.decay.rules.items()]
    groups = build_param_groups(
        module.named_parameters(), weight_decay, config.decay.apply_to, rules, options.get("lr")
    )
    if isinstance(options.get("betas"), list):
        options["betas"] = tuple(options["betas"])
    return build_optimizer(name, groups, **options)


def make_transforms(config: RunConfig) -> list[Transform]:
    """Clipping first, then LARC."""
    chain: list[Transform] = []
    if config.gradient.clip_norm is not None:
        chain.append(ClipGlobalNorm(config.gradient.clip_norm))
    if config.gradient.larc is not None:
        chain.append(Larc(**config.gradient.larc))
    return chain


class _Silent:
    """Stands for the progress display on all processes but the first."""

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _flat(nested: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        name = f"{where}.{key}" if where else key
        flat |= _flat(value, name) if isinstance(value, dict) else {name: value}
    return flat


def _map_tensors(function: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return [_map_tensors(function, item) for item in value]
    if isinstance(value, dict):
        return {key: _map_tensors(function, item) for key, item in value.items()}
    return value


def _to_cpu(value: Any) -> Any:
    return _map_tensors(lambda t: t.detach().cpu(), value)


def _to_device(value: Any, device: torch.device) -> Any:
    return _map_tensors(lambda t: t.to(device), value)
