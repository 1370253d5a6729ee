"""Ask NVML, the NVIDIA driver's library."""
