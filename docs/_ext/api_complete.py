"""Fail the build when a public name of the package is missing from the reference pages."""

from __future__ import annotations

import inspect

import sphinx.util.logging
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import rematax.adjoints
import rematax.book
import rematax.reactors

LOGGER = sphinx.util.logging.getLogger(__name__)


def public_names() -> set[str]:
    """Return the full names of what ``import rematax as rx`` offers, and of its public modules."""
    names = {name for name, value in vars(rematax).items() if not inspect.ismodule(value)}
    public = {f"rematax.{name}" for name in names if not name.startswith("_")}
    for module in (rematax.adjoints, rematax.book, rematax.reactors):
        public |= {f"{module.__name__}.{name}" for name in module.__all__}
    return public


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    documented = set(env.domains["py"].objects)
    for name in sorted(public_names() - documented):
        LOGGER.warning("the public name %s is not documented", name, location="reference/api")


def setup(app: Sphinx) -> dict:
    """Check once all pages are read."""
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
