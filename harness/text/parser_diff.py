"""Compares our output parser with the official one (PyPI package deepseek-recipe) on generated outputs in random chunks.

Compared are reasoning, content, the names and arguments of calls, and the finish reason. Outputs are well formed, or broken in ways
for which docs/chat.md gives the official behaviour: a bare invoke, an opener inside the reasoning, text after the block, missing closers
at the end. Parameter names have no spaces, which the official parser cannot read. Prints the counts; exits with 1 on a difference.
"""

import argparse
import json
import random
import sys

import official_chat
from official_chat import recipe

DSML = "｜DSML｜"
TEXTS = ["", "a", "hello\nthere", "你好 😀👩‍👩‍👧", "a < b </ c >", "</x>", "\"q\" \\ \t\x01", "{\"a\": 1}", "x\n\n\ny", "`</thin`", "<|DSML", "e\u0301", "1.0"]
KEYS = ["ticker", "path", "日本", "count", "x-y", "a"]
NAMES = ["f", "lookup_stock", "read-file"]


class Outputs:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self):
        text = self.random.choice(["", "", " ", "\n"]).join(self.random.choice(TEXTS) for _ in range(self.random.randint(0, 3)))
        return text.strip("\n")

    def value(self, depth=0):
        kind = self.random.randrange(6 if depth < 2 else 4)
        if kind == 0:
            return self.text()
        if kind == 1:
            return self.random.choice([0, -5, 1.5, 10**30])
        if kind == 2:
            return self.random.choice([True, False, None])
        if kind == 3:
            return self.random.choice(TEXTS)
        if kind == 4:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 2))]
        return {key: self.value(depth + 1) for key in self.random.sample(KEYS, self.random.randint(0, 2))}

    def parameter(self, key, space):
        value = self.value()
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        is_string = "true" if isinstance(value, str) else "false"
        return f"<{DSML}{space}parameter name=\"{key}\" string=\"{is_string}\">{text}</{DSML}{space}parameter>\n"

    def invoke(self, space):
        parameters = "".join(self.parameter(key, space) for key in self.random.sample(KEYS, self.random.randint(0, 3)))
        return f"<{DSML}{space}invoke name=\"{self.random.choice(NAMES)}\">\n{parameters}</{DSML}{space}invoke>\n"

    def calls(self):
        space = self.random.choice(["", " "])
        block = " calls" if space else "tool_calls"
        invokes = "".join(self.invoke(space) for _ in range(self.random.randint(1, 3)))
        form = self.random.random()
        if form < 0.1:
            return invokes
        if form < 0.2:
            return f"<{DSML}{block}>\n{invokes}"
        tail = self.text() if form < 0.3 else ""
        return f"<{DSML}{block}>\n{invokes}</{DSML}{block}>{tail}"

    def output(self):
        thinking = self.random.random() < 0.5
        lead = "\n" * self.random.choice([0, 0, 1, 2])
        text = lead + self.text()
        if thinking:
            text = lead + self.text() + "\n" * self.random.choice([0, 1, 2])
            if self.random.random() < 0.85:
                text += "</think>" + lead + self.text()
        if self.random.random() < 0.7:
            text += "\n" * self.random.choice([0, 1, 2, 3]) + self.calls()
        return thinking, text

    def chunks(self, text):
        chunks = []
        while text:
            size = self.random.choice([1, 1, 2, 3, 7, 30, 1000])
            chunks.append(text[:size])
            text = text[size:]
        return chunks


def official_answer(thinking, chunks):
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], "thinking": {"type": "enabled" if thinking else "disabled"},
            "tools": [{"type": "function", "function": {"name": "f"}}]}
    options = recipe.ConversionOptions().with_model_versions_by_name({"m": recipe.ModelVersion.DeepseekV41Flash})
    request = recipe.ChatCompletionRequest(json.dumps(body)).convert(options)
    processor = recipe.StreamProcessor(recipe.ChatCompletionRequest.chunk_generator(request, "id", "m"), request.parsing_options)
    response = recipe.ChatCompletionResponse("id", "m", 0, 0, 0)
    inputs = [recipe.InferenceChunk.ready()] + [recipe.InferenceChunk.text(chunk) for chunk in chunks]
    for item in inputs + [recipe.InferenceChunk.finish(recipe.InferenceFinishReason.Stop)]:
        for event in processor.push(item):
            response.accumulate(event)
    for event in processor.finish():
        response.accumulate(event)
    choice = json.loads(response.to_json())["choices"][0]
    message = choice["message"]
    return {"reasoning": message.get("reasoning_content") or "", "content": message.get("content") or "",
            "calls": [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or []],
            "finish_reason": choice["finish_reason"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cli", required=True, help="the chat_cli program")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20261002)
    arguments = parser.parse_args()
    if recipe is None:
        return official_chat.run_with_test_data(__file__)
    outputs = Outputs(arguments.seed)
    jobs = []
    for _ in range(arguments.count):
        thinking, text = outputs.output()
        jobs.append((thinking, outputs.chunks(text)))
    lines = [json.dumps({"thinking": thinking, "chunks": chunks}, ensure_ascii=False) for thinking, chunks in jobs]
    ours = official_chat.run_program([arguments.cli, official_chat.tokenizer_path("v41")], lines)
    differences = 0
    for (thinking, chunks), mine in zip(jobs, ours):
        theirs = official_answer(thinking, chunks)
        if mine != theirs:
            differences += 1
            if differences <= 5:
                print(json.dumps({"thinking": thinking, "output": "".join(chunks), "ours": mine, "official": theirs}, ensure_ascii=False, indent=1),
                      file=sys.stderr)
    calls = sum(len(answer.get("calls", [])) for answer in ours)
    print(json.dumps({"compared": len(jobs), "calls": calls, "differences": differences}))
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
