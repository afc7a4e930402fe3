"""The `samovar` command."""
