"""First-party algorithms: one file each, registered in the entry-point group `plugym.algos`."""
