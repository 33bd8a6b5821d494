"""Hook plugins that come with the runners: console progress, TensorBoard, and the store of the run directory."""
