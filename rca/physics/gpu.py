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
from rca.physics.cluster import POWER_EXPONENT, GpuModel, Hardware
from rca.physics.conditions import Conditions

DROOP = 0.0788  # share of the maximum clock taken off for each degree above the limit: 1.2 GHz on an H100 at 92 degrees
TIME_CONSTANT = 150.0  # seconds until a heat sink has done 63 % of a change
REGULATION = 1.0  # seconds over which the power limit is averaged


@dataclass(frozen=True, eq=False)
class Load:
    """How a GPU spends a step, as shares (G,): `busy` in own kernels, `idle` with none; the rest it spins.

    `running` marks GPUs that a process holds, `tensor` is tensor cycles a second in MHz, `step` seconds of the step.
    """

    running: NDArray[np.bool_]
    busy: Floats
    idle: Floats
    tensor: Floats
    step: Floats

    def spinning(self, model: GpuModel) -> Floats:
        """Return the watts (G,) that go into spinning in collectives."""
        watts: Floats = np.maximum(1.0 - self.busy - self.idle, 0.0) * model.spin_power
        return watts


@dataclass(frozen=True, eq=False)
class Limits:
    """What holds whatever a GPU's temperature and load (G,): `ceiling` is the highest clock in MHz that it may take,
    `room` the watts it may draw above idling, `full` those of its kernels at maximum clock, `steady` the clock in MHz
    at which they draw what they may.
    """

    ceiling: Floats
    room: Floats
    full: Floats
    steady: Floats


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


def limit(hardware: Hardware, conditions: Conditions, intensity: Floats) -> Limits:
    """Return the limits of GPUs whose kernels draw `intensity` (G,) against a full load."""
    model = hardware.model
    braked = np.where(conditions["power_brake"] > 0, 0.5 * model.max_clock, model.max_clock)
    room = conditions["power_limit"] - model.idle_power
    full = hardware.full_power * intensity
    return Limits(np.minimum(braked, conditions["clock_limit"]), room, full, _clock_at(model, room / full))


def _clock_at(model: GpuModel, share: Floats) -> Floats:
    """Return the clock in MHz at which kernels draw this share of what they do at maximum clock."""
    clock: Floats = np.minimum(1.0, share) ** (1.0 / POWER_EXPONENT) * model.max_clock
    return clock


def clocks(model: GpuModel, limits: Limits, temperature: Floats, load: Load) -> Clocks:
    """Choose the clocks for these temperatures and for the load of the step before."""
    excess = np.maximum(temperature - model.max_op, memory_temperature(temperature) - model.memory_max_op)
    thermal = model.max_clock * np.maximum(1.0 - DROOP * np.maximum(excess, 0.0), 0.3)
    ceiling = np.minimum(thermal, limits.ceiling)
    power = _power_clock(model, limits, load)
    hot = (thermal < np.minimum(power, model.max_clock)) & load.running
    return Clocks(
        busy=np.minimum(power, ceiling),
        waiting=ceiling,
        power_limited=(power < ceiling) & load.running,
        sw_thermal=hot,
        hw_thermal=hot & (temperature >= model.slowdown),
    )


def _power_clock(model: GpuModel, limits: Limits, load: Load) -> Floats:
    averaged = np.maximum(limits.room - load.spinning(model), 1.0) / np.maximum(load.busy, 0.05)
    weight = np.minimum(1.0, REGULATION / np.maximum(load.step, 1e-3))
    gained = np.maximum(_clock_at(model, averaged / limits.full) - limits.steady, 0.0)
    mixed: Floats = limits.steady + weight * gained
    return mixed


def power(model: GpuModel, limits: Limits, clock: Clocks, load: Load) -> Floats:
    """Return the mean board power in watts."""
    dynamic = limits.full * (clock.busy / model.max_clock) ** POWER_EXPONENT
    return model.idle_power + np.where(load.running, load.busy * dynamic + load.spinning(model), 0.0)


def settle(hardware: Hardware, conditions: Conditions, watts: Floats) -> Floats:
    """Return the temperature that this power leads to in the end."""
    air = hardware.air + conditions["inlet_rise"]
    return air + hardware.resistance * conditions["cooling"] * watts
