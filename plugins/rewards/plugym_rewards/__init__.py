"""First-party reward providers: one folder each, registered in the entry-point group `plugym.rewards`."""
