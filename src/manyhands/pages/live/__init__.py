"""The live page: a folder of runs in the browser, the running ones as they go on. Loopback, one token, read-only."""
