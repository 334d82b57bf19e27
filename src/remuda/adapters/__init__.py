"""Environments of other libraries as our games (`inbound`), and our games as their environments (`outbound`)."""
