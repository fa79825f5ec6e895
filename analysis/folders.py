"""Where the analysis finds its inputs."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
RESULTS = ROOT / "results"
PAPER = RESULTS / "paper"  # the paper's tables, figures and claims
RUNS = RESULTS / "runs"  # published records
STUDIES = RESULTS / "studies"  # a folder for each study: trials, remarks, curves
BENCH = RESULTS / "bench"  # measurements
