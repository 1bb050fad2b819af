"""JupyterLab on a free port of this machine, and a real browser that opens its notebooks.

Where Notebook 7 is installed, the same server opens them in it.

Neither finds the other's user settings, and the browser finds no network but this machine.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
ARTIFACTS = Path(__file__).parents[1] / "artifacts"
LIGHT, DARK = "JupyterLab Light", "JupyterLab Dark"
_WCAG = {"runOnly": ["wcag2a", "wcag2aa"], "resultTypes": ["violations"]}
_PATIENCE_S = 180.0  # for JupyterLab to start, and to open a notebook
STEP_S = 120.0  # for anything on a page that is open, were the machine twenty times as busy


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab that serves the notebooks of a directory."""

    url: str
    token: str
    directory: Path


@dataclass(frozen=True)
class NotebookPage:
    """A notebook, open in a browser; ``page`` is Playwright's own."""

    page: Any
    asked_elsewhere: list[str]
    errors: list[str]

    def run_all(self) -> None:
        """Run all cells and wait until the kernel has done with them."""
        failed = self.page.evaluate(
            "async () => { await window.jupyterapp.commands.execute('notebook:run-all-cells');"
            " return [...document.querySelectorAll('.jp-OutputArea-output[data-mime-type="
            '"application/vnd.jupyter.stderr"]\')].map(e => e.innerText)'
            ".filter(t => t.includes('Traceback') || t.includes('Error')) }"
        )
        assert failed == []

    @contextlib.contextmanager
    def narrow(self, width: int = 1000) -> Iterator[None]:
        """Give the page another width in a block."""
        size = self.page.viewport_size
        self.page.set_viewport_size({**size, "width": width})
        self.page.wait_for_timeout(500)  # colours and figures follow, once the page has time
        self.page.evaluate("() => new Promise(done => requestIdleCallback(() => done()))")
        yield
        self.page.set_viewport_size(size)

    def theme(self, name: str) -> None:
        """Change to ``LIGHT`` or ``DARK``."""
        self.page.evaluate(
            "theme => window.jupyterapp.commands.execute('apputils:change-theme', {theme})", name
        )
        is_light = str(name == LIGHT).lower()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{is_light}']", state="attached")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def barriers(self, selector: str) -> list[str]:
        """Return what axe finds in an element, and where it is too wide, in both themes and widths.

        The page is as it was afterwards.
        """
        found = []
        for theme, width in itertools.product((DARK, LIGHT), (1000, 1440)):
            self.theme(theme)
            with self.narrow(width):
                seen = Axe().run(self.page, selector, _WCAG)
                over = self.page.locator(selector).first.evaluate(
                    "e => e.scrollWidth - e.clientWidth"
                )
            where = f"{theme}, {width} px"
            found += [f"{where}: {seen.generate_report()}"] * (seen.violations_count > 0)
            found += [f"{where}: {over} px too wide"] * (over > 0)
        return found

    def picture(self, name: str, selector: str | None = None) -> Path:
        """Keep a screenshot of the page, or of one element, in ``tests/artifacts``."""
        ARTIFACTS.mkdir(exist_ok=True)
        path = ARTIFACTS / f"{name}.png"
        what = self.page.locator(selector).first if selector else self.page
        what.screenshot(path=path)
        return path


