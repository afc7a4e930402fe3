import threading
from pathlib import Path

import samovar as sv


@sv.function(name="leaves-thread")
class LeavesThread:
    def load(self, weights: Path, device: str) -> None:
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    def __call__(self, text: str) -> str:
        return text
