"""What makes instances exist: local processes today."""
