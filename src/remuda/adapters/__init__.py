"""Games of other makers as games of ours, and ours as theirs."""
