"""Speech by eSpeak NG, from the shared library and the data that a wheel has.

The library runs in a process of its own, `python -m tasks.librispeech.espeak FOLDER`: it keeps
global state, and whatever goes wrong in it must not take the caller along. Requests go in as JSON,
sound comes back as 16-bit samples. The same requests in the same order give the same samples.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import platform
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from tasks.base import DataProblem
from tasks.wheels import Member, read_member

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = "espeakng-loader==0.2.4"
WITHIN = "espeakng_loader"
DATA = "espeak-ng-data"
LIBRARIES = {"Linux": "libespeak-ng.so", "Darwin": "libespeak-ng.dylib"}
DATA_FILES = ("phondata", "phonindex", "phontab", "intonations", "en_dict")
RATE = 22_050  # Hz

# The wheel's list of its files with their SHA-256, for Linux on x86_64.
RECORD = Member(
    path="espeakng_loader-0.2.4.dist-info/RECORD",
    sha256="daa40a1d769cd7a8674b066cd2445ef6901d182514d428e74de97a2c595fb328",
    size=36_593,
)

# Constants of espeak's speak_lib.h.
SYNCHRONOUS = 2  # espeak_AUDIO_OUTPUT
DONT_EXIT = 0x8000  # espeak_INITIALIZE: errors are returned
SPEED, PITCH = 1, 3  # espeak_PARAMETER
CHARACTERS = 1  # espeak_POSITION_TYPE
UTF8 = 1  # the text's encoding
SEED = 1  # of breath and other noise, for each request anew


@dataclass(frozen=True)
class Request:
    """A text and who says it; `voice` is a voice, or a voice and a variant, as `en-us+f2`."""

    text: str
    voice: str
    pitch: int  # 0 to 99
    speed: int  # words a minute


class Speech(NamedTuple):
    """What eSpeak NG made of one request: samples at `RATE`, in [-1, 1)."""

    request: Request
    samples: np.ndarray


# The wheel.


def is_recorded() -> bool:
    """Whether this is the kind of machine whose wheel and sound the suite has checksums of."""
    return (platform.system(), platform.machine()) == ("Linux", "x86_64")


def unpack(
    wheel: Path,
    folder: Path,
    languages: Iterable[str],
    variants: Iterable[str],
    package: str = PACKAGE,
    record: Member | None = RECORD,
) -> None:
    """Writes the library and what it needs for these voices into the new `folder`.

    Files are checked by the wheel's own list of them, and that list by `record`, if given. Only
    paths that are named here are written.
    """
    library = LIBRARIES.get(platform.system())
    if library is None:
        raise DataProblem(f"{package}: no library for {platform.system()} is known")
    voices = [*(f"lang/gmw/{v}" for v in languages), *(f"voices/!v/{v}" for v in variants)]
    names = [library, *(f"{DATA}/{name}" for name in (*DATA_FILES, *voices))]
    listed = _read_record(wheel, package, record)
    for name in names:
        member = listed.get(f"{WITHIN}/{name}")
        if member is None:
            raise DataProblem(
                f"{wheel}: no {WITHIN}/{name} in it; replace it by a wheel of"
                f" {package} for {platform.system()} on {platform.machine()}"
            )
        target = folder / ("library" if name == library else name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(read_member(wheel, package, member))


def _read_record(wheel: Path, package: str, record: Member | None) -> dict[str, Member]:
    """Every file of the wheel by its path."""
    try:
        if record is not None:
            text = read_member(wheel, package, record).decode()
        else:
            with zipfile.ZipFile(wheel) as archive:
                text = archive.read(RECORD.path).decode()
        rows = [line.rsplit(",", 2) for line in text.splitlines()]
        return {
            path: Member(path, _hexadecimal(digest), int(size))
            for path, digest, size in rows
            if digest  # the list has no checksum of itself
        }
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise DataProblem(
            f"{wheel}: cannot be read as a wheel of {package}: {error}; replace it"
        ) from error


def _hexadecimal(digest: str) -> str:
    """Of `sha256=` and Base64 without its end."""
    return base64.urlsafe_b64decode(digest.removeprefix("sha256=") + "=").hex()


# The caller's side.


def speak(folder: Path, requests: Sequence[Request]) -> Iterator[Speech]:
    """Each request's sound, in order, as it is made; `folder` is one that was unpacked."""
    command = [sys.executable, "-m", "tasks.librispeech.espeak", str(folder.resolve())]
    errors = folder / "errors.txt"
    with (
        errors.open("wb") as log,
        subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        ) as child,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            _send(child.stdin, requests)
            for request in requests:
                samples = _receive(child.stdout)
                if samples is None:
                    raise DataProblem(_complaint(child.wait(), errors, request))
                yield Speech(request, samples / 2.0**15)
        finally:
            child.kill()


