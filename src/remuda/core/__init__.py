"""What everything else stands on: errors, options, the plan, randomness, kernels, and the four nouns of the loop."""
