"""Learning in Ray actors, each with a slice of the herd, on any node of the cluster."""
