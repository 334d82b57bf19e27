"""Collecting in Ray actors. Everything about Ray is in this folder, imported only when a run needs it."""
