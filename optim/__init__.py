"""How weights move: NovoGrad, gradient transforms, schedules, parameter groups, a factory.

Needs torch and nothing else of this project. What is listed here is imported when it is first used,
so that the names of schedules, for example, can be had without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .factory import build_optimizer
    from .larc import Larc
    from .novograd import NovoGrad
    from .param_groups import Rule, build_param_groups
    from .schedules import Schedule, warmup_steps
    from .statistics import Statistics, measure_step
    from .transforms import AddL2, ClipGlobalNorm, transform_gradients

__all__ = [
    "AddL2",
    "ClipGlobalNorm",
    "Larc",
    "NovoGrad",
    "Rule",
    "Schedule",
    "Statistics",
    "build_optimizer",
    "build_param_groups",
    "measure_step",
    "transform_gradients",
    "warmup_steps",
]

_HOMES = {
    "factory": ("build_optimizer",),
    "larc": ("Larc",),
    "novograd": ("NovoGrad",),
    "param_groups": ("Rule", "build_param_groups"),
    "schedules": ("Schedule", "warmup_steps"),
    "statistics": ("Statistics", "measure_step"),
    "transforms": ("AddL2", "ClipGlobalNorm", "transform_gradients"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