def _send(stream: IO[bytes], requests: Sequence[Request]) -> None:
    """The child reads all before it answers, so that neither waits for the other."""
    try:
        stream.write(json.dumps([asdict(request) for request in requests]).encode())
        stream.close()
    except BrokenPipeError:
        pass  # it has ended; why, is said when its answer does not come


def _receive(stream: IO[bytes]) -> np.ndarray | None:
    """The samples of one answer; None if the child ended before it."""
    head = stream.read(4)
    count = int.from_bytes(head, "little")
    body = stream.read(2 * count)
    if len(head) < 4 or len(body) < 2 * count:
        return None
    return np.frombuffer(body, "<i2")


def _complaint(status: int, errors: Path, request: Request) -> str:
    lines = errors.read_text(errors="replace").strip().splitlines()
    what = signal.Signals(-status).name if status < 0 else f"status {status}"
    said = f": {lines[-1]}" if lines else ""
    return (
        f"eSpeak NG ended ({what}{said}) at {request.text!r} in the voice {request.voice};"
        " nothing was written"
    )


# The child's side.


class Library:
    """The C library, initialised with the data in the working directory."""

    def __init__(self, path: Path) -> None:
        self._c = ctypes.CDLL(str(path))
        # The library has 160 bytes for the path of its data, so the path is a short one.
        rate = self._c.espeak_Initialize(SYNCHRONOUS, 0, b".", DONT_EXIT)
        if rate != RATE:
            raise RuntimeError(f"espeak_Initialize gave {rate}, not {RATE} Hz")
        self._chunks: list[bytes] = []
        of_callback = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_int16), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = of_callback(self._collect)  # must live as long as the library may call it
        self._c.espeak_SetSynthCallback(self._callback)
        self._c.espeak_ng_SetRandSeed.argtypes = [ctypes.c_long]
        self._c.espeak_Synth.argtypes = [
            ctypes.c_char_p,  # text
            ctypes.c_size_t,  # bytes, with the zero at the end
            ctypes.c_uint,  # begin
            ctypes.c_int,  # what `begin` counts
            ctypes.c_uint,  # end: none
            ctypes.c_uint,  # flags
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]

    def speak(self, request: Request) -> bytes:
        """16-bit samples."""
        self._chunks.clear()
        self._check("voice", self._c.espeak_SetVoiceByName(request.voice.encode()))
        self._check("speed", self._c.espeak_SetParameter(SPEED, request.speed, 0))
        self._check("pitch", self._c.espeak_SetParameter(PITCH, request.pitch, 0))
        self._check("seed", self._c.espeak_ng_SetRandSeed(SEED))
        text = request.text.encode()
        size = len(text) + 1
        self._check("text", self._c.espeak_Synth(text, size, 0, CHARACTERS, 0, UTF8, None, None))
        self._check("end", self._c.espeak_Synchronize())
        return b"".join(self._chunks)

    def _collect(self, samples: ctypes._Pointer[ctypes.c_int16], count: int, _: int | None) -> int:
        if samples and count > 0:
            self._chunks.append(ctypes.string_at(samples, 2 * count))
        return 0  # continue

    @staticmethod
    def _check(what: str, status: int) -> None:
        if status != 0:
            raise RuntimeError(f"the {what} was refused with {status}")


def main(folder: Path) -> None:
    """Answers the requests on standard input: of each its samples, after their number."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the library may print must not get between the samples
    requests = [Request(**fields) for fields in json.load(sys.stdin)]
    os.chdir(folder)
    library = Library(folder / "library")
    for request in requests:
        sound = library.speak(request)
        answers.write((len(sound) // 2).to_bytes(4, "little") + sound)
    answers.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
