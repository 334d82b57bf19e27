"""Environments of other libraries as games of ours (inbound), and our games as theirs (outbound)."""
