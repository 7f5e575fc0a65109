"""A real browser, without a window, spoken to over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import aiohttp

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# --no-sandbox: root may not have it, and what is opened is ours. The rest keeps it from calling home and from /dev/shm,
# which is small in containers.
_OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--no-default-browser-check", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--disable-default-apps", "--mute-audio", "--hide-scrollbars", "--password-store=basic",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.*, EXCLUDE *.localhost",
)  # fmt: skip
# Against hanging: a browser's first start on a busy machine takes its time.
_GUARD_SECONDS = 60.0


def find_lack() -> str | None:
    """Why no browser can be used here, or None. Tried by letting it print an empty page."""
    program = find_program()
    if program is None:
        return "no Chromium is on PATH"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        argv = [program, *_OPTIONS, f"--user-data-dir={folder}", "--dump-dom", "about:blank"]
        try:
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GUARD_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "Chromium did not show an empty page in time"
    return None if b"<html" in done.stdout else "Chromium did not show an empty page"


def find_program() -> str | None:
    """The browser's path."""
    return next((found for name in _PROGRAMS if (found := shutil.which(name))), None)


class Tab:
    """One page: what it asked for, what it complained about, and what it shows."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        """Addresses that it asked for, its own first."""
        self.complaints: list[str] = []
        """Errors and warnings in its console, exceptions, and what its policy refused."""

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        return await self._browser.send(method, parameters, session=self._session)

    async def go(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        await self.send("Page.navigate", url=url)
        await self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def show(self, *, width: int, height: int, dark: bool = False) -> None:
        """How large the page is, and what its reader prefers."""
        await self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def get(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def wait_for(self, expression: str) -> None:
        """Until an expression is true."""
        try:
            async with asyncio.timeout(_GUARD_SECONDS):
                while not await self.get(f"Boolean({expression})"):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"never true in the page: {expression}; it complained: {self.complaints}") from None

    async def type_into(self, selector: str, text: str) -> None:
        """As a user at the keyboard would."""
        await self.get(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.send("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """One key that is one character."""
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def click(self, selector: str) -> None:
        """On the element."""
        await self.get(f"document.querySelector({json.dumps(selector)}).click()")

    async def picture(self, target: Path, *, whole: bool = True) -> None:
        """What it looks like."""
        found = await self.send(
            "Page.captureScreenshot", format="png", captureBeyondViewport=whole, **await self._clip(whole)
        )
        target.write_bytes(base64.b64decode(found["data"]))

    async def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = (await self.send("Page.getLayoutMetrics"))["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}}

    def take(self, method: str, parameters: dict[str, Any]) -> None:
        """One event of the protocol."""
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(parameters["entry"]))


class Browser:
    """The connection to a running one."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tabs: dict[str, Tab] = {}

    async def open_tab(self, *, width: int = 1280, height: int = 900, dark: bool = False) -> Tab:
        """An empty page that is being listened to."""
        target = await self.send("Target.createTarget", {"url": "about:blank"})
        attached = await self.send("Target.attachToTarget", {"targetId": target["targetId"], "flatten": True})
        tab = self._tabs[attached["sessionId"]] = Tab(self, attached["sessionId"])
        for domain in ("Page", "Runtime", "Network", "Log"):
            await tab.send(f"{domain}.enable")
        await tab.show(width=width, height=height, dark=dark)
        return tab

    async def send(self, method: str, parameters: dict[str, Any], *, session: str = "") -> dict[str, Any]:
        """One command, and its answer."""
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        await self._socket.send_json(message)
        async with asyncio.timeout(_GUARD_SECONDS):
            return await answer

    async def listen(self) -> None:
        """Sort what it says, until it closes."""
        async for message in self._socket:
            found = json.loads(message.data)
            if (answer := self._asked.pop(found.get("id", 0), None)) is not None:
                if answer.done():
                    continue
                if "error" in found:
                    answer.set_exception(AssertionError(f"the browser refused: {found['error']}"))
                else:
                    answer.set_result(found["result"])
            elif (tab := self._tabs.get(found.get("sessionId", ""))) is not None:
                tab.take(found["method"], found["params"])


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    """A browser with a folder of its own, ended with everything that it started."""
    import aiohttp  # here: every test run imports this module for its probe

    program = find_program()
    assert program is not None, "mark the test needs_browser"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        process = subprocess.Popen(
            [program, *_OPTIONS, f"--user-data-dir={folder}", "--remote-debugging-port=0", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            address = await _wait_for_address(Path(folder), process)
            async with aiohttp.ClientSession() as http, http.ws_connect(address, max_msg_size=0) as socket:
                browser = Browser(socket)
                listening = asyncio.create_task(browser.listen())
                try:
                    yield browser
                finally:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.wait)


async def _wait_for_address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """It writes its port and path into its folder when it listens."""
    async with asyncio.timeout(_GUARD_SECONDS):
        while True:
            assert process.poll() is None, "the browser ended by itself"
            lines = (
                (folder / "DevToolsActivePort").read_text().split() if (folder / "DevToolsActivePort").exists() else []
            )
            if len(lines) == 2:
                return f"ws://127.0.0.1:{lines[0]}{lines[1]}"
            await asyncio.sleep(0.05)
