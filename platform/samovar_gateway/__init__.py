"""samovar_gateway."""
