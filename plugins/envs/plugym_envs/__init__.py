"""First-party environments: one folder each, registered in the entry-point group `plugym.envs`."""
