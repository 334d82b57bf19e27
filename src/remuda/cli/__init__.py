"""The command line. Starting it imports nothing heavy: each command imports what it needs."""
