from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soundfile  # type: ignore[import-untyped]

from tasks.base import BadInput
from tasks.librispeech.features import RATE
from tasks.librispeech.predict import read_any_sound


def tone(rate: int, seconds: float = 0.5) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(rate * seconds)) / rate)


@pytest.mark.parametrize("rate", [8000, 16000, 22050, 44100, 48000])
@pytest.mark.parametrize("suffix", ["wav", "flac"])
def test_a_tone_stays_the_tone_at_any_rate(rate: int, suffix: str, tmp_path: Path):
    """Away from the ends, where a resampler's filter sees silence beyond the sound."""
    file = tmp_path / f"tone.{suffix}"
    both = np.stack([1.5 * tone(rate), 0.5 * tone(rate)], 1)  # their mean is the tone
    soundfile.write(file, both, rate, subtype="PCM_24")
    found = read_any_sound(str(file)).numpy()
    expected = tone(RATE)
    assert abs(len(found) - len(expected)) <= 1
    middle = slice(1000, -1000)
    difference = found[: len(expected)][middle] - expected[: len(found)][middle]
    assert np.abs(difference).max() < 0.5 * 1e-2  # 1 % of the amplitude


def test_a_sound_at_its_own_rate_is_not_changed(tmp_path: Path):
    sound = tone(RATE).astype(np.float32)
    soundfile.write(tmp_path / "a.wav", sound, RATE, subtype="FLOAT")
    assert (read_any_sound(str(tmp_path / "a.wav")).numpy() == sound).all()


def test_numbers_that_are_none_are_refused(tmp_path: Path):
    soundfile.write(tmp_path / "a.wav", np.full(999, np.nan), RATE, subtype="FLOAT")
    with pytest.raises(BadInput, match="finite"):
        read_any_sound(str(tmp_path / "a.wav"))
