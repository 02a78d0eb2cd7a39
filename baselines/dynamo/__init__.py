"""NVIDIA Dynamo's KV router."""
