"""What a trace is like: the figures of `traces.md` §3 for any tape."""
