"""Legroom inside other tools: pytest, Lightning, Transformers, Accelerate and Ray Train. Each module imports its tool only
when the module is used."""
