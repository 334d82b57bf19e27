"""One command per published claim, each a ratio of two things measured in the same run."""
