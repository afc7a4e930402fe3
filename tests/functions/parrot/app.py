"""A text-generation function without a model: says the last message (or the prompt) again, a word a token.

Words that begin with ! are orders, not said: !fail (before the first item) · !break (after it) · !exit (the process
ends after it) · !sleep=S (before the first item) · !pause=S (after each word) · !repeat=N · !tool (a call of the
first tool; twice = two calls). A prompt is at most MAX_CONTEXT words; with what is said it fits, too. Prints what
became of each answer.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count

import samovar as sv
from samovar.tasks.generation import (
    CONTEXT_EXCEEDED,
    Alternative,
    FinishReason,
    FunctionCall,
    GenerationInput,
    GenerationOutput,
    Message,
    NamedTool,
    TokenLogprob,
    ToolCall,
    Usage,
    refusal,
)

MAX_CONTEXT = 5_000


@dataclass
class Orders:
    """What the orders in a text ask for. words: what is left of it."""

    words: list[str]
    given: dict[str, str]
    num_tools: int

    def seconds(self, name: str) -> float:
        return float(self.given.get(name, 0))


def read(request: GenerationInput) -> tuple[Orders, int]:
    """Return what is asked for, and how many words the prompt has."""
    if request.messages is None:
        prompt = request.prompt if isinstance(request.prompt, str) else " ".join(map(str, request.prompt or []))
        return orders_of(prompt), len(prompt.split())
    texts = [text_of(message) for message in request.messages]
    return orders_of(texts[-1]), sum(len(text.split()) for text in texts)


def text_of(message: Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    if any(part.type != "text" for part in message.content):
        raise refusal("messages", "a parrot neither sees nor hears: parts of messages are text")
    return " ".join(part.text for part in message.content)


def orders_of(text: str) -> Orders:
    orders = [word[1:].partition("=") for word in text.split() if word.startswith("!")]
    words = [word for word in text.split() if not word.startswith("!")]
    given = {name: value for name, _, value in orders}
    return Orders(words * int(given.get("repeat", 1)), given, sum(name == "tool" for name, _, _ in orders))


def refuse(request: GenerationInput, num_prompt: int) -> None:
    request.check()
    if request.logit_bias:
        raise refusal("logit_bias", "a parrot has no logits")
    if request.presence_penalty or request.frequency_penalty:
        raise refusal("presence_penalty", "a parrot is not ashamed to say a thing twice")
    if num_prompt + (request.max_tokens or 0) > MAX_CONTEXT:
        raise refusal("messages", f"at most {MAX_CONTEXT} words fit", reason=CONTEXT_EXCEEDED)


def said(request: GenerationInput, orders: Orders) -> list[str]:
    """Return the tokens of a choice: words, each but the first with the space before it."""
    words = orders.words
    if request.response_format is not None and request.response_format.type != "text":
        words = json.dumps({"said": " ".join(words)}).split(" ")
    if request.echo and request.messages is None:
        words = orders.words + words
    return [word if place == 0 else " " + word for place, word in enumerate(words)]


def calls(request: GenerationInput, orders: Orders) -> list[ToolCall]:
    choice, tools = request.tool_choice, request.tools
    if isinstance(choice, NamedTool):
        names = [choice.function.name]
    elif tools and choice != "none" and (orders.num_tools or choice == "required"):
        names = [tools[0].function.name] * max(1, orders.num_tools if request.parallel_tool_calls else 1)
    else:
        names = []
    arguments = json.dumps({"said": " ".join(orders.words)})
    return [
        ToolCall(id=f"call_{place}", function=FunctionCall(name=name, arguments=arguments))
        for place, name in enumerate(names)
    ]


def pieces(request: GenerationInput, tokens: list[str]) -> Iterator[tuple[str, FinishReason | None]]:
    """Yield each token with how the choice ends at it; nothing of a stop string is said, nor what comes after it."""
    told = tokens[: request.max_tokens]
    text = "".join(told)
    ends = [end for stop in request.stop if (end := text.find(stop)) >= 0]
    num_left = min(ends, default=len(text))
    end: FinishReason = "stop" if ends or len(told) == len(tokens) else "length"
    for token in told:
        token = token[:num_left]
        num_left -= len(token)
        is_last = num_left == 0
        yield token, end if is_last else None
        if is_last:
            return
    yield "", end


def logprob(request: GenerationInput, token: str, place: int, offset: int) -> list[TokenLogprob]:
    if request.logprobs is None or not token:
        return []
    chosen = Alternative(token=token, token_id=place, logprob=-0.25, bytes=[*token.encode()])
    other = Alternative(token=" polly", token_id=9, logprob=-2.5, bytes=[*b" polly"])
    top = [chosen, other][: request.logprobs]
    return [TokenLogprob(token=token, token_id=place, logprob=-0.25, bytes=chosen.bytes, top=top, offset=offset)]


async def tell(request: GenerationInput, orders: Orders) -> AsyncIterator[GenerationOutput]:
    """Yield what is said, the choices in turn."""
    if wanted := calls(request, orders):
        for index in range(request.n):
            yield GenerationOutput(index=index, tool_calls=wanted, finish_reason="tool_calls")
        return
    rows = {index: pieces(request, said(request, orders)) for index in range(request.n)}
    offsets = [0] * request.n
    for place in count():
        for index, row in [*rows.items()]:
            token, reason = next(row)
            told = logprob(request, token, place, offsets[index])
            yield GenerationOutput(index=index, text=token, logprobs=told, finish_reason=reason)
            offsets[index] += len(token)
            if reason is not None:
                del rows[index]
            await obey(orders)
        if not rows:
            return


async def obey(orders: Orders) -> None:
    """Do what was ordered for after an item."""
    if "break" in orders.given:
        raise ValueError("the parrot lost its voice")
    if "exit" in orders.given:
        os._exit(3)
    await asyncio.sleep(orders.seconds("pause"))


def num_tokens(item: GenerationOutput) -> int:
    return len(item.tool_calls) + bool(item.text)


@sv.function(
    name="parrot",
    task="text-generation",
    scaling=sv.Scaling(target_concurrency=8),
    limits=sv.Limits(timeout_s=20),
)
class Parrot:
    async def __call__(self, request: GenerationInput, ctx: sv.Context) -> AsyncIterator[GenerationOutput]:
        orders, num_prompt = read(request)
        refuse(request, num_prompt)
        if "fail" in orders.given:
            raise ValueError("the parrot fell off its perch")
        num_said = 0
        try:
            await asyncio.sleep(orders.seconds("sleep"))
            async for item in tell(request, orders):
                num_said += num_tokens(item)
                yield item
            yield GenerationOutput(usage=Usage(prompt_tokens=num_prompt, completion_tokens=num_said))
        except (asyncio.CancelledError, GeneratorExit):
            print(f"parrot: cancelled after {num_said}", flush=True)
            raise
        print(f"parrot: said all for {ctx.tenant or 'nobody'}", flush=True)
