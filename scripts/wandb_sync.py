"""`python -m scripts.wandb_sync`: see `engine.wandb_sync`."""

from __future__ import annotations

import sys

from engine.wandb_sync import main

if __name__ == "__main__":
    sys.exit(main())
