"""The gateway's half of the request log: one row per invocation, kept off the calls' path."""
