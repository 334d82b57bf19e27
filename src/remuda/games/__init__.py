"""The games that come with remuda, and the registry that finds a game by its name."""
