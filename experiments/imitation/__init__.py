"""Networks that imitate a teacher: behaviour cloning, then DAgger."""
