"""Headless Chromium, driven over a pipe with the DevTools protocol; nothing to install."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PROTOCOL_IN, PROTOCOL_OUT = 3, 4  # the descriptors that --remote-debugging-pipe reads and writes


def find_chromium() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab; `errors` and `requests` are what it logged and fetched since it was opened."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands, self._answers, self._number = commands, answers, 0
        self._rest, self._session = b"", ""
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def open(self, file: Path, width: int, height: int = 900, *, dark: bool = False) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[feature])
        self._loaded = False
        self.ask("Page.navigate", url=file.as_uri())
        while not self._loaded:
            self._listen()

    def run(self, script: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        answer = self.ask("Page.captureScreenshot", captureBeyondViewport=False)
        path.write_bytes(base64.b64decode(answer["data"]))

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._listen()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _listen(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            got = os.read(self._answers, 1 << 16)
            assert got, "the browser has exited"
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        kind, about = message.get("method"), message.get("params", {})
        if kind == "Page.loadEventFired":
            self._loaded = True
        elif kind == "Network.requestWillBeSent":
            self.requests.append(about["request"]["url"])
        elif kind == "Runtime.exceptionThrown" or _level(about) in ("error", "warning"):
            self.errors.append(str(about))
        return message


def _level(about: dict[str, Any]) -> Any:
    """How bad a message of the console or of the browser's log is."""
    return about.get("entry", about).get("level") or about.get("type")


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A tab of a browser of its own, with its profile in a folder."""
    ours_in, theirs_out = os.pipe()
    theirs_in, ours_out = os.pipe()
    # Out of the way of the numbers that they will have in the browser.
    far = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]

    def place() -> None:
        os.dup2(far[0], PROTOCOL_IN)
        os.dup2(far[1], PROTOCOL_OUT)

    arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    arguments += ["--no-first-run", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
    process = subprocess.Popen(
        [str(find_chromium()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=place,
        pass_fds=(PROTOCOL_IN, PROTOCOL_OUT),
    )
    for descriptor in (theirs_in, theirs_out, *far):
        os.close(descriptor)
    try:
        yield Page(ours_out, ours_in)
    finally:
        process.kill()
        process.wait()
        os.close(ours_in)
        os.close(ours_out)
