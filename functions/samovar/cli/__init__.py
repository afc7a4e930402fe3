"""The command line: `samovar VERB`. Each verb lives in its own module and is imported when it is called."""
