"""Learning algorithms. One folder per algorithm: options, network, policy and learner together."""
