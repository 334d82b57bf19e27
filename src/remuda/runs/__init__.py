"""A run: a directory with config, metrics, checkpoints and pictures, and everything that writes or reads one."""
