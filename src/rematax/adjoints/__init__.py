r"""Choose the adjoint of a diffrax solve that fits the memory.

An adaptive solve finds its number of steps on its way, so its gradient cannot be planned from the
program alone, as :func:`rematax.plan` does it: here the solve runs once. Its steps, accepted and
rejected alike, are what the gradient goes back through. How often each then runs is counted exactly
for every number of checkpoints, and what the compiler allocates is measured (see
:func:`rematax.measure`).

Needs diffrax, which is imported when it is first used. Where things are, each line resting on those
below it:

- ``_advice``: what is asked, searched and shown; ``_arguments``: what is refused;
- ``_backsolve``: what ``BacksolveAdjoint`` makes of the same gradient;
- ``_options``: the adjoints to choose from, their work and their bytes;
- ``_solve``: the solve that is run, and the derivative that is measured;
- ``_online``: how often a step runs under online checkpointing, in plain Python.
"""

from ._advice import Advice, Candidate, advise, evaluations

__all__ = ["Advice", "Candidate", "advise", "evaluations"]
