"""What several commands of a checkout share."""
