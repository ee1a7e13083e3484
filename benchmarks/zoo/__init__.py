"""The zoo: small jobs with one planted fault each, and a runner that asks a tool what is wrong with them."""
