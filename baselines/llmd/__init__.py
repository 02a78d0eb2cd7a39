"""llm-d's endpoint picker."""
