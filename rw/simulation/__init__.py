"""The simulated world: questions with known answers, Workers that solve them and err, and scripted routers.

It knows the text that Workers and routers read and nothing of tokens, models or training.
"""
