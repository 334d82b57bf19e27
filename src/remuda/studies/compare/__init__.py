"""Which engine should I use here? Measured, explained, and predicted for other machines."""
