"""Learning in processes, each with a slice of the herd."""
