"""Scripts left as they are: started as they would start themselves, and measured from hooks in torch."""
