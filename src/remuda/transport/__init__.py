"""How data moves between processes: shared memory, slots, versioned weights, worker processes."""
