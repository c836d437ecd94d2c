"""The server's counters: each process writes its own, and the daemon reads them."""
