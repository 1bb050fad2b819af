"""The command line and the magics: parse, call, print."""
