"""Our games as Gymnasium and PettingZoo environments."""
