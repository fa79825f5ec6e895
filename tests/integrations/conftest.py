"""These tests run in an environment of their own, which `make test-integrations` creates."""

from __future__ import annotations

import importlib.util

ADDED = ("accelerate", "lightning", "transformers")
if not all(map(importlib.util.find_spec, ADDED)):
    collect_ignore_glob = ["test_*.py"]
