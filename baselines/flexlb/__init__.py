"""FlexLB, the router of Alibaba's RTP-LLM."""
