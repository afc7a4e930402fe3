"""samovar_up."""
