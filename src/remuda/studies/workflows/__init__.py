"""`remuda search`: finds the order of repair (workflow) under which a trained CAGE 2 defender does best."""
