import samovar as sv


@sv.function(name="collects", example={"results": [1, 2]})
def collects(results: list[int]) -> int:
    return sum(results)
