"""Entry point that older torch (before 2.15) loads with `import torch` (group torch.backends).

A package cannot limit an entry point to some versions of torch, so torch 2.15 loads this too. It
finds backends by name (group torch.distributed.backends), so there this module does nothing and
imports nothing more.
"""


def register_with_older_torch() -> None:
    """Register the backend "topo" if torch does not find backends by name."""
    import torch.distributed as dist

    if dist.is_available() and not hasattr(dist.Backend, "_ensure_backend_registered"):
        from .registration import register

        register()
