"""How weights move: NovoGrad, gradient transforms, schedules, parameter groups, a factory.

Imports torch and nothing else of this project.
"""

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
