"""The training loop, the two interfaces it works with, and the table of engines."""
