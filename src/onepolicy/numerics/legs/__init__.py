"""One engine under other conditions: what each reading is held against, and the first that breaks."""
