"""Many training runs side by side: one trial, and a pool of processes that runs trials."""
