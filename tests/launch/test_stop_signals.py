"""Stop signals to a launcher."""

from __future__ import annotations

import signal

import pytest

from launch.entry import receive_stop_signals
from launch.stop_signals import StopSignals


def test_a_request_before_there_is_anything_to_save_ends_at_once():
    with StopSignals(), pytest.raises(SystemExit) as caught:
        signal.raise_signal(signal.SIGTERM)
    assert caught.value.code == 75


def test_a_closed_terminal_is_a_request_to_stop_and_never_the_second(tmp_path):
    (tmp_path / "logs").mkdir()
    with StopSignals() as signals:
        signals.send_to(tmp_path / "logs", 0, range(1))
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert signals.count == 1
        signal.raise_signal(signal.SIGTERM)
        assert signals.count == 2
    assert (tmp_path / "logs" / "stop").exists()


def test_under_nohup_a_closed_terminal_is_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals() as signals:
            signal.raise_signal(signal.SIGHUP)
            assert signals.count == 0
        others = receive_stop_signals(signal.SIG_DFL)
        assert signal.SIGHUP not in others
        for number, handler in others.items():
            signal.signal(number, handler)
    finally:
        signal.signal(signal.SIGHUP, before)
