"""Where collecting and learning happen; one file per placement."""
