"""Webhooks: events leased from Redis, signed and sent, each to an address that was checked when it was connected to."""
