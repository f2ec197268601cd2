"""Calls a server with the unmodified `openai` client: python3 tests/openai_client.py URL MODEL

Prints `passed` at the end. `tests/serve.rs` runs it against `rollpacker serve` if the package is installed.
"""

import sys

import openai


def completions(client, model):
    answer = client.completions.create(model=model, prompt="3+4", max_tokens=6, n=2, logprobs=2, seed=7, temperature=0.7)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.finish_reason in ("stop", "length")
        lists = choice.logprobs
        assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == len(lists.text_offset)
        assert all(value <= 0 for value in lists.token_logprobs)
        assert all(len(top) in (2, 3) for top in lists.top_logprobs)
    assert answer.usage.prompt_tokens == 3
    again = client.completions.create(model=model, prompt="3+4", max_tokens=6, n=2, logprobs=2, seed=7, temperature=0.7)
    assert [choice.text for choice in again.choices] == [choice.text for choice in answer.choices]
    echoed = client.completions.create(model=model, prompt="3+4", max_tokens=1, echo=True, logprobs=0)
    assert echoed.choices[0].text.startswith("3+4")
    assert echoed.choices[0].logprobs.token_logprobs[0] is None
    several = client.completions.create(model=model, prompt=["1", "2", "3"], max_tokens=2)
    assert len(several.choices) == 3


def streams(client, model):
    options = dict(model=model, prompt="12", max_tokens=8, temperature=0, extra_body={"ignore_eos": True})
    whole = client.completions.create(**options).choices[0].text
    events = list(client.completions.create(**options, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for event in events for choice in event.choices) == whole
    assert events[-1].usage.completion_tokens == 8
    assert [c.finish_reason for e in events for c in e.choices if c.finish_reason] == ["length"]


def stop(client, model):
    options = dict(model=model, prompt="12", max_tokens=8, temperature=0, extra_body={"ignore_eos": True})
    whole = client.completions.create(**options).choices[0].text
    text = whole[-1]
    for stream in (False, True):
        answer = client.completions.create(**options, stop=[text, "never"], stream=stream)
        choices = [choice for event in answer for choice in event.choices] if stream else answer.choices
        assert "".join(choice.text for choice in choices) == whole[: whole.index(text)]
        assert choices[-1].finish_reason == "stop" and choices[-1].stop_reason == text


def chat(client, model):
    messages = [{"role": "system", "content": "1"}, {"role": "user", "content": "2"}]
    options = dict(model=model, messages=messages, max_completion_tokens=5, temperature=0, extra_body={"ignore_eos": True})
    answer = client.chat.completions.create(**options, n=2, logprobs=True, top_logprobs=3)
    for choice in answer.choices:
        assert choice.message.role == "assistant" and choice.finish_reason == "length"
        assert len(choice.logprobs.content) == 5
        for token in choice.logprobs.content:
            assert len(token.top_logprobs) == 3 and bytes(token.bytes).decode() == token.token
            assert token.logprob == max(top.logprob for top in token.top_logprobs), "greedy"
    text = answer.choices[0].message.content
    parts = client.chat.completions.create(**options, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == text


def errors(client, model):
    def refused(kind, **options):
        try:
            client.completions.create(**{"model": model, "prompt": "1", "max_tokens": 1, **options})
        except kind as error:
            return error
        raise AssertionError(f"{options} is expected to fail")

    assert "presence_penalty" in refused(openai.BadRequestError, presence_penalty=0.5).message
    assert refused(openai.BadRequestError, temperature=-1).param == "temperature"
    assert "context length" in refused(openai.BadRequestError, max_tokens=10**6).message
    assert "`none`" in refused(openai.NotFoundError, model="none").message


def main():
    url, model = sys.argv[1:]
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [card.id for card in client.models.list()] == [model]
    assert client.models.retrieve(model).owned_by == "rollpacker"
    for check in (completions, streams, stop, chat, errors):
        check(client, model)
    print("passed")


main()
