import samovar as sv


@sv.function(
    name="ragged", batch=sv.Batch(max_size=8, max_wait_ms=20, length="num_tokens", max_tokens=40, max_padding=3)
)
class Ragged:
    """Answers how many tokens the padded batch had in which a text was. "?": no length; "slow …" takes a while."""

    def num_tokens(self, text: str) -> int:
        if text.startswith("?"):
            raise ValueError("cannot be counted")
        return -1 if text == "minus" else len(text)

    def __call__(self, text: list[str]) -> list[dict[str, object]]:
        if any(one.startswith("slow") for one in text):
            import time

            time.sleep(1.0)
        longest = max(map(len, text))
        return [{"text": one, "longest": longest, "batch": len(text)} for one in text]
