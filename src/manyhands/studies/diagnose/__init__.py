"""What holds a job back, found by changing one thing at a time and measuring."""
