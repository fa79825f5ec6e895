"""The front end against a transcription in NumPy, an utterance at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor
from torchaudio.functional import melscale_fbanks  # type: ignore[import-untyped]

from tasks.librispeech.features import (
    WHOLE,
    _resampler,
    cut_out,
    log_mel,
    mel_filters,
    normalise,
    speed_perturb,
)

LENGTHS = [4000, 3999, 257, 1601, 2720]
RIPPLE = 1e-7  # Kaiser's window with β = 14.77 stops (and errs where it lets pass) at -143 dB


@pytest.fixture
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def sounds(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Noise with a tone; beyond its end every utterance is followed by something loud."""
    noise = torch.randn(len(LENGTHS), max(LENGTHS), dtype=dtype)
    tone = torch.sin(torch.arange(max(LENGTHS), dtype=dtype) * 0.3)
    waveform = 0.05 * noise + 0.1 * tone
    for row, length in zip(waveform, LENGTHS, strict=True):
        row[length:] = 100
    return waveform, torch.tensor(LENGTHS)


def slaney_mel(hertz: float) -> float:
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def slaney_hertz(mel: float) -> float:
    return 200 * mel / 3 if mel < 15 else 1000 * math.exp(math.log(6.4) * (mel - 15) / 27)


def transcription(samples: np.ndarray) -> np.ndarray:
    """(N,) to (64, ⌈N / 160⌉)."""
    x = np.concatenate([samples[:1], samples[1:] - 0.97 * samples[:-1]])
    x = np.pad(x, 256, mode="reflect")
    window = np.zeros(512)
    window[96:416] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(320) / 319)
    corners = [slaney_hertz(slaney_mel(8000) * i / 65) for i in range(66)]
    frames = math.ceil(len(samples) / 160)
    out = np.empty((64, frames))
    for t in range(frames):
        power = np.abs(np.fft.rfft(window * x[160 * t : 160 * t + 512])) ** 2
        for m, (low, peak, high) in enumerate(zip(corners, corners[1:], corners[2:], strict=False)):
            energy = 0.0
            for k in range(257):
                f = k * 16000 / 512
                if low < f < high:
                    slope = (f - low) / (peak - low) if f < peak else (high - f) / (high - peak)
                    energy += slope * 2 / (high - low) * power[k]
            out[m, t] = math.log(energy + 1e-20)
    mean, std = out.mean(1, keepdims=True), out.std(1, ddof=1, keepdims=True)
    normalised: np.ndarray = (out - mean) / (std + 1e-5)
    return normalised


def test_against_the_transcription():
    waveform, lengths = sounds()
    features, frames = log_mel(waveform, lengths)
    assert features.shape == (5, 64, 32)  # 25 frames, up to a multiple of 16
    assert frames.tolist() == [25, 25, 2, 11, 17]
    for row, sound, n, t in zip(features, waveform, LENGTHS, frames.tolist(), strict=True):
        expected = transcription(sound[:n].numpy())
        assert expected.shape == (64, t)
        np.testing.assert_allclose(row[:, :t].numpy(), expected, rtol=0, atol=1e-10)
        assert (row[:, t:] == 0).all()


def test_the_batch_does_not_matter():
    waveform, lengths = sounds()
    features, frames = log_mel(waveform, lengths)
    for i, n in enumerate(LENGTHS):
        alone, count = log_mel(waveform[i : i + 1, :n], lengths[i : i + 1])
        assert count.item() == frames[i]
        assert alone.shape[-1] % 16 == 0
        torch.testing.assert_close(alone[0, :, :count], features[i, :, :count], rtol=0, atol=1e-11)


