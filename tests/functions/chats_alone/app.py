import samovar as sv
from samovar_instance.engines.text_generation import TextGenerator


@sv.function(name="chats-alone", task="text-generation", scaling=sv.Scaling(target_concurrency=64))
class ChatsAlone(TextGenerator):
    """One sequence at a time: whoever is still computed is in the way of everybody else."""

    cache_gib = 0.01
    max_running = 1
