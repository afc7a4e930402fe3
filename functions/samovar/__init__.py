"""samovar."""