def write_notebook(path: Path, cells: Sequence[str]) -> Path:
    """Write a notebook of code cells."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in cells],
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}
        },
    )
    nbformat.write(notebook, path)
    return path


@contextlib.contextmanager
def running_lab(directory: Path, home: Path) -> Iterator[Lab]:
    """Start JupyterLab for the notebooks in ``directory``; its own files go to ``home``."""
    port, token = free_port(), secrets.token_hex(16)
    url = f"http://127.0.0.1:{port}"
    command = [
        "jupyterlab", "--no-browser", "--expose-app-in-browser",
        "--JupyterNotebookApp.expose_app_in_browser=True",
        f"--ServerApp.root_dir={directory}", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--allow-root",
        f"--IdentityProvider.token={token}",
        "--LabApp.news_url=''", "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    log = home / "jupyter.log"
    with serving(command, f"{url}/api?token={token}", log, env=environment_in(home), cwd=directory):
        yield Lab(url, token, directory)


@contextlib.contextmanager
def serving(module: Sequence[str], url: str, log: Path, **options: Any) -> Iterator[None]:
    """Run a module of Python with its arguments, once a URL answers until the end."""
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *module], stdout=file, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, **options,
        )  # fmt: skip
    try:
        _wait_for(url, process, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def served_page(
    browser: Any, module: Sequence[str], probe: str, log: Path, **options: Any
) -> Iterator[Any]:
    """Open what a module serves, once its ``probe`` answers; no script fails until the end."""
    port, errors = free_port(), list[str]()
    url = f"http://127.0.0.1:{port}"
    with serving([*module, f"--port={port}"], f"{url}/{probe}", log, **options):
        page = browser.new_page(viewport={"width": 1400, "height": 2200})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_default_timeout(90_000)  # every cell runs before a click is answered
        page.goto(url)
        yield page
        ARTIFACTS.mkdir(exist_ok=True)
        page.screenshot(path=ARTIFACTS / f"{log.stem}.png", full_page=True)
        page.close()
    assert errors == []


@contextlib.contextmanager
def running_browser() -> Iterator[Any]:
    """Start the browser of this machine without a window; fail if there is none."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.fail(f"No browser here; one of {', '.join(BROWSERS)} is needed.")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found,
            args=[
                "--no-sandbox", "--disable-gpu", "--enable-unsafe-swiftshader", "--disable-quic",
                "--no-first-run", "--disable-background-networking", "--disable-component-update",
                "--disable-sync",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            ],
        )  # fmt: skip
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(
    browser: Any,
    lab: Lab,
    notebook: str,
    size: tuple[int, int] = (1500, 1700),
    *,
    in_notebook_7: bool = False,
) -> Iterator[NotebookPage]:
    """Open a notebook of the lab's directory alone on a page, with its kernel ready."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]})
    page = context.new_page()
    elsewhere, errors = list[str](), list[str]()
    page.on("request", lambda r: _note_foreign(r.url, lab, elsewhere))
    page.set_default_timeout(_PATIENCE_S * 1000)
    workspace = secrets.token_hex(4)  # so that no page sees what another one left open
    place = "notebooks" if in_notebook_7 else f"doc/workspaces/{workspace}/tree"
    page.goto(f"{lab.url}/{place}/{notebook}?token={lab.token}")
    page.wait_for_function("() => window.jupyterapp !== undefined")
    page.evaluate("() => window.jupyterapp.restored.then(() => true)")
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    page.wait_for_selector("#jupyterlab-splash", state="detached")
    page.wait_for_function(
        "() => window.jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel?.status"
        " === 'idle'"
    )
    page.set_default_timeout(STEP_S * 1000)
    # From here on: Notebook 7 has one of its own as it starts, with an empty notebook, too.
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: (errors.append(dialog.message), dialog.dismiss()))
    try:
        yield NotebookPage(page, elsewhere, errors)
    finally:
        with contextlib.suppress(Exception):  # a page that is gone has no kernel to end
            page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        context.close()


@contextlib.contextmanager
def ran(browser: Any, lab: Lab, cells: Sequence[str], **options: Any) -> Iterator[NotebookPage]:
    """Write, open and run a notebook; in the end no script has failed, nor asked a network."""
    name = f"{secrets.token_hex(4)}.ipynb"
    write_notebook(lab.directory / name, cells)
    with opened(browser, lab, name, **options) as notebook:
        notebook.run_all()
        yield notebook
        assert notebook.errors == []
        assert notebook.asked_elsewhere == []


def _note_foreign(url: str, lab: Lab, elsewhere: list[str]) -> None:
    if not url.startswith((lab.url, "data:", "blob:", "about:")):
        elsewhere.append(url)


def environment_in(home: Path) -> dict[str, str]:
    """Return an environment in which Jupyter keeps its own files in ``home``."""
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    own = {
        "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime", "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython",
    }  # fmt: skip
    for name in own.values():
        (home / name).mkdir(exist_ok=True)
    return {**os.environ, **{key: str(home / name) for key, name in own.items()}}


def free_port() -> int:
    """Return a port of this machine that nobody listens to."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def _wait_for(url: str, process: subprocess.Popen, log: Path) -> None:
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        if process.poll() is not None:
            pytest.fail(f"It did not start:\n{log.read_text()[-3000:]}")
        with contextlib.suppress(OSError, urllib.error.URLError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        time.sleep(0.2)
    pytest.fail(f"It did not answer in {_PATIENCE_S:.0f} s:\n{log.read_text()[-3000:]}")
