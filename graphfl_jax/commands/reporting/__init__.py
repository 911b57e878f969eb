"""Reports: one HTML file, without a network, about one run or several."""
