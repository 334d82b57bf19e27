"""Environments of Gymnasium, PettingZoo and Sorrel as games."""
