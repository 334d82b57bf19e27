"""Learners that are written for one agent; a herd is made of them here."""
