import samovar as sv


@sv.function(name="noop", example={"value": 0}, scaling=sv.Scaling(max_instances=2))
def noop(value: int) -> int:
    return value
