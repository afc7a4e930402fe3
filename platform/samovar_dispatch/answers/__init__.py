"""Answers that no call of this ask gave: kept ones, other versions, functions and values."""
