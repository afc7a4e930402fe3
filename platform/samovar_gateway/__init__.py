"""The HTTP edge: protocol in, dispatcher call, protocol out. `python -m samovar_gateway --config FILE`."""
