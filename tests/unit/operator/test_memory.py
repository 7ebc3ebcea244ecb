"""What a pass need not work out again."""

from __future__ import annotations

from emberline_operator.memory import Memory


def test_an_answer_holds_for_as_long_as_its_inputs_do() -> None:
    memory, asked = Memory(), []

    def ask(*inputs: object) -> int:
        return memory.recall("question", inputs, lambda: asked.append(inputs) or len(asked))

    first: dict[str, int] = {"replicas": 1}
    assert [ask(first, "a"), ask(first, "a"), ask({"replicas": 1}, "a")] == [1, 1, 1], "the same or an equal object"
    assert [ask({"replicas": 2}, "a"), ask({"replicas": 2}, "b")] == [2, 3], "any other input"
    assert ask(first, "a") == 4, "only the last answer is kept, so that memory does not grow"


def test_each_question_has_its_own_answer() -> None:
    memory = Memory()
    assert memory.recall(("template", "eu"), (1,), lambda: "eu") == "eu"
    assert memory.recall(("template", "us"), (1,), lambda: "us") == "us"
    assert memory.recall(("template", "eu"), (1,), lambda: "other") == "eu"
