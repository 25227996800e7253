"""Small models of chemical reactors, to simulate and to differentiate.

Reaction networks and their rates, Arrhenius' law, steppers, where samples lie among steps, and
closed forms to check them by. A stepper makes one step, ``step(carry, x)``, and never loops: the
loop is yours, by ``jax.lax.scan`` or :func:`rematax.scan`, and with it the choice of what a
gradient stores.

States have their species along the first axis; further axes are cells, tubes or samples, all
computed alike. Units are those of the numbers that you put in, so long as they agree; each
docstring says which must.
"""

from ._arrhenius import GAS_CONSTANT as GAS_CONSTANT
from ._arrhenius import arrhenius as arrhenius
from ._closed_forms import consecutive as consecutive
from ._closed_forms import consecutive_sensitivities as consecutive_sensitivities
from ._networks import Network as Network
from ._samples import sample_steps as sample_steps
from ._steppers import euler as euler
from ._steppers import midpoint as midpoint
from ._steppers import rk4 as rk4

__all__ = [
    "GAS_CONSTANT",
    "Network",
    "arrhenius",
    "consecutive",
    "consecutive_sensitivities",
    "euler",
    "midpoint",
    "rk4",
    "sample_steps",
]
