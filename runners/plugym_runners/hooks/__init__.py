"""Hook plugins that come with the runners: console progress, TensorBoard, W&B, and the store of the run directory."""
