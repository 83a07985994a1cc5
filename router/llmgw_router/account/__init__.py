"""What was used: counters, histograms, the access log; one settle path for every exit."""
