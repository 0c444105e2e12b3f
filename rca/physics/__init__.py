"""A simulated cluster: a synchronous training job on nodes of GPUs, with its heat, power, disks and network.

It knows no rules and no causes: a scenario states physical effects, the simulator lets them act, and what comes out are
series under the names and labels that real exporters use. Ill ranks wait least and their victims boost because that is
how a synchronous step works, not because a fault says so. The same file and seed give the same series.
"""

from rca.physics.run import Trace, happen
from rca.physics.written import Expect, ExpectedCause, Scenario

__all__ = ["Expect", "ExpectedCause", "Scenario", "Trace", "happen"]
