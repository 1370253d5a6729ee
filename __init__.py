"""topoplan: topology-aware communication planning for multi-GPU training."""
