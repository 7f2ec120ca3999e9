"""Continuous batching: requests come and go while one compiled round goes on over a fixed number of rows.

    engine = specjax.serving.Engine(model, params, drafter, draft_params, slots=8, capacity=1024, max_new_tokens=256)
    engine.warm_up()
    request = engine.submit(prompt_ids, sampling=specjax.Sampling(temperature=0.8, seed=1))
    for event in engine.run():
        print(event.id, event.tokens, event.finish_reason)

The text of each request is that of `specjax.generate` on its prompt alone, whatever else the engine does meanwhile.
"""

from specjax.serving.engine import Engine as Engine
from specjax.serving.tickets import Event as Event
from specjax.serving.tickets import QueueFull as QueueFull

__all__ = ["Engine", "Event", "QueueFull"]
