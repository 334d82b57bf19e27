"""Collecting in Ray actors, on this machine or on a cluster. Only `cluster.py` imports Ray."""
