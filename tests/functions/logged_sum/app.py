import samovar as sv


@sv.function(name="logged-sum", example={"values": [1.0, 2.0]}, log=sv.Log(payload="full"))
def logged_sum(values: list[float]) -> float:
    return sum(values)
