import samovar as sv


@sv.function(name="echo-sum", example={"values": [1.0, 2.0]})
def echo_sum(values: list[float]) -> float:
    return sum(values)
