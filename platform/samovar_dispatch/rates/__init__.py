"""Rate limits: the arithmetic, one gateway's part in a limit, and who is told."""
