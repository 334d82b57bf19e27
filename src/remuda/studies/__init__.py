"""Studies: questions that take many runs to answer."""
