"""The admin side of the gateway: deploys, uploads, scaling, keys and what operators look at."""

from samovar_gateway.admin.router import Admin

__all__ = ["Admin"]
