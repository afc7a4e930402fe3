import samovar as sv

# far above what one gateway can serve: every call is counted, none is refused
LIMITS = sv.Limits(rate="1000000/s", rate_per_key="1000000/s")


@sv.function(name="rated-sum", example={"values": [1.0, 2.0]}, limits=LIMITS)
def rated_sum(values: list[float]) -> float:
    return sum(values)
