"""The built site, and a browser to look at it."""

import functools
import http.server
import shutil
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs/_build/html"


@pytest.fixture(scope="session")
def site() -> Path:
    assert (SITE / "index.html").exists(), "there is no book to test: run `nox -s docs` first"
    return SITE


@pytest.fixture(scope="session")
def address(site):
    """Serve the site on this machine for as long as the tests run."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Patient:
    """A browser whose pages are waited for, however long a busy machine takes."""

    def __init__(self, browser) -> None:
        self.browser = browser

    def new_context(self, **options):
        context = self.browser.new_context(**options)
        context.set_default_timeout(0)  # none
        return context


@pytest.fixture(scope="session")
def browser():
    from playwright.sync_api import sync_playwright

    program = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    assert program, "the tests of the site need Chromium: install it from your system's packages"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
            timeout=0,
        )
        yield Patient(browser)
        browser.close()
