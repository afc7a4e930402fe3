"""Second tries: after a loss, and beside a call that runs long."""
