"""What pipelines answer, as clients get it. This module does not know models."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Label(TypedDict):
    """score: 0 to 1."""

    label: str
    score: float


class Entity(TypedDict):
    """A word with its label. start, end: where it is in the text, characters."""

    label: str
    score: float
    word: str
    start: int | None
    end: int | None


class Filled(TypedDict):
    """A word for a mask. sequence: the text with it."""

    score: float
    token: int
    token_str: str
    sequence: str


class Box(TypedDict):
    """In pixels of the image that was sent."""

    xmin: int
    ymin: int
    xmax: int
    ymax: int


class Detection(TypedDict):
    label: str
    score: float
    box: Box


class Mask(TypedDict):
    """mask: base64 of a PNG, white where it is. score: None of models that give none."""

    label: str
    score: float | None
    mask: str


class RunLengths(TypedDict):
    """A mask as COCO has it. size: height and width. counts: of pixels that are not it, are, are not, …, by columns."""

    size: list[int]
    counts: list[int]


class Region(TypedDict):
    """mask: base64 of a PNG, white where it is, or run lengths. score: what the model thinks of it, about 0 to 1."""

    mask: str | RunLengths
    score: float
    box: Box


class Point(TypedDict):
    """In pixels of the image that was sent."""

    x: float
    y: float


class Match(TypedDict):
    """A point of the first image and one of the second that show the same."""

    keypoint_image_0: Point
    keypoint_image_1: Point
    score: float


class Picture(TypedDict):
    """image: base64 of a PNG."""

    image: str


class Chunk(TypedDict):
    """timestamp: from when to when, seconds."""

    text: str
    timestamp: list[float | None]


class Transcript(TypedDict):
    """chunks: with times, if they were asked for."""

    text: str
    chunks: NotRequired[list[Chunk]]


class Sound(TypedDict):
    """audio: base64 of a WAV file of 16 bits. sampling_rate: of it, Hz."""

    audio: str
    sampling_rate: int


class DocumentAnswer(TypedDict):
    """answer: None of models that write one and did not. start, end: which of the page's words, from 0."""

    answer: str | None
    score: NotRequired[float]
    start: NotRequired[int]
    end: NotRequired[int]


class TableAnswer(TypedDict):
    """answer: the cells as a text. coordinates: of them, row and column from 0. aggregator: what to make of them."""

    answer: str
    coordinates: NotRequired[list[list[int]]]
    cells: NotRequired[list[str]]
    aggregator: NotRequired[str]
