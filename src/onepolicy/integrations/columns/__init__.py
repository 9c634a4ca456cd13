"""Plain Parquet and JSONL with named columns."""
