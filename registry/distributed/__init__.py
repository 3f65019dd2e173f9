"""Jobs of several ranks: ``registry.distributed.agree()`` checks that all of them run the same winners."""

from .agreement import agree, identity

__all__ = ["agree", "identity"]
