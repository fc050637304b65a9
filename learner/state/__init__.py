"""What a learner keeps between two learning rounds, in memory and in its checkpoint. Belongs to the worker's thread."""
