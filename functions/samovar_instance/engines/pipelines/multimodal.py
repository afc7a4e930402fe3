"""Text from pictures, sounds and text, token by token: `class Vlm(ImageTextToText): pass`.

Requests and answers are those of text generation, with parts of messages that are pictures; see `conversations.py` for
how they are read and `generation/stepwise.py` for what computes them. This module does not know frames or protocols.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from samovar.acceleration import session as sessions
from samovar.errors import DeployRefused
from samovar.tasks import ANY_TO_ANY, IMAGE_TEXT_TO_TEXT, PARTS
from samovar.torch import load_pretrained
from samovar_instance.engines.generation.handler import GenerationHandler, end_ids
from samovar_instance.engines.generation.planning import Limits
from samovar_instance.engines.generation.sampling import TokenSampler
from samovar_instance.engines.generation.step_loop import StepLoop
from samovar_instance.engines.generation.stepwise import StepwiseEngine
from samovar_instance.engines.generation.tools import FORMATS
from samovar_instance.engines.pipelines.conversations import MediaPlanner
from samovar_instance.engines.pipelines.loading import may_lack
from samovar_instance.engines.pipelines.reading import load_processor


class ImageTextToText(GenerationHandler):
    """A model of transformers that sees and writes, from a folder. Subclasses set what differs from the defaults.

    max_running: answers that take turns, a token each; the rest wait. max_context: tokens of one request, prompt,
    pictures and answer, None = what the model allows. tool_format: as of TextGenerator.
    """

    task: ClassVar[str] = IMAGE_TEXT_TO_TEXT
    auto_class: ClassVar[str] = "AutoModelForImageTextToText"
    max_running: ClassVar[int] = 4
    max_context: ClassVar[int | None] = None
    tool_format: ClassVar[str] = ""

    def load(self, weights: Path, device: str) -> None:
        """Load model and processor from a folder, and make the engine.

        Raises: DeployRefused if it is declared to be compiled, or a package is missing; what transformers raises.
        """
        import transformers

        session = sessions.current()
        if session is not None and session.acceleration.is_built:
            raise DeployRefused(f"{self.task} takes precision and attention, and no compile or engine")
        model = load_pretrained(weights, getattr(transformers, self.auto_class), device, may_lack=may_lack(self.task))
        processor = load_processor(weights, self.task)
        tokenizer = processor.tokenizer
        num_logits = model.config.get_text_config(decoder=True).vocab_size
        num_vocabulary = max(num_logits, len(tokenizer))
        self._loop = StepLoop(lambda: StepwiseEngine(model, TokenSampler(), num_vocabulary, self.max_running))
        context = self._loop.engine.max_context_tokens
        context = min(context, self.max_context or context)
        planner = MediaPlanner(
            processor,
            Limits(context, num_logits, end_ids(model.generation_config, tokenizer)),
            PARTS[self.task],
            lambda made: dict(made.to(device=model.device, dtype=model.dtype)),
            model.main_input_name,
            FORMATS[self.tool_format] if self.tool_format else None,
        )
        self._planner, self.proof = planner, planner.proof()


class AnyToAny(ImageTextToText):
    """The same for models that hear as well; what they answer is text."""

    task = ANY_TO_ANY
    auto_class = "AutoModelForMultimodalLM"
