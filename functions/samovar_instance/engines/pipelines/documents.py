"""Tasks that answer questions: about pages, given as words at places or as a picture, and about tables.

What is too large is refused before a model sees it. This module does not know batches.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from samovar.errors import DeployRefused, InvalidInput
from samovar_instance.engines.pipelines.base import Item, Pipeline, number_of, top_of
from samovar_instance.engines.pipelines.media import image_of, invalid
from samovar_instance.engines.pipelines.types import DocumentAnswer, TableAnswer

MAX_WORDS = 10_000
MAX_CHARS = 200_000  # of all words of a page, or all cells of a table
MAX_CELLS = 20_000
MAX_QUESTION_CHARS = 10_000
_THOUSANDTHS = 1000
_OF_BOX = 4
_RESERVED_TOKENS = 8  # between question and text, with room for a word


class Word(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A word of a page. box: left, top, right, bottom, in thousandths of the page's width and height."""

    word: str
    box: list[int]


class DocumentQuestion(Item, frozen=True, kw_only=True):
    """A question about one page, which is given by its words, by a picture (base64), or both.

    top_k: answers that are told, best first. max_answer_tokens: longest one that is looked for. Models that read the
    picture themselves tell one answer, as long as they like.
    """

    question: str
    words: list[Word] | None = None
    image: bytes | None = None
    top_k: int = 1
    max_answer_tokens: int = 15


class DocumentAnswerer(Pipeline):
    """A page and a question to the words that answer it."""

    task = "document-question-answering"
    pads = False  # a page is several rows of its own

    def load(self, weights: Path, device: str) -> None:
        """Load it. Words come from the caller, or from Tesseract: never from within an image processor."""
        super().load(weights, device)
        self._reads_images = self.pipe.model_type.value == "vision_encoder_decoder"
        if hasattr(self.pipe.image_processor, "apply_ocr"):
            self.pipe.image_processor.apply_ocr = False

    def __call__(self, items: list[DocumentQuestion]) -> list[list[DocumentAnswer]]:
        """Return the likeliest answers to each question."""
        return self.answers(items)

    def content(self, item: DocumentQuestion) -> Any:
        question = question_of(item, self.pipe.tokenizer)
        image = None if item.image is None else image_of(item.image)
        if self._reads_images:
            if image is None or item.words is not None:
                raise invalid("image", "this model reads a picture of the page, and nothing but it")
            if re.search(r"</?s_", question):
                raise invalid("question", "has one of the model's own marks in it, such as <s_answer>")
            return {"question": question, "image": image}
        words = _read(image) if item.words is None else _placed(item.words)
        return {"question": question, "image": image, "word_boxes": words}

    def parameters(self, item: DocumentQuestion, content: Any) -> dict[str, Any]:
        return top_of(item) | {"max_answer_len": number_of(item, "max_answer_tokens", 1, 1000)}


def question_of(item: Any, tokenizer: Any) -> str:
    """Return the item's question. Raises: InvalidInput if there is none, or it leaves no room for what it is about."""
    question: str = item.question
    if not question.strip():
        raise invalid("question", "is empty")
    if len(question) > MAX_QUESTION_CHARS:
        raise invalid("question", f"{len(question)} characters, at most {MAX_QUESTION_CHARS} are taken")
    limit = tokenizer.model_max_length // 2 - _RESERVED_TOKENS
    num_tokens = len(tokenizer.tokenize(question))
    if num_tokens > limit:
        raise invalid("question", f"{num_tokens} tokens, and the model reads {limit} of a question")
    return question


def _placed(words: list[Word]) -> list[tuple[str, list[int]]]:
    """Return words with their boxes. Raises: InvalidInput naming the one that is wrong."""
    if not 1 <= len(words) <= MAX_WORDS:
        raise invalid("words", f"{len(words)} words, and a page has 1 to {MAX_WORDS}")
    if sum(len(word.word) for word in words) > MAX_CHARS:
        raise invalid("words", f"more than {MAX_CHARS} characters")
    for place, word in enumerate(words):
        if len(word.box) != _OF_BOX or not _is_within(*word.box):
            raise invalid(
                f"words[{place}].box",
                f"{word.box[:_OF_BOX]}: left, top, right, bottom, each from 0 to {_THOUSANDTHS}, in that order",
            )
    return [(word.word, word.box) for word in words]


