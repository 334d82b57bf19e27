"""Our games as environments of Gymnasium and PettingZoo."""
