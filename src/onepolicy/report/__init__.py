"""What a judgement looks like."""
