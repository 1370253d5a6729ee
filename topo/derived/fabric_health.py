"""The state and the health of an NVLink fabric, as NVML's numbers say them.

The driver reports both for each GPU (nvmlDeviceGetGpuFabricInfoV), and NCCL prints them in its log.
"""

# Names of nvmlGpuFabricState_t, by number.
FABRIC_STATES = ("not supported", "not started", "in progress", "completed")
# Shift and mask of NVML's health fields, each 0 (not supported), 1 (true) or 2 (false).
_HEALTH_OF_BITS = (
    (0, 0x3, "degraded bandwidth"),
    (2, 0x3, "routes in recovery"),
    (4, 0x3, "unhealthy routes"),
    (6, 0x3, "access timeout in recovery"),
)
# Bits of the configuration in the same mask, and the values that are fine.
_CONFIGURATION_SHIFT, _CONFIGURATION_MASK, _CONFIGURATION_FINE = 8, 0xF, (0, 1)
HEALTHY = "healthy"


def describe_health(mask: int) -> str:
    """Return "healthy", or what is wrong with a fabric, by NVML's health mask (nvml.h)."""
    faults = [words for shift, bits, words in _HEALTH_OF_BITS if mask >> shift & bits == 1]
    if mask >> _CONFIGURATION_SHIFT & _CONFIGURATION_MASK not in _CONFIGURATION_FINE:
        faults.append("incorrect configuration")
    return ", ".join(faults) or HEALTHY
