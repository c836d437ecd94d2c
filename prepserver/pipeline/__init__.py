"""The spec as data: sources and pipelines, validated, canonical and hashed. Pure; shared with the client."""
