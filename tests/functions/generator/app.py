from collections.abc import Iterator

import samovar as sv


@sv.function(name="generator")
def generator(n: int) -> Iterator[int]:
    yield from range(n)
