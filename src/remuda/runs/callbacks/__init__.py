"""What is told about a run while it trains: tables, TensorBoard, progress."""
