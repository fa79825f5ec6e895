"""NovoGrad: stochastic gradient descent normalised by layer-wise second moments (Algorithm 1)."""

from __future__ import annotations

import difflib
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from optim import novograd_cpu
from optim.norms import gradient_of, local
from optim.norms import squared_norms as norms_of
from optim.novograd_eager import NO_GRADIENT_YET, Hyper, Tensors, multi_tensor, single_tensor

DECAYS = ("moment", "update")
DEFAULTS: dict[str, Any] = {  # of the constructor; older pickles and state dicts may lack some
    "betas": (0.95, 0.25),
    "eps": 1e-8,
    "weight_decay": 0.0,
    "grad_averaging": False,
    "amsgrad": False,
    "decay": "moment",
    "maximize": False,
    "foreach": None,
    "fused": None,
    "capturable": False,
}


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
        lr: learning rate, a float or a 0-dim tensor; under `torch.compile` a tensor, since every
            new float would compile the step anew
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
        lr: float | Tensor,
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
        self._handed_over: _HandedOver | None = None
        self._steady: dict[int, novograd_cpu.SteadyGroup | None] = {}
        self._tables: dict[int, dict[object, Any]] = {}  # of the Triton kernels, per group
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
        _check_options(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, whose own options are checked like the constructor's."""
        if isinstance(param_group, dict):
            _check_options({**self.defaults, **param_group})
            for key in set(map(str, param_group)) - set(self.defaults):
                meant = difflib.get_close_matches(key, self.defaults, n=1, cutoff=0.8)
                if meant:  # other keys are the user's own, as in torch
                    raise ValueError(
                        f"NovoGrad: unknown option {key!r} in a parameter group; did you mean "
                        f"{meant[0]!r}?"
                    )
        super().add_param_group(param_group)
        added = self.param_groups[-1]["params"]
        if len(set(map(id, added))) < len(added):
            raise ValueError("NovoGrad: a parameter is twice in one group")
        self._handed_over = None
        self._steady.clear()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._handed_over = None
        self._steady = {}
        self._tables = {}
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
                    self.state[param][name] = _as_moment(value, param)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients, and forgets norms that were handed over for them."""
        self._handed_over = None
        super().zero_grad(set_to_none)

    def hand_over(self, squared_norms: Sequence[Tensor], factors: Sequence[Tensor]) -> None:
        """Takes the gradients' norms, and factors to scale them with, for the next step.

        A gradient transform that has calculated the norms (clipping, LARC) thus saves a pass over
        all gradients to scale them and one to take their norms again. One float64 vector each per
        parameter group, an entry for each parameter that has a gradient.
        """
        per_group = [_gradients([group]) for group in self.param_groups]
        sizes = [len(grads) for grads in per_group]
        for vectors in (squared_norms, factors):
            if [tuple(v.shape) for v in vectors] != [(size,) for size in sizes]:
                raise ValueError(
                    "NovoGrad.hand_over: needs a vector per parameter group, with an entry for "
                    f"each gradient: {sizes} entries, not {[list(v.shape) for v in vectors]}"
                )
        gradients = [g for grads in per_group for g in grads]
        self._handed_over = _HandedOver(
            [v.to(torch.float64).contiguous() for v in squared_norms],
            [v.to(torch.float64).contiguous() for v in factors],
            [weakref.ref(g) for g in gradients],
            [g._version for g in gradients],
        )

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
            if not _fits(state, p):
                _fit_state(state, p)
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
            params: list[Tensor] = []
            grads: list[Tensor] = []
            exp_avgs: list[Tensor] = []
            exp_avg_sqs: list[Tensor] = []
            max_exp_avg_sqs: list[Tensor] = []
            self._init_group(group, params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
            novograd(
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
        return loss

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
            return True
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
) -> None:
    """The step of one parameter group as a function; `max_exp_avg_sqs` is empty without AMSGrad."""
    if not params:
        return
    fused, foreach = _implementation(params, fused, foreach, capturable)
    if not fused and (grad_scale is not None or found_inf is not None):
        raise RuntimeError(
            "NovoGrad(fused=True) under torch.compile can't do GradScaler's work; leave fused unset"
        )
    if isinstance(hyper.lr, Tensor) and hyper.lr.is_cpu and not capturable:
        if not torch.compiler.is_compiling():  # no wait for a device
            hyper = hyper._replace(lr=hyper.lr.item())
    norms = squared_norms
    plain = set(map(type, params)) <= {Tensor, torch.nn.Parameter}
    if norms is None and (not fused or not plain):
        norms = norms_of(grads)
    if not plain or any(p.is_complex() for p in params):
        params, grads, exp_avgs = _local_reals(params), _local_reals(grads), _local_reals(exp_avgs)
    tensors = Tensors(
        params,
        grads,
        exp_avgs,
        exp_avg_sqs,
        max_exp_avg_sqs,
        norms,
        gradient_factors,
    )
    if fused and params[0].device.type == "cpu":
        novograd_cpu.step(tensors, hyper, grad_scale, found_inf)
    elif fused:
        from optim import novograd_triton  # Triton is there only where CUDA is

        novograd_triton.step(tensors, hyper, grad_scale, found_inf, tables)
    elif foreach:
        multi_tensor(tensors, hyper)
    else:
        single_tensor(tensors, hyper)


def _implementation(
    params: list[Tensor], fused: bool | None, foreach: bool | None, capturable: bool
) -> tuple[bool, bool]:
    """Which of fused and foreach to use; neither means single-tensor."""
    if torch.compiler.is_compiling():  # the compiler does the fusing
        return False, foreach is not False
    on_cpu = all(p.is_cpu for p in params) and not capturable
    fusable = on_cpu or all(p.is_cuda for p in params)
    fusable = fusable and {p.dtype for p in params} <= novograd_cpu.DTYPES
    if fused:
        if not fusable:
            raise RuntimeError(
                "NovoGrad(fused=True) needs floating-point parameters that are all on the CPU "
                "(without capturable) or all on CUDA, not "
                f"{sorted({f'{p.dtype} on {p.device.type}' for p in params})}"
            )
        return True, False
    if fused is None and foreach is None:
        return on_cpu and fusable, not on_cpu
    return False, bool(foreach)


def _local_reals(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This rank's parts of DTensors, complex tensors as pairs of reals, others as they are."""
    locals_ = [local(t) for t in tensors]
    return [torch.view_as_real(t) if t.is_complex() else t for t in locals_]


class _HandedOver(NamedTuple):
    """Norms and factors per parameter group, and the gradients that they belong to."""

    squared_norms: list[Tensor]
    factors: list[Tensor]
    gradients: list[weakref.ref[Tensor]]
    versions: list[int]

    def is_about(self, param_groups: list[dict[str, Any]]) -> bool:
        """Whether these are the gradients that were handed over, unchanged.

        False if all are others: those of a step that was skipped, say. An error if some are the
        same but not as they were. (A change through `.data` can't be noticed.)
        """
        now, then = _gradients(param_groups), [ref() for ref in self.gradients]
        same = [new is old for new, old in zip(now, then, strict=False)]
        if len(now) == len(then) and all(same):
            if all(g._version == v for g, v in zip(now, self.versions, strict=True)):
                return True
        elif not any(same):
            return False
        raise RuntimeError(
            "NovoGrad: the gradients changed after their norms were handed over; apply the "
            "gradient transforms after the last change to the gradients, just before step()"
        )


def _gradients(param_groups: list[dict[str, Any]]) -> list[Tensor]:
    every = [p.grad for group in param_groups for p in group["params"]]
    return [g for g in every if g is not None]


def _moment_dtype(param: Tensor) -> torch.dtype:
    return torch.float64 if param.dtype in (torch.float64, torch.complex128) else torch.float32


def _as_moment(value: Tensor, param: Tensor) -> Tensor:
    # A clone: the state must not share memory with the dict that it was loaded from.
    return value.detach().reshape(()).to(param.device, _moment_dtype(param)).clone()


def _fits(state: dict[str, Any], param: Tensor) -> bool:
    """Whether a parameter's state is there, and made for the parameter as it is now."""
    m, v = state.get("exp_avg"), state.get("exp_avg_sq")
    return (
        isinstance(m, Tensor)
        and isinstance(v, Tensor)
        and m.dtype == param.dtype
        and m.shape == param.shape
        and m.device == param.device == v.device
        and v.dim() == 0
        and v.dtype == _moment_dtype(param)
    )


def _fit_state(state: dict[str, Any], param: Tensor) -> None:
    """Makes what is missing, and follows a parameter that changed its dtype or device."""
    m = state.get("exp_avg")
    if m is None:
        state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
    elif m.shape != param.shape:
        raise RuntimeError(
            f"NovoGrad: a parameter of shape {tuple(param.shape)} has the state of one of shape "
            f"{tuple(m.shape)}: was the state of another model loaded?"
        )
    else:
        state["exp_avg"] = m.to(param.device, param.dtype)
    for name in ("exp_avg_sq", "max_exp_avg_sq"):
        if name in state:
            state[name] = _as_moment(torch.as_tensor(state[name]), param)
    if "exp_avg_sq" not in state:
        state["exp_avg_sq"] = _as_moment(torch.tensor(NO_GRADIENT_YET), param)


def _check_options(options: dict[str, Any]) -> None:
    """Raises one ValueError that names the first option that makes no sense."""
    lr, betas = options["lr"], options["betas"]
    if isinstance(lr, Tensor):
        if lr.numel() != 1:
            raise ValueError(f"NovoGrad: lr as a tensor must have one element, not {lr.numel()}")
    else:
        _check_number("lr", lr)
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"NovoGrad: betas must be a pair of numbers, not {betas!r}")
    for index, beta in enumerate(betas):
        _check_number(f"betas[{index}]", beta, below=1.0)
    _check_number("eps", options["eps"])
    _check_number("weight_decay", options["weight_decay"])
    if options["decay"] not in DECAYS:
        raise ValueError(f"NovoGrad: decay must be one of {DECAYS}, not {options['decay']!r}")
    for name in ("grad_averaging", "amsgrad", "maximize", "capturable"):
        if not isinstance(options[name], bool):
            raise ValueError(f"NovoGrad: {name} must be True or False, not {options[name]!r}")
    for name in ("foreach", "fused"):
        if options[name] is not None and not isinstance(options[name], bool):
            raise ValueError(f"NovoGrad: {name} must be True, False or None, not {options[name]!r}")
    if options["foreach"] and options["fused"]:
        raise ValueError("NovoGrad: foreach and fused can't both be True")


def _check_number(name: str, value: Any, below: float = math.inf) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0.0 <= value < below:
        interval = "finite and not negative" if below == math.inf else f"in [0, {below:g})"
        raise ValueError(f"NovoGrad: {name} must be a number, {interval}, not {value!r}")
