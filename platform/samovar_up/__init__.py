"""`samovar up`: one foreground command that starts, watches and stops the whole platform on this machine."""
