"""verl: its DataProto files and its JSONL."""
