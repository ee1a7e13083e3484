"""Is a strategy equal to `single`, and if not, why: answered by fits that differ in one thing."""
