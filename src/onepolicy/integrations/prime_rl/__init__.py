"""prime-rl: its token exports."""
