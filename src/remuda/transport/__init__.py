"""What moves data between processes: shared memory, slots, versioned weights, worker processes."""
