"""Export of the embedding as one HTML file that needs neither a server nor a network."""
