"""What the commands share: command line, plots, text tables, statistics, units."""
