"""The models of the evaluation, one builder per file."""

from netsplit.models.amoebanet_d import amoebanet_d

__all__ = ["amoebanet_d"]
