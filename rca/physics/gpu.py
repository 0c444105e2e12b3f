"""What a GPU does with heat and power: clocks, watts and degrees.

A busy GPU runs as fast as its power limit lets it (bit 2 of the clock-event reasons, normal); one that spins in a
collective draws little and boosts to the maximum clock. The limit acts on the mean over about a second, so in short
steps a GPU that waits much may also compute faster. Above its maximum operating temperature the driver lowers the clock
in proportion (software slowdown, bit 5), above the slowdown threshold the hardware pulses it (bits 3 and 6).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rca.model import Floats
from rca.physics.cluster import POWER_EXPONENT, Hardware
from rca.physics.conditions import Conditions

DROOP = 0.0788  # share of the maximum clock taken off for each degree above the limit: 1.2 GHz on an H100 at 92 degrees
TIME_CONSTANT = 150.0  # seconds until a heat sink has done 63 % of a change
REGULATION = 1.0  # seconds over which the power limit is averaged


@dataclass(frozen=True, eq=False)
class Load:
    """How a GPU spends a step, as shares (G,): `busy` in own kernels, `idle` with none; the rest it spins.

    `running` marks GPUs that a process holds, `tensor` is tensor cycles a second in MHz, `step` seconds of the step,
    `intensity` the power of its kernels against a full load.
    """

    running: NDArray[np.bool_]
    busy: Floats
    idle: Floats
    tensor: Floats
    step: Floats
    intensity: Floats


@dataclass(frozen=True, eq=False)
class Clocks:
    """Clocks in MHz while busy and while waiting, and what holds them down (bool, (G,))."""

    busy: Floats
    waiting: Floats
    power_limited: NDArray[np.bool_]
    sw_thermal: NDArray[np.bool_]
    hw_thermal: NDArray[np.bool_]


def memory_temperature(temperature: Floats) -> Floats:
    """Return the HBM temperature beside a core of this temperature; it runs warmer, and follows less than fully."""
    return 0.85 * temperature + 17.0


def clocks(hardware: Hardware, conditions: Conditions, temperature: Floats, load: Load) -> Clocks:
    """Choose the clocks for these temperatures and for the load of the step before."""
    model = hardware.model
    excess = np.maximum(temperature - model.max_op, memory_temperature(temperature) - model.memory_max_op)
    thermal = model.max_clock * np.clip(1.0 - DROOP * np.maximum(excess, 0.0), 0.3, 1.0)
    braked = np.where(conditions["power_brake"] > 0, 0.5 * model.max_clock, model.max_clock)
    ceiling = np.minimum(np.minimum(thermal, braked), conditions["clock_limit"])
    power = _power_clock(hardware, conditions, load)
    limited = (power < ceiling) & load.running
    hot = thermal < np.minimum(power, model.max_clock)
    return Clocks(
        busy=np.minimum(power, ceiling),
        waiting=np.minimum(ceiling, model.max_clock),
        power_limited=limited,
        sw_thermal=hot & load.running,
        hw_thermal=hot & (temperature >= model.slowdown) & load.running,
    )


def _power_clock(hardware: Hardware, conditions: Conditions, load: Load) -> Floats:
    model = hardware.model
    room = conditions["power_limit"] - model.idle_power
    spinning = np.clip(1.0 - load.busy - load.idle, 0.0, 1.0) * model.spin_power
    averaged = np.maximum(room - spinning, 1.0) / np.clip(load.busy, 0.05, 1.0)
    weight = np.minimum(1.0, REGULATION / np.maximum(load.step, 1e-3))
    full = hardware.full_power * load.intensity
    clock = [
        np.minimum(1.0, allowed / full) ** (1.0 / POWER_EXPONENT) * model.max_clock for allowed in (room, averaged)
    ]
    mixed: Floats = clock[0] + weight * (np.maximum(clock[1], clock[0]) - clock[0])
    return mixed


def power(hardware: Hardware, clock: Clocks, load: Load) -> Floats:
    """Return the mean board power in watts."""
    model = hardware.model
    dynamic = hardware.full_power * load.intensity * (clock.busy / model.max_clock) ** POWER_EXPONENT
    spinning = np.clip(1.0 - load.busy - load.idle, 0.0, 1.0) * model.spin_power
    return model.idle_power + np.where(load.running, load.busy * dynamic + spinning, 0.0)


def settle(hardware: Hardware, conditions: Conditions, watts: Floats) -> Floats:
    """Return the temperature that this power leads to in the end."""
    air = hardware.air + conditions["inlet_rise"]
    return air + hardware.resistance * conditions["cooling"] * watts
