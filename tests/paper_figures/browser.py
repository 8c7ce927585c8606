"""A headless Chromium, driven by its own DevTools protocol through a pipe: no further library."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = (
    "chromium",
    "chromium-browser",
    "chromium-headless-shell",
    "google-chrome",
    "google-chrome-stable",
)


def executable() -> str | None:
    """The first Chromium on the PATH."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of a running browser."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._out = to_browser
        self._in = os.fdopen(from_browser, "rb")
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def open(self, page: Path | str, width: int, scheme: str = "light") -> None:
        """Load a file or an address at a width in CSS pixels, under a colour scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while self.run("document.readyState") != "complete" or self.run("location.href") == (
            "about:blank"
        ):
            pass

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression on the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, selector: str) -> None:
        """A real press of the mouse in the middle of an element."""
        self.run(f"document.querySelector({selector!r}).scrollIntoView({{block: 'center'}})")
        box = f"document.querySelector({selector!r}).getBoundingClientRect()"
        x, y = self.run(f"[{box}.x + {box}.width / 2, {box}.y + {box}.height / 2]")
        for kind in ("mousePressed", "mouseReleased"):
            at = {"x": x, "y": y, "button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **at)

    def type(self, selector: str, words: str) -> None:
        """Into a field, as from a keyboard."""
        self.click(selector)
        self.call("Input.insertText", text=words)

    def press(self, key: str) -> None:
        """A key by its name (`Tab`, `ArrowRight`), wherever the focus is."""
        code = {"Tab": 9, "ArrowRight": 39}[key]
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: Mapping[str, Any]) -> None:
        kind, values = event.get("method"), event.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.problems.append(str(values["exceptionDetails"]))
        elif kind == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.problems.append(values["entry"]["text"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            more = self._in.read1(65536)
            if not more:
                raise EOFError("Chromium has ended")
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def headless(profile: Path) -> Iterator[Browser]:
    """A browser of its own, without network access; its profile lies in an empty folder."""
    found = executable()
    assert found is not None
    command_in, to_browser = os.pipe()
    from_browser, answer_out = os.pipe()
    flags = (
        "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run "
        "--disable-background-networking --disable-sync --disable-extensions --hide-scrollbars "
        "--force-color-profile=srgb --remote-debugging-pipe"
    )
    line = f'exec "$0" {flags} "--user-data-dir=$1" 3<&{command_in} 4>&{answer_out}'
    process = subprocess.Popen(
        ["bash", "-c", line, found, str(profile)],
        pass_fds=(command_in, answer_out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_in)
    os.close(answer_out)
    try:
        yield Browser(to_browser, from_browser)
    finally:
        process.terminate()
        process.wait()
        os.close(to_browser)
