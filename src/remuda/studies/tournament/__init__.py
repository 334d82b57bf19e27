"""`remuda tournament`: agents of different runs, checkpoints and scripted players meet in one game."""
