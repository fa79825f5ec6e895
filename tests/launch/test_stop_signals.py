"""Stop signals to a launcher."""

from __future__ import annotations

import signal

import pytest

from launch.stop_signals import StopSignals


def test_a_request_before_there_is_anything_to_save_ends_at_once():
    with StopSignals(), pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 75
