"""How weights move: NovoGrad, gradient transforms, schedules, parameter groups, a factory.

Imports torch and nothing else of this project.
"""

from optim.factory import build_optimizer
from optim.larc import Larc
from optim.novograd import NovoGrad
from optim.param_groups import Rule, build_param_groups
from optim.schedules import Schedule, warmup_steps
from optim.transforms import ClipGlobalNorm, transform_gradients

__all__ = [
    "ClipGlobalNorm",
    "Larc",
    "NovoGrad",
    "Rule",
    "Schedule",
    "build_optimizer",
    "build_param_groups",
    "transform_gradients",
    "warmup_steps",
]
