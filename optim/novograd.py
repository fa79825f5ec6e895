"""NovoGrad: stochastic gradient descent normalised by layer-wise second moments (Algorithm 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from . import memory, novograd_cpu
from .handover import HandedOver, gradients_of
from .norms import gradient_of, local
from .norms import squared_norms as norms_of
from .novograd_eager import Hyper, Tensors, multi_tensor, single_tensor
from .novograd_options import DEFAULTS, FUSED_DTYPES, check_fusable, check_group, check_options
from .novograd_state import as_second_moment, fit_state, fits
from .statistics import Seen, Statistics, novograd_statistics


class NovoGrad(Optimizer):
    r"""Algorithm 1 of the NovoGrad paper, with its variants as options.

    For every parameter tensor :math:`w` with gradient :math:`g_t`, one scalar :math:`v` and one
    moment :math:`m` of the tensor's size:

    .. math::
        v_1 = \lVert g_1 \rVert^2, \quad
        v_t = \beta_2 v_{t-1} + (1-\beta_2) \lVert g_t \rVert^2, \qquad
        m_t = \beta_1 m_{t-1} + \frac{g_t}{\sqrt{v_t} + \epsilon} + d\,w_t, \qquad
        w_{t+1} = w_t - \lambda_t m_t

    with :math:`m_0 = 0`, no factor :math:`1-\beta_1` and no bias correction.

    Norms are summed in float64. v is kept in fp32, also under half-precision parameters, and in
    float64 under float64 ones; m has the parameter's dtype and is calculated with in v's. While a
    tensor's gradient is zero from the start, v stays unset (-1); where the gradient and eps are
    both zero the normalised gradient is zero. `p.grad` is left as it was. A non-finite gradient
    makes its tensor non-finite, as in torch's optimizers: skipping such steps is the caller's
    (GradScaler's) business.

    The norm is that of the whole tensor. DTensor parameters (FSDP2's `fully_shard`, tensor
    parallelism) are handled so; plain local shards (FSDP1, ZeRO stages 2 and 3) can't be, since
    nothing tells that they are shards.

    Args:
        params: parameters, named parameters or parameter groups
        lr: learning rate, a float or a tensor of one element; under `torch.compile` a tensor, since
            every new float would compile the step anew
        betas: (momentum, decay rate of the second moment). The paper has 0.95 and 0.25, on ImageNet
            0.98; a second value of 0 gives layer-wise normalised gradient descent.
        eps: added to the root of v
        weight_decay: d
        grad_averaging: Adam's average, m_t = b1 m_{t-1} + (1-b1)(...), with m_1 undamped
        amsgrad: normalise by the largest v so far
        decay: "moment" adds d w to the normalised gradient (Algorithm 1); "update" subtracts
            lr d w from the weights, as AdamW does (the paper's footnote 2)
        maximize: ascend instead of descend
        foreach: use lists of tensors (default on CUDA)
        fused: use a fused kernel: C++ on the CPU (default there), Triton on CUDA
        capturable: keep everything on the device, so that a CUDA graph can hold the step; pass lr
            as a tensor on that device to change it between replays
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 0.01,
        betas: tuple[float, float] = (0.95, 0.25),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        grad_averaging: bool = False,
        amsgrad: bool = False,
        decay: str = "moment",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        capturable: bool = False,
    ) -> None:
        self._handed_over: HandedOver | None = None
        self._steady: dict[int, novograd_cpu.SteadyGroup | None] = {}
        self._tables: dict[int, dict[object, Any]] = {}  # of the Triton kernels, per group
        self._seen: dict[int, Seen] = {}  # by the last step, per group
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "grad_averaging": grad_averaging,
            "amsgrad": amsgrad,
            "decay": decay,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "capturable": capturable,
        }
        check_options(defaults)
        super().__init__(params, defaults)

    @torch._disable_dynamo
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, whose own options are checked like the constructor's.

        torch warns about a parameter that a group lists twice; it moves once.
        """
        if isinstance(param_group, dict):
            check_group(param_group, self.defaults)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        first = {id(p): i for i, p in reversed(list(enumerate(group["params"])))}
        for name in ("params", "param_names") if len(first) < len(group["params"]) else ():
            if name in group:
                group[name] = [group[name][i] for i in sorted(first.values())]
        self._handed_over = None
        self._steady.clear()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._handed_over = None
        self._steady = {}
        self._tables = {}
        self._seen = {}
        for group in self.param_groups:
            for name, value in DEFAULTS.items():
                group.setdefault(name, value)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """For GradScaler: whether `step` itself unscales, and skips what is not finite."""
        return all(group["fused"] is True for group in self.param_groups)

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state; also that of timm's, MONAI's, NeMo's and torch-optimizer's NovoGrad.

        `Optimizer.load_state_dict` casts state to the parameter's dtype, which would cost a
        half-precision parameter's v its bits: v is taken from the given state as it is.
        """
        final: list[dict[str, Any]] = []

        def look(_: Optimizer, given: dict[str, Any]) -> None:
            for entry in given["state"].values():
                v = entry.get("exp_avg_sq")
                if isinstance(v, Tensor) and v.numel() != 1:
                    raise ValueError(
                        f"NovoGrad: exp_avg_sq of a state must be one number per parameter, not a "
                        f"tensor of shape {tuple(v.shape)}: is this the state of an Adam?"
                    )
            final.append(given)

        handle = self.register_load_state_dict_pre_hook(look)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()
        given = final[-1]
        keys = chain.from_iterable(group["params"] for group in given["param_groups"])
        params = chain.from_iterable(group["params"] for group in self.param_groups)
        for key, param in zip(keys, params, strict=True):
            for name in ("exp_avg_sq", "max_exp_avg_sq"):
                if name in given["state"].get(key, {}):
                    value = torch.as_tensor(given["state"][key][name])
                    self.state[param][name] = as_second_moment(value, param)

    @torch._disable_dynamo
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients, and forgets the norms that are known of them."""
        self._handed_over = None
        self._seen.clear()
        super().zero_grad(set_to_none)

    def hand_over(self, squared_norms: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
        """Takes the gradients' norms, and factors to scale them with, for the next step.

        A gradient transform that has calculated the norms (clipping, LARC) thus saves a pass over
        all gradients to scale them and one to take their norms again. One float64 vector each per
        parameter group, an entry for each parameter that has a gradient.
        """
        per_group = [gradients_of([group]) for group in self.param_groups]
        sizes = [len(grads) for grads in per_group]
        for vectors in (squared_norms, factors):
            if [tuple(v.shape) for v in vectors] != [(size,) for size in sizes]:
                raise ValueError(
                    "NovoGrad.hand_over: needs a vector per parameter group, with an entry for "
                    f"each gradient: {sizes} entries, not {[list(v.shape) for v in vectors]}"
                )
        gradients = [g for grads in per_group for g in grads]
        self._handed_over = HandedOver.about(gradients, squared_norms, factors)

    def pending_factors(self) -> list[Tensor] | None:
        """The factors handed over for the gradients as they are now, if any."""
        handed_over = self._handed_over
        if handed_over is None or not handed_over.is_about(self.param_groups):
            return None
        return handed_over.factors

    def _init_group(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        grads: list[Tensor],
        exp_avgs: list[Tensor],
        exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor],
    ) -> bool:
        amsgrad = group["amsgrad"]
        for p in group["params"]:
            if p.grad is None:
                continue
            grad = gradient_of(p)
            state = self.state[p]
            if not fits(state, p):
                fit_state(state, p)
            if amsgrad and "max_exp_avg_sq" not in state:
                state["max_exp_avg_sq"] = state["exp_avg_sq"].clamp(min=0)
            params.append(p)
            grads.append(grad)
            exp_avgs.append(state["exp_avg"])
            exp_avg_sqs.append(state["exp_avg_sq"])
            if amsgrad:
                max_exp_avg_sqs.append(state["max_exp_avg_sq"])
        return False

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update of all parameters that have a gradient; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        handed_over = self._handed_over
        if handed_over is not None:
            if torch.compiler.is_compiling():
                raise RuntimeError("NovoGrad: a compiled step can't take norms handed over to it")
            self._handed_over = None
            if not handed_over.is_about(self.param_groups):
                handed_over = None
        for index, group in enumerate(self.param_groups):
            norms = None if handed_over is None else handed_over.squared_norms[index]
            factors = None if handed_over is None else handed_over.factors[index]
            if self._step_steadily(index, group, norms, factors):
                continue
            if group["fused"] and not torch.compiler.is_compiling():
                check_fusable([p for p in group["params"] if p.grad is not None], group)
            params: list[Tensor] = []
            grads: list[Tensor] = []
            exp_avgs: list[Tensor] = []
            exp_avg_sqs: list[Tensor] = []
            max_exp_avg_sqs: list[Tensor] = []
            self._init_group(group, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
            seen = novograd(
                params,
                grads,
                exp_avgs,
                exp_avg_sqs,
                max_exp_avg_sqs,
                _hyper(group),
                squared_norms=norms,
                gradient_factors=factors,
                foreach=group["foreach"],
                fused=group["fused"],
                capturable=group["capturable"],
                grad_scale=getattr(self, "grad_scale", None),
                found_inf=getattr(self, "found_inf", None),
                tables=self._tables.setdefault(index, {}) if group["fused"] else None,
            )
            if not torch.compiler.is_compiling():
                self._seen[index] = Seen(params, *seen)
        return loss

    def statistics(self) -> Statistics:
        """Norms of gradient, √v, update and weights of each tensor in the last step.

        A float64 tensor on the device with a row per tensor; nothing waits for the device.
        Gradients are as the step saw them, after clipping, LARC and unscaling. Their norms are the
        step's own but for fused groups of several dtypes and compiled steps. Call it after `step`,
        before the learning rate changes and gradients are reset.
        """
        return novograd_statistics(self, self._seen)

    def _step_steadily(
        self, index: int, group: dict[str, Any], norms: Tensor | None, factors: Tensor | None
    ) -> bool:
        """The short way for a fused group on the CPU that is as it was at the last step."""
        if torch.compiler.is_compiling() or hasattr(self, "grad_scale"):
            return False
        if group["fused"] is False or group["foreach"] is not None or group["capturable"]:
            return False
        steady, amsgrad = self._steady.get(index), group["amsgrad"]
        params = group["params"]
        if steady and steady.step(params, self.state, (norms, factors), _hyper(group), amsgrad):
            self._seen[index] = Seen(params, steady.squared_norms, None)
            return True
        if not (steady and steady.is_current(params, self.state, amsgrad)):  # not the gradients
            # For the next step, if this one leaves all in place.
            self._steady[index] = novograd_cpu.SteadyGroup.of(params, self.state, amsgrad)
        return False


def _hyper(group: dict[str, Any]) -> Hyper:
    beta1, beta2 = group["betas"]
    lr = group["lr"].reshape(()) if isinstance(group["lr"], Tensor) else group["lr"]
    names = ("eps", "weight_decay", "grad_averaging", "decay", "maximize")
    return Hyper(lr, beta1, beta2, *(group[name] for name in names))


def novograd(
    params: list[Tensor],
    grads: list[Tensor],
    exp_avgs: list[Tensor],
    exp_avg_sqs: list[Tensor],
    max_exp_avg_sqs: list[Tensor],
    hyper: Hyper,
    *,
    squared_norms: Tensor | None = None,
    gradient_factors: Tensor | None = None,
    foreach: bool | None = None,
    fused: bool | None = None,
    capturable: bool = False,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    tables: dict[object, Any] | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """The step of one parameter group as a function; `max_exp_avg_sqs` is empty without AMSGrad.

    Returns the squared norms of all gradients, where they were calculated together, and factors
    that they do not include yet.
    """
    if not params:
        return None, None
    fused, foreach = _implementation(params, fused, foreach, capturable)
    if not fused and (grad_scale is not None or found_inf is not None):
        raise RuntimeError(
            "NovoGrad(fused=True) under torch.compile can't do GradScaler's work; leave fused unset"
        )
    if isinstance(hyper.lr, Tensor) and hyper.lr.is_cpu and not capturable:
        if not torch.compiler.is_compiling():  # no wait for a device
            hyper = hyper._replace(lr=hyper.lr.item())
    everything = Tensors(
        params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, squared_norms, gradient_factors
    )
    plain = all(type(p) in (Tensor, torch.nn.Parameter) for p in params)  # as dynamo can trace it
    seen = squared_norms, gradient_factors
    for part in [everything] if plain else _by_subclass(everything):
        norms = part.squared_norms
        if norms is None and (not fused or not plain):
            norms = norms_of(part.grads)
        ps, gs, ms = part.params, part.grads, part.exp_avgs
        if not plain or any(p.is_complex() for p in ps):
            ps, gs, ms = _local_reals(ps), _local_reals(gs), _local_reals(ms)
        tensors = Tensors(
            ps, gs, ms, part.exp_avg_sqs, part.max_exp_avg_sqs, norms, part.gradient_factors
        )
        whole = len(ps) == len(params)
        if whole and grad_scale is None:
            seen = norms, gradient_factors
        if fused and tensors.params[0].device.type == "cpu":
            novograd_cpu.step(tensors, hyper, grad_scale, found_inf)
        elif fused:
            from . import novograd_triton  # Triton is there only where CUDA is

            squares = novograd_triton.step(tensors, hyper, grad_scale, found_inf, tables)
            seen = (squares, None) if whole else seen
        elif foreach:
            multi_tensor(tensors, hyper)
        else:
            single_tensor(tensors, hyper)
    return seen


def _implementation(
    params: list[Tensor], fused: bool | None, foreach: bool | None, capturable: bool
) -> tuple[bool, bool]:
    """Which of fused and foreach to use; neither means single-tensor."""
    if torch.compiler.is_compiling():  # the compiler does the fusing
        return False, foreach is not False
    if fused:
        return True, False
    on_cpu = all(p.is_cpu for p in params) and not capturable
    fusable = on_cpu and {p.dtype for p in params} <= FUSED_DTYPES
    if fused is None and foreach is None:
        return fusable, not on_cpu
    return False, bool(foreach)


def _local_reals(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This rank's parts of DTensors, complex tensors as pairs of reals, others as they are."""
    locals_ = [local(t) for t in tensors]
    return [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in locals_]


def _by_subclass(tensors: Tensors) -> list[Tensors]:
    """Parts whose parameters, or this rank's parts of them, are of one class."""
    kinds: dict[type[Tensor], list[int]] = {}
    for i, param in enumerate(tensors.params):
        kind = type(local(param))
        kinds.setdefault(Tensor if kind in memory.PLAIN_TYPES else kind, []).append(i)
    return [tensors] if len(kinds) == 1 else [tensors.select(where) for where in kinds.values()]
