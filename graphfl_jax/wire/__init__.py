"""Who takes part in a round, and what happens to uploads on their way to the server."""
