"""samovar_pool."""
