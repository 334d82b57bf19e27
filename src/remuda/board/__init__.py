"""The board: a live page of runs and studies, served to this machine only."""
