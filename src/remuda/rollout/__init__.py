"""Rollouts: playing worlds with given weights. Games and policies in, fragments out."""
