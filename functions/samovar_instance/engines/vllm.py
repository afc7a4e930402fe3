"""Text generation by vLLM, for who has it: `class Chat(VllmGenerator): pass` in place of TextGenerator, nothing else.

Templates, refusals, tokens to text, stops, tools and grammars are those of our engine; vLLM computes tokens. It starts
processes of its own: sv.Resources(allow_subprocess=True). A call that is cancelled or late is aborted in vLLM, and a
vLLM that died fails whoever waits and the instance's check. This module does not know frames, protocols or who calls.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from samovar_instance.engines.generation.contract import Sequence, Token
from samovar_instance.engines.generation.handler import end_ids
from samovar_instance.engines.generation.planning import Limits, Planner
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.tools import FORMATS
from samovar_instance.engines.text_generation import TextGenerator, check_sharing

logger = logging.getLogger(__name__)

_MOST_LOGPROBS = 20


class VllmGenerator(TextGenerator):
    """A causal language model served by vLLM's AsyncLLM. Of TextGenerator's options `max_context`, `max_running`,
    `max_step_tokens`, `prefix_sharing` and `tool_format` count.

    engine_options: further arguments of vLLM's AsyncEngineArgs, such as `{"gpu_memory_utilization": 0.8}`.
    """

    takes_speculation: ClassVar[bool] = False  # vLLM's own is one of engine_options
    precision_probe: ClassVar[None] = None  # type: ignore[assignment]  # vLLM tells no more than 20 chances
    engine_options: ClassVar[dict[str, Any]] = {}

    def load(self, weights: Path, device: str) -> None:
        """Start vLLM on the folder. Raises: ImportError without the package, and what vLLM raises."""
        check_sharing(self.prefix_sharing)
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        config = AutoConfig.from_pretrained(weights, local_files_only=True).get_text_config()
        context = min(config.max_position_embeddings, self.max_context or config.max_position_embeddings)
        arguments: dict[str, Any] = {
            "model": str(weights),
            "max_model_len": context,
            "max_num_seqs": self.max_running,
            "max_num_batched_tokens": max(self.max_step_tokens, self.max_running),
            "enable_chunked_prefill": True,
            "enable_prefix_caching": self.prefix_sharing != "off",
            "generation_config": "vllm",  # what the folder suggests is the caller's to ask for
            "max_logprobs": _MOST_LOGPROBS,
            "structured_outputs_config": {"backend": "guidance"},  # the library that our grammars are written for
        }
        self.vllm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments | self.engine_options))
        tokenizer = AutoTokenizer.from_pretrained(weights, local_files_only=True)
        limits = Limits(context, config.vocab_size, end_ids(_generation_config(weights), tokenizer))
        self._planner = Planner(tokenizer, limits, FORMATS[self.tool_format] if self.tool_format else None)
        self._loop = VllmLoop(self.vllm)  # type: ignore[assignment]  # of a StepLoop, adding and leaving

    def check(self) -> None:
        """Return if vLLM's processes live. Raises: why they do not."""
        if self.vllm.errored:
            raise self.vllm.dead_error

    def unload(self) -> None:
        """End vLLM's processes."""
        self.vllm.shutdown()


class VllmLoop:
    """Feeds sequences to vLLM and its tokens to their listeners, a task each."""

    def __init__(self, vllm: Any) -> None:
        self._vllm = vllm
        self._numbers = itertools.count()
        self._tasks: dict[Sequence, asyncio.Task[None]] = {}

    def add(self, sequence: Sequence) -> None:
        """Have a sequence computed; `leave` has to follow."""
        name = f"sequence-{next(self._numbers)}"
        task = asyncio.get_running_loop().create_task(self._feed(sequence, name))
        self._tasks[sequence] = task

    def leave(self, sequence: Sequence) -> None:
        """Nobody waits for this sequence any more: vLLM aborts it, unless it has ended."""
        task = self._tasks.pop(sequence, None)
        if task is not None:
            task.cancel()

    async def _feed(self, sequence: Sequence, name: str) -> None:
        """Tell the listener every token and the end. A cancelled task has vLLM abort the sequence."""
        try:
            reason = await self._tokens(sequence, name)
        except Exception as error:
            logger.exception("vLLM failed a sequence")
            sequence.listener.ended("failed", error)
        else:
            sequence.listener.ended("length" if reason == "length" else "stop", None)

    async def _tokens(self, sequence: Sequence, name: str) -> str:
        """Return why the sequence ended."""
        from vllm.inputs import TokensPrompt

        prompt = TokensPrompt(prompt_token_ids=sequence.prompt)
        if sequence.salt:
            prompt["cache_salt"] = sequence.salt.hex()
        reason = "length"
        async for output in self._vllm.generate(prompt, sampling_params(sequence), name):
            sequence.num_cached = output.num_cached_tokens or 0
            made = output.outputs[0]
            for token in _told(made, sequence.sampling):
                sequence.generated.append(token.id)
                if sequence.sampling.grammar is not None:
                    sequence.sampling.grammar.consume(token.id)
                if sequence.listener.token(token) is not None:
                    await self._vllm.abort(name)
                    return "stop"
            reason = made.finish_reason or reason
        return reason


def sampling_params(sequence: Sequence) -> Any:
    """Return vLLM's SamplingParams of a sequence: knobs as they are, tokens as they come, no text."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

    state: SamplingState = sequence.sampling
    grammar = getattr(state.grammar, "text", None)
    return SamplingParams(
        temperature=state.temperature,
        top_p=state.top_p,
        top_k=state.top_k,
        min_p=state.min_p,
        presence_penalty=state.presence_penalty,
        frequency_penalty=state.frequency_penalty,
        logit_bias=dict(state.biases) or None,
        seed=state.seed % (1 << 63),
        max_tokens=sequence.max_tokens,
        stop_token_ids=sorted(sequence.stop_ids),
        ignore_eos=True,  # what ends a text is in stop_token_ids
        logprobs=state.logprobs,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
        structured_outputs=StructuredOutputsParams(grammar=grammar) if grammar else None,
    )


def _told(made: Any, state: SamplingState) -> list[Token]:
    """Return the new tokens of a completion, with what is asked for of their logprobs."""
    if state.logprobs is None or made.logprobs is None:
        return [Token(token_id) for token_id in made.token_ids]
    return [
        _with_logprobs(token_id, row, state.logprobs)
        for token_id, row in zip(made.token_ids, made.logprobs, strict=True)
    ]


def _with_logprobs(token_id: int, row: dict[int, Any], num_top: int) -> Token:
    ranked = sorted(((other, each.logprob) for other, each in row.items()), key=lambda pair: -pair[1])
    return Token(token_id, row[token_id].logprob, tuple(ranked[:num_top]))


def _generation_config(weights: Path) -> Any:
    if (weights / "generation_config.json").is_file():
        return GenerationConfig.from_pretrained(weights, local_files_only=True)
    return GenerationConfig.from_pretrained(
        weights, config_file_name="config.json", _from_model_config=True, local_files_only=True
    )
