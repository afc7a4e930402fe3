"""Real servers for a laptop: Valkey and SeaweedFS under one data folder, on loopback, with generated credentials."""

from samovar_storage.embedded.seaweed import EmbeddedSeaweed
from samovar_storage.embedded.valkey import EmbeddedValkey

__all__ = ["EmbeddedSeaweed", "EmbeddedValkey"]
