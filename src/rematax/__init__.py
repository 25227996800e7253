"""Gradient checkpointing in JAX: see, measure and plan the memory of a gradient.

Everything public is here, by the name that it has in the literature: ``import rematax as rx``.

Where things are, each line resting on those below it:

- ``_plan`` with ``_gradient``, ``adjoints``: schedules and adjoints that fit a memory, both by
  ``_search``;
- ``_scan``: the entry, with the contract of ``jax.lax.scan``;
- ``_maps``: what JAX is told of a loop (value, tangent, adjoint, and how each is transformed);
  ``_default``: the schedule where none is given;
- ``_sweeps``, ``_structural``: how a loop is run, by a table or in JAX's own terms;
- ``_loop``: a loop as a traced program, and the loops made of it;
- ``_jax``: all that touches JAX's extension points; ``_jaxprs``: reads traced programs;
- ``_schedules``, ``_binomial``: when to store and when to recompute, in plain Python;
- beside them ``_inspect`` and ``_policies``, ``_measure``, ``_gradcheck`` and ``_noise``,
  ``_backends``: looking and measuring; ``_calls``: a person's function as one of arrays alone; and
  ``_sizes``, ``_tables``, ``_tracing``: small things that all use.

``reactors`` rests on nothing of these, ``book`` on ``_backends`` and ``_tables``.
"""

from ._backends import Backend as Backend
from ._backends import describe_backend as describe_backend
from ._backends import use_backend as use_backend
from ._gradcheck import TaylorTest as TaylorTest
from ._gradcheck import taylor_test as taylor_test
from ._inspect import Counted as Counted
from ._inspect import Residual as Residual
from ._inspect import Residuals as Residuals
from ._inspect import counted as counted
from ._inspect import residuals as residuals
from ._measure import Comparison as Comparison
from ._measure import Cost as Cost
from ._measure import Operations as Operations
from ._measure import compare as compare
from ._measure import measure as measure
from ._plan import Candidate as Candidate
from ._plan import Plan as Plan
from ._plan import plan as plan
from ._scan import scan as scan
from ._schedules import Binomial as Binomial
from ._schedules import EveryStep as EveryStep
from ._schedules import Nested as Nested
from ._schedules import Schedule as Schedule
from ._schedules import StoreAll as StoreAll