def _is_within(left: int, top: int, right: int, bottom: int) -> bool:
    return 0 <= left <= right <= _THOUSANDTHS and 0 <= top <= bottom <= _THOUSANDTHS


def _read(image: Any) -> list[tuple[str, list[int]]]:
    """Return the words of a picture by Tesseract. Raises: InvalidInput if there is none, or it finds nothing."""
    from transformers.pipelines.document_question_answering import TESSERACT_LOADED, apply_tesseract

    if image is None:
        raise invalid("words", "give the words of the page with their boxes, or its image")
    if not TESSERACT_LOADED:
        raise invalid(
            "words",
            "nothing here reads words from an image: the package pytesseract, which needs Tesseract, is not there. "
            "Send the words with their boxes",
        )
    try:
        words, boxes = apply_tesseract(image, lang=None, tesseract_config="")
    except Exception as error:  # whatever it raises, it does not read this image
        raise invalid("image", f"Tesseract does not read it: {error}") from error
    if not words:
        raise invalid("image", "Tesseract finds no words in it")
    return [*zip(words, boxes, strict=True)]


class TableQuestion(Item, frozen=True, kw_only=True):
    """table: columns by name, each a list of cells, all of one length. Rows that the model cannot read are left out."""

    question: str
    table: dict[str, list[str | int | float | bool | None]]


class TableAnswerer(Pipeline):
    """A table and a question to the cells that answer it, and what is to be made of them, such as their sum."""

    task = "table-question-answering"
    pads = False

    def load(self, weights: Path, device: str) -> None:
        """Load it. Raises: DeployRefused without pandas, which transformers has tables in."""
        try:
            import pandas
        except ImportError as error:
            raise DeployRefused('table-question-answering needs pandas: requirements=["pandas"]') from error
        self._frame = pandas.DataFrame
        super().load(weights, device)

    def pipeline_class(self) -> Any:
        """Return a pipeline whose items were read already: what cannot be read is an error of its own item."""
        from transformers import TableQuestionAnsweringPipeline

        class Prepared(TableQuestionAnsweringPipeline):  # type: ignore[misc]
            def preprocess(self, pipeline_input: Any, **_: Any) -> Any:
                return pipeline_input

        return Prepared

    def __call__(self, items: list[TableQuestion]) -> list[TableAnswer]:
        """Return the answer to each question."""
        return self.answers(items)

    def content(self, item: TableQuestion) -> Any:
        from transformers import TableQuestionAnsweringPipeline

        question = question_of(item, self.pipe.tokenizer)
        sizes = getattr(self.pipe.model.config, "type_vocab_sizes", None)
        cells = _cells(item.table, max_columns=sizes[1] - 1, max_rows=sizes[2] - 1) if sizes else _cells(item.table)
        given = {"table": self._frame(cells), "query": question}
        try:
            return TableQuestionAnsweringPipeline.preprocess(self.pipe, given)
        except ValueError as error:
            raise invalid("table", f"the model cannot read it: {error}") from error


def _cells(table: dict[str, Any], max_columns: int = 255, max_rows: int = 255) -> dict[str, list[str]]:
    """Return a table of texts. Raises: InvalidInput if it is empty, ragged or too large."""
    num_rows = max(map(len, table.values()), default=0)
    if not num_rows:
        raise invalid("table", "is empty: it has at least one column with one cell")
    for name, column in table.items():
        if len(column) != num_rows:
            raise InvalidInput(
                f"$.table[{name[:100]!r}]: {len(column)} cells, and another column has {num_rows}", path="$.table"
            )
    if len(table) > max_columns or num_rows > max_rows or len(table) * num_rows > MAX_CELLS:
        raise invalid(
            "table",
            f"{len(table)} columns of {num_rows} cells; at most {max_columns} of {max_rows}, and {MAX_CELLS} in all",
        )
    cells = {name: ["" if cell is None else str(cell) for cell in column] for name, column in table.items()}
    if sum(len(cell) for column in cells.values() for cell in column) + sum(map(len, cells)) > MAX_CHARS:
        raise invalid("table", f"more than {MAX_CHARS} characters")
    return cells
