"""The answer to an invocation as server-sent events."""
