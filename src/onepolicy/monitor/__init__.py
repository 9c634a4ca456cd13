"""The mismatch of the step that is running now, from the tensors that the trainer has."""
