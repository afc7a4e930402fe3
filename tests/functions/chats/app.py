import samovar as sv
from samovar_instance.engines.text_generation import TextGenerator


@sv.function(name="chats", task="text-generation", scaling=sv.Scaling(target_concurrency=64))
class Chats(TextGenerator):
    cache_gib = 0.01
    block_tokens = 8
    tool_format = "hermes"
