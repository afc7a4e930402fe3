"""samovar_storage."""
