"""`remuda compare`: measures which engine to use on this machine, and predicts it for other machines."""
