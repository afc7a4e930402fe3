"""What is known of the health of versions and instances, and what follows from it."""
