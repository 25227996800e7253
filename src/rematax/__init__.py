"""Gradient checkpointing in JAX: see, measure and plan the memory of a gradient."""

from ._gradcheck import TaylorTest as TaylorTest
from ._gradcheck import taylor_test as taylor_test
from ._scan import scan as scan
from ._schedules import Binomial as Binomial
from ._schedules import EveryStep as EveryStep
from ._schedules import Nested as Nested
from ._schedules import StoreAll as StoreAll
