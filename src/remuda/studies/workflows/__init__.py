"""Which order should a CAGE 2 defender repair in? A search over workflows, trial by trial."""
