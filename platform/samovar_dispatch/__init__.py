"""samovar_dispatch."""
