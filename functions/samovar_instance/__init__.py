"""samovar_instance."""
