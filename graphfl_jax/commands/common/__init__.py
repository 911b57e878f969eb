"""What the entries share: command line, plots, text tables, statistics, units."""
