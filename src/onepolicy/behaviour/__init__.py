"""Do two sampling configurations behave alike? Metrics of completions, and what their differences mean."""
