"""Where collecting happens: in this process, in worker processes, in Ray actors."""
