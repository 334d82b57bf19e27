"""Collecting in Ray actors, on this machine or on a cluster. Nothing outside this folder knows about Ray."""
