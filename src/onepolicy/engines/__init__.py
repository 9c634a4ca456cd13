"""What an engine is, and how one is named. The engines themselves are in `onepolicy.integrations`."""
