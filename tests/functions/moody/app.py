import samovar as sv


@sv.function(name="moody", example={"mood": "well"})
class Moody:
    """Its check fails while it is "unwell", its example while it is "forgetful"; any call changes its mood."""

    def load(self, weights: object, device: str) -> None:
        self.mood = "well"

    def check(self) -> None:
        if self.mood == "unwell":
            raise RuntimeError("the samovar leaks")

    def __call__(self, mood: str) -> str:
        if self.mood == "forgetful":
            raise ValueError("forgot what tea is")
        self.mood = mood
        return mood
