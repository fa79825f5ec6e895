"""How a run happens: plan, steps, evaluation, checkpoints; knows the Task contract and no task."""