def test_single_precision_and_autocast():
    """Whatever the model computes in, features are computed in the samples' own format."""
    waveform, lengths = sounds(torch.float32)
    features, _ = log_mel(waveform, lengths)
    assert features.dtype == torch.float32
    exact, _ = log_mel(waveform.double(), lengths)
    # 2⁻²⁴ of the tone, in bins where the noise has a hundredth of the tone's amplitude and less.
    torch.testing.assert_close(features.double(), exact, rtol=0, atol=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(log_mel(waveform, lengths)[0], features)


def test_silence_is_finite():
    features, _ = log_mel(torch.zeros(1, 4000), torch.tensor([4000]))
    assert (features == 0).all()


def test_dither():
    waveform, lengths = sounds()
    before = waveform.clone()
    torch.manual_seed(3)
    noise = torch.randn(waveform.shape, dtype=torch.float64)
    torch.manual_seed(3)
    dithered, _ = log_mel(waveform, lengths, dither=True)
    assert torch.equal(dithered, log_mel(waveform + 1e-5 * noise, lengths)[0])
    assert not torch.equal(dithered, log_mel(waveform, lengths)[0])
    assert torch.equal(waveform, before)


def test_wrong_lengths_are_named():
    with pytest.raises(ValueError, match=r"from 257, .* to 4000, .* not 256"):
        log_mel(torch.zeros(2, 4000), torch.tensor([4000, 256]))
    with pytest.raises(ValueError, match="not 4001"):
        log_mel(torch.zeros(2, 4000), torch.tensor([4001, 300]))


@pytest.mark.usefixtures("_double")
def test_filters_are_torchaudios():
    expected = melscale_fbanks(257, 0.0, 8000.0, 64, 16000, norm="slaney", mel_scale="slaney")
    assert expected.dtype == torch.float64
    np.testing.assert_allclose(mel_filters(), expected.T.numpy(), rtol=0, atol=1e-14)


def test_normalise():
    x = torch.randn(3, 4, 10, dtype=torch.float64) * 5 + 3
    x[1, :, 6:] = math.nan
    out = normalise(x, torch.tensor([10, 6, 2]))
    for row, original, length in zip(out, x, [10, 6, 2], strict=True):
        part = original[:, :length]
        expected = (part - part.mean(1, keepdim=True)) / (part.std(1, keepdim=True) + 1e-5)
        torch.testing.assert_close(row[:, :length], expected, rtol=0, atol=1e-13)
        assert (row[:, length:] == 0).all()


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_speed_moves_a_tone(factor: float):
    """A tone of 3 kHz becomes one of factor · 3 kHz, and the sound lasts 1 / factor as long."""
    n, cycles = torch.arange(16000, dtype=torch.float64), 2 * math.pi * 3000 / 16000
    fast = speed_perturb(torch.sin(cycles * n), factor)
    assert len(fast) == math.ceil(16000 / factor)
    expected = torch.sin(cycles * factor * torch.arange(len(fast), dtype=torch.float64))
    middle = slice(200, -200)  # the kernel sees the ends
    assert (fast - expected)[middle].abs().max() < RIPPLE
    batch = speed_perturb(torch.sin(cycles * n).float().expand(2, -1), factor)
    assert batch.dtype == torch.float32
    torch.testing.assert_close(batch[1], fast.float(), rtol=0, atol=1e-5)


def test_speed_does_not_fold_high_tones():
    """7.9 kHz played 1.1 times as fast is above half the rate: nothing of it may be heard."""
    n = torch.arange(16000, dtype=torch.float64)
    out = speed_perturb(torch.sin(2 * math.pi * 7900 / 16000 * n), 1.1)
    assert out[200:-200].abs().max() < RIPPLE


@pytest.mark.parametrize("samples", [257, WHOLE - 1, WHOLE, WHOLE + 1, 20_123])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_rounding_lengths_up_changes_no_sample(factor: float, samples: int):
    """But for the order of sums, which oneDNN chooses by the length: in float64 some 1e-16."""
    sound = torch.randn(samples, dtype=torch.float64)
    as_it_is = _resampler(factor, sound.dtype, sound.device)(sound)
    torch.testing.assert_close(speed_perturb(sound, factor), as_it_is, rtol=0, atol=1e-14)


def test_speed_of_one_and_of_others():
    x = torch.randn(2, 500)
    assert torch.equal(speed_perturb(x, 1.0), x)
    with pytest.raises(ValueError, match=r"factor must be one of .* not 1.2"):
        speed_perturb(x, 1.2)


def test_cut_out():
    features, lengths = torch.ones(40, 64, 48), torch.randint(1, 49, (40,))
    places = torch.rand(40, 4, dtype=torch.float64)
    out = cut_out(features, lengths, places)
    assert torch.equal(out, cut_out(features, lengths, places))
    assert not torch.equal(out, cut_out(features, lengths, places.flip(0)))
    for i in range(40):  # an utterance's own draws alone
        own = slice(i, i + 1)
        assert torch.equal(out[own], cut_out(features[own], lengths[own], places[own]))
    assert (features == 1).all()
    for row, length in zip(out, lengths.tolist(), strict=True):
        bands = (row == 0).all(1)
        spans = (row == 0).all(0)
        assert torch.equal(row == 0, bands[:, None] | spans[None, :])
        if length < 6:
            assert spans[:length].all()
        else:
            assert not spans[length:].any()
            assert 6 <= spans.sum() <= 12
            assert 6 <= bands.sum() <= 12


def test_cut_out_anywhere_in_the_batch_is_nvidias():
    """A start is int(uniform(0, n - width)), n the features or the frames of the padded batch."""
    places = torch.rand(60, 4, dtype=torch.float64)
    lengths = torch.randint(6, 30, (60,))
    out = cut_out(torch.ones(60, 64, 48), lengths, places, anywhere=True)
    expected = torch.ones(60, 64, 48)
    for row, draws in zip(expected, places.tolist(), strict=True):
        for draw in draws[:2]:
            first = int(draw * (64 - 6))
            row[first : first + 6] = 0
        for draw in draws[2:]:
            first = int(draw * (48 - 6))
            row[:, first : first + 6] = 0
    assert torch.equal(out, expected)
    assert not torch.equal(out, cut_out(torch.ones(60, 64, 48), lengths, places))


def test_cut_out_reaches_every_place():
    """All starts from 0 to length - width, and no other."""
    places = torch.rand(300, 2, dtype=torch.float64)
    places[:2] = torch.tensor([[0.0], [math.nextafter(1, 0)]], dtype=torch.float64)
    out = cut_out(torch.ones(300, 8, 20), torch.full((300,), 9), places, bands=1, spans=1)
    starts = {tuple(((row == 0).all(0)).nonzero().flatten().tolist()) for row in out}
    assert starts == {tuple(range(s, s + 6)) for s in range(4)}
    bands = {tuple(((row == 0).all(1)).nonzero().flatten().tolist()) for row in out}
    assert bands == {tuple(range(s, s + 6)) for s in range(3)}
    x, lengths = torch.ones(2, 8, 20), torch.tensor([20, 3])
    assert torch.equal(cut_out(x, lengths, places[:2, :0], bands=0, spans=0), x)
    with pytest.raises(ValueError, match=r"shape \(2, 4\), .* 2 bands and 2 spans, not \(2, 3\)"):
        cut_out(x, lengths, torch.rand(2, 3))
