"""Who computes what in the next step: tokens of those that decode first, then chunks of prompts, fairly by tenant.

    waiting ──admit──► running: prefill, chunk by chunk ──► decode, a token a step ──► ended
       ▲                                  │
       └────────── preempted, when blocks run out: computed again later, found in the cache if it is still there

- A sequence is admitted when the blocks for all its tokens are free, with room to grow for each that runs.
- When a sequence that decodes needs a block and none is free, the one admitted last gives way. The one admitted first
  never does, so something always finishes.
- A tenant with nothing running does not wait for another one's second sequence: that one gives way.
- Whose prompt is next: the tenant's that was served the fewest tokens. Who comes back from idling starts level with the
  least served one, so nobody saves up (virtual token counter, Sheng et al. 2024).
- A prompt whose next block is being computed for another one waits a step and finds it in the cache.

This module knows no clock, tensors or models.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from samovar_instance.engines.generation.blocks import Blocks, BlockTable
from samovar_instance.engines.generation.contract import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """max_running: sequences in one step. max_step_tokens: of one step, >= 1.

    chunk_tokens: of prompts in a step that has decodes, also where these leave less of the step; chunk_per_decode: more
    of them for each, so that the share of a long prompt in what a step takes stays bounded and a full batch does not
    starve those that wait. chunk_per_prompt: more of them for each prompt but one that waits for its first token: where
    more wait than are answered, few tokens a step would leave the batch empty. growth_tokens: room that is left for
    each running sequence when another one is admitted.
    """

    max_running: int = 64
    max_step_tokens: int = 256
    chunk_tokens: int = 48
    chunk_per_decode: int = 2
    chunk_per_prompt: int = 32
    growth_tokens: int = 16

    def prompt_budget(self, num_decodes: int, num_prompts: int) -> int:
        """Return how many tokens of prompts go into a step beside `num_decodes` decoding sequences, if `num_prompts`
        sequences have no first token yet."""
        if not num_decodes:
            return self.max_step_tokens
        for_others = self.chunk_per_prompt * max(0, num_prompts - 1)
        wanted = self.chunk_tokens + self.chunk_per_decode * num_decodes + for_others
        left = max(self.max_step_tokens - num_decodes, min(self.max_step_tokens, self.chunk_tokens))
        return min(wanted, left)


@dataclass(eq=False, slots=True)
class Run:
    """A sequence within the engine. tokens: prompt and generated; number: of its first admission, -1 before."""

    sequence: Sequence
    tokens: list[int]
    table: BlockTable = field(default_factory=BlockTable)
    number: int = -1
    is_running: bool = False

    @property
    def num_remaining(self) -> int:
        """Tokens that have to be computed before the next one is known, >= 1."""
        return len(self.tokens) - self.table.num_tokens


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens start … start + count - 1 of one run, computed in this step. num_logits: last rows whose logits count.

    drafts: guesses of what follows the run's tokens, the last of the `count`.
    """

    run: Run
    start: int
    count: int
    num_logits: int
    drafts: tuple[int, ...] = ()

    @property
    def tokens(self) -> list[int]:
        """The tokens that are computed."""
        return [*self.run.tokens[self.start : self.start + self.count], *self.drafts]


