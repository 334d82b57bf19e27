"""What a person can see of a run: tables, a live panel, pictures."""
