"""How things are called in tables."""

OPTIMIZERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "novograd": "NovoGrad"}