class Scheduler:
    """Waiting and running sequences over one set of blocks."""

    def __init__(self, blocks: Blocks, limits: Limits) -> None:
        self.blocks = blocks
        self.limits = limits
        self.running: list[Run] = []  # by number
        self.num_preemptions = 0
        self._waiting: dict[str, deque[Run]] = {}
        self._served: dict[str, int] = {}
        self._num_admitted = 0

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks."""
        return sum(map(len, self._waiting.values()))

    @property
    def num_used_tokens(self) -> int:
        """Token slots of held blocks that hold something; the others of them are waste."""
        size = self.blocks.block_tokens
        slack = sum(len(run.table.blocks) * size - run.table.num_tokens for run in self.running)
        return self.blocks.num_held * size - slack

    def all_runs(self) -> Iterator[Run]:
        """Yield whoever waits or runs."""
        return chain(self.running, *self._waiting.values())

    def add(self, run: Run) -> None:
        """Let a sequence wait for admission."""
        tenant = run.sequence.tenant
        active = {other.sequence.tenant for other in self.all_runs()}
        if tenant not in active:
            least = min((self._served.get(other, 0) for other in active), default=0)
            if not active:
                self._served.clear()
            self._served[tenant] = max(least, self._served.get(tenant, 0))
        self._waiting.setdefault(tenant, deque()).append(run)

    def remove(self, run: Run) -> None:
        """A sequence is over: its blocks are free."""
        if run.is_running:
            self.running.remove(run)
            run.is_running = False
        else:
            self._leave_queue(run)
        self.blocks.release(run.table)

    def plan(self) -> list[Segment]:
        """Return what the next step computes; blocks for it are in the tables. Empty = no work."""
        self._make_way()
        segments = self._decodes()
        num_prompts = self.num_waiting + len(self.running) - len(segments)
        budget = self.limits.prompt_budget(len(segments), num_prompts)
        promised: set[bytes] = set()
        is_open = True  # nobody passes by one that has to wait for room
        for run in self._prompts():
            if budget <= 0:
                break
            if not run.is_running:
                is_open = is_open and self._can_admit(run)
                if not is_open:
                    continue
                self._admit(run)
            segment = self._chunk(run, budget, promised, may_preempt=not segments)
            if segment is not None:
                segments.append(segment)
                budget -= segment.count
        return segments

    def done(self, segment: Segment, num_wrong: int = 0) -> None:
        """A segment was computed: its keys and values are stored, but for those of the last drafts, which are wrong."""
        run, count = segment.run, segment.count - num_wrong
        tokens = [*run.tokens, *segment.drafts] if segment.drafts else run.tokens
        self.blocks.advance(run.table, tokens, segment.start + count)
        if num_wrong:
            self.blocks.trim(run.table)
        self._served[run.sequence.tenant] = self._served.get(run.sequence.tenant, 0) + count

    def _decodes(self) -> list[Segment]:
        segments = []
        for run in [run for run in self.running if run.num_remaining == 1]:
            if run.is_running and self._make_room(run, len(run.tokens)):
                segments.append(Segment(run, run.table.num_tokens, 1, 1))
        return segments

    def _prompts(self) -> Iterator[Run]:
        """Yield whose prompt is next: of the tenant served least what runs, then what waits, first come first."""
        tried: set[Run] = set()
        while True:
            prefilling = (run for run in self.running if run.num_remaining > 1)
            heads = (queue[0] for queue in self._waiting.values())
            candidates = [run for run in chain(prefilling, heads) if run not in tried]
            if not candidates:
                return
            run = min(candidates, key=partial(self._rank, {run.sequence.tenant for run in self.running}))
            tried.add(run)
            yield run

    def _rank(self, tenants: set[str], run: Run) -> tuple[bool, int, bool, int]:
        """Return what the next prompt has least of. tenants: those with something running."""
        tenant = run.sequence.tenant
        return tenant in tenants, self._served[tenant], not run.is_running, run.number

    def _make_way(self) -> None:
        """Let the last of a tenant's several sequences give way to the first of one that has none."""
        counts = Counter(run.sequence.tenant for run in self.running)
        for head in [queue[0] for tenant, queue in self._waiting.items() if tenant not in counts]:
            while not self._can_admit(head):
                tenant, count = counts.most_common(1)[0]
                if count < 2:
                    return
                self._preempt(next(run for run in reversed(self.running) if run.sequence.tenant == tenant))
                counts[tenant] -= 1

    def _chunk(self, run: Run, budget: int, promised: set[bytes], *, may_preempt: bool) -> Segment | None:
        """Return the next piece of a prompt, None if it has to wait for blocks or for another's."""
        self._adopt(run)
        start = run.table.num_tokens
        end = self._chunk_end(run, budget)
        keys = self._keys(run, start, end)
        if keys and keys[0] in promised:
            return None
        if not (self._make_room(run, end) if may_preempt else self.blocks.can_grow(run.table, end)):
            return None
        self.blocks.grow(run.table, end)
        promised.update(keys)
        return Segment(run, start, end - start, int(end == len(run.tokens)))

    def _chunk_end(self, run: Run, budget: int) -> int:
        """Return where the chunk ends: with the tokens, or with a block, so that the next one may be found."""
        start, size = run.table.num_tokens, self.blocks.block_tokens
        if run.num_remaining <= budget:
            return len(run.tokens)
        aligned = (start + budget) // size * size
        return aligned if aligned > start else start + budget

    def _keys(self, run: Run, start: int, end: int) -> list[bytes]:
        size = self.blocks.block_tokens
        return [self.blocks.key(run.table, run.tokens, index) for index in range(start // size, end // size)]

    def _adopt(self, run: Run) -> None:
        num_adopted = self.blocks.adopt(run.table, run.tokens)
        if not run.sequence.generated:
            run.sequence.num_cached += num_adopted

    def _can_admit(self, run: Run) -> bool:
        if not self.running:
            return True
        if len(self.running) >= self.limits.max_running:
            return False
        blocks = self.blocks
        promised = sum(blocks.num_missing(other.table, len(other.tokens)) for other in self.running)
        needed = blocks.num_missing(run.table, len(run.tokens)) - blocks.num_adoptable(run.table, run.tokens)
        growth = -(-self.limits.growth_tokens // blocks.block_tokens) * len(self.running)
        return needed + promised + growth <= blocks.num_free

    def _admit(self, run: Run) -> None:
        self._leave_queue(run)
        run.is_running = True
        if not run.sequence.generated:
            run.sequence.num_cached = 0  # what it had found may be gone
        if run.number < 0:
            run.number = self._num_admitted
            self._num_admitted += 1
        self.running.append(run)
        self.running.sort(key=lambda run: run.number)

    def _make_room(self, run: Run, num_tokens: int) -> bool:
        """Give the run blocks for `num_tokens` tokens; those admitted last give way, at last itself (False)."""
        while not self.blocks.can_grow(run.table, num_tokens):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is run:
                return False
        self.blocks.grow(run.table, num_tokens)
        return True

    def _preempt(self, run: Run) -> None:
        self.running.remove(run)
        run.is_running = False
        self.blocks.release(run.table)
        self._waiting.setdefault(run.sequence.tenant, deque()).appendleft(run)
        self.num_preemptions += 1

    def _leave_queue(self, run: Run) -> None:
        tenant = run.sequence.tenant
        queue = self._waiting[tenant]
        queue.remove(run)
        if not queue:
            del self._waiting[tenant]
