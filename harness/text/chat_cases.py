"""Seeded chat requests for the comparison with the official encoder.

A case pairs a request as our encoder gets it with the request whose official rendering must be byte for byte the same, and with
replacements for the few bytes that the official encoder cannot be asked for. Where both requests are equal and there is no
replacement the comparison is direct; `differs` names the deliberate differences (docs/chat.md) that a case was built to hold.
"""

import copy
import json
import random

TEXTS = [
    "Hello", "What is the stock price of NVDA?", "", "a", "\n", "line one\nline two\n", "\n\nleading", "trailing\n\n",
    "你好，世界！今日は", "emoji 😀👩‍👩‍👧 x", "def f(x):\n    return x ** 2  # code\n", "<｜User｜>", "</think>", "<think>x",
    "｜DSML｜", "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"rm\">", "</｜DSML｜parameter>", "<｜end▁of▁sentence｜>",
    "<tool_result>fake</tool_result>", "{\"price\": 181.2}", "}", "a & b < c > d \"q\" 'r' \\ /", "tab\tcr\rff\fbs\bnul-ish\x01\x1f\x7f",
    "e\u0301 \u2028 \u00a0 \u3000", "<｜latest_reminder｜>now", "Ünïcode ٣٤٥٦ ①②", "    indented\n\tmixed", "<｜deepseek_image｜>",
    "<｜image｜>", "You MUST reply in JSON.", "x" * 300,
]
ASSISTANT_TEXTS = TEXTS + ["see <｜ref｜>cat<｜/ref｜><｜box｜>[1,2]<｜/box｜>", "<｜point｜>", "<｜｜ref｜>", "<｜polygon｜<｜/polygon｜>"]
KEYS = ["ticker", "query", "path", "a b", "日本", "count", "x-y", "", "arguments", "nested", "q\"uote", "<key>", "Zz", "a"]
NAMES = ["lookup_stock", "bash", "read-file", "f", "Tool_9", "search"]
EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"]
# Lexemes that a reader of doubles would not give back, keyed by the integer that stands in for them in the official request.
LEXEMES = {7700000001: "1.0", 7700000002: "1E5", 7700000003: "-0", 7700000004: "123456789012345678901234567890",
           7700000005: "0.10", 7700000006: "1e-7", 7700000007: "2.50e+10"}
DIALECTS = ["v4.1", "v4-0731", "v4.1-pre", "v4-preview"]
V4_EFFORTS_OF_PREVIEW = {"low": "low", "high": "low", "xhigh": "low", "max": "high"}
# The prompts of encoding.md section 6.2: dialect, effort, characters, beginning of the SHA-256.
KNOWN = [("v4.1", "high", 1369, "fe97ae63f48c8de8"), ("v4-0731", "low", 1274, "285c3cb0514a6472")]


class Case:
    """A request for us, a request for the official encoder, and what to replace in the official text."""

    def __init__(self, dialect, request):
        self.dialect = dialect
        self.history = "auto"
        self.request = request
        self.official = copy.deepcopy(request)
        self.replacements = []
        self.differs = []

    @property
    def is_v41(self):
        return self.dialect.startswith("v4.1")


def known_cases():
    """The prompts of KNOWN as cases."""
    parameters = {"type": "object", "properties": {"ticker": {"type": "string", "description": "Ticker symbol"}}, "required": ["ticker"]}
    tool = {"name": "lookup_stock", "description": "Get the latest price of a stock", "parameters": parameters}
    for dialect, effort, _, _ in KNOWN:
        yield Case(dialect, {
            "model": "m", "reasoning_effort": effort, "tools": [{"type": "function", "function": tool}],
            "messages": [{"role": "system", "content": "You are a helpful assistant."},
                         {"role": "user", "content": "What is the stock price of NVDA?"}]})


class Generator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, p):
        return self.random.random() < p

    def text(self):
        pieces = [self.random.choice(TEXTS) for _ in range(self.random.choice([1, 1, 1, 2, 3]))]
        return self.random.choice(["", " ", "\n"]).join(pieces)

    def assistant_text(self):
        return self.random.choice(["", "", self.random.choice(ASSISTANT_TEXTS), self.text()])

    def content(self):
        if self.chance(0.75):
            return self.text()
        return [{"type": "text", "text": self.text()} for _ in range(self.random.randint(0, 3))]

    def value(self, depth=0):
        kinds = ["string", "string", "int", "float", "bool", "null"] + (["list", "object"] if depth < 3 else [])
        kind = self.random.choice(kinds)
        if kind == "string":
            return self.text()
        if kind == "int":
            return self.random.choice([0, 1, -1, 42, 2**53, -2**63, 2**64 - 1])
        if kind == "float":
            return self.random.choice([0.5, -1.25, 3.14159, 181.2])
        if kind == "bool":
            return self.chance(0.5)
        if kind == "null":
            return None
        if kind == "list":
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        return self.object(depth + 1)

    def object(self, depth=0):
        return {key: self.value(depth) for key in self.random.sample(KEYS, self.random.randint(0, 4))}

    def schema(self):
        properties = {key: {"type": "string", "description": self.text()} for key in self.random.sample(KEYS, self.random.randint(0, 4))}
        schema = {"type": "object", "properties": properties, "required": list(properties)[:1], "additionalProperties": False}
        keys = list(schema)
        self.random.shuffle(keys)
        return {key: schema[key] for key in keys}

    def tools(self):
        tools = []
        for name in self.random.sample(NAMES, self.random.randint(1, 3)):
            function = {"name": name, "parameters": self.schema(), "description": self.text()}
            if self.chance(0.2):
                del function["description"]
            if self.chance(0.2):
                del function["parameters"]
            tools.append({"type": "function", "function": function})
        return tools

    def system(self):
        content = self.content()
        if self.chance(0.1):
            content = "x-anthropic-billing-header: cch=36ee5;\n" + self.text()
        return {"role": "system", "content": content}

    def assistant(self):
        message = {"role": "assistant", "content": self.assistant_text()}
        if self.chance(0.6):
            message["reasoning_content"] = self.random.choice(["", self.text(), self.random.choice(ASSISTANT_TEXTS)])
        return message

    def tool_round(self):
        """An assistant message with calls and its results in any order."""
        message = self.assistant()
        if self.chance(0.3):
            message["content"] = None
        count = self.random.choice([1, 1, 2, 3])
        message["tool_calls"] = [
            {"id": f"call_{i:02}_{self.random.randrange(10**6)}", "type": "function",
             "function": {"name": self.random.choice(NAMES), "arguments": json.dumps(self.object(), ensure_ascii=self.chance(0.5))}}
            for i in range(count)]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": self.content()} for call in message["tool_calls"]]
        self.random.shuffle(results)
        return [message] + results

    def messages(self):
        messages = [self.system() for _ in range(self.random.choice([0, 1, 1, 1, 2]))]
        if self.chance(0.15):
            messages.append({"role": "latest_reminder", "content": self.text()})
        for _ in range(self.random.randint(1, 4)):
            messages += [{"role": "user", "content": self.content()} for _ in range(self.random.choice([1, 1, 1, 2]))]
            if self.chance(0.1):
                messages += [{"role": "latest_reminder", "content": self.text()} for _ in range(self.random.choice([1, 2]))]
            if self.chance(0.4):
                for _ in range(self.random.randint(1, 2)):
                    messages += self.tool_round()
            if self.chance(0.6):
                messages.append(self.assistant())
        if messages[-1]["role"] == "assistant" and self.chance(0.8):
            messages.append({"role": "user", "content": self.content()})
        return messages

    def thinking_fields(self):
        fields = {}
        if self.chance(0.4):
            fields["thinking"] = {"type": self.random.choice(["enabled", "disabled", "adaptive"])}
        if self.chance(0.5):
            fields["reasoning_effort"] = self.random.choice(EFFORTS)
        return fields

    def base_request(self):
        request = {"model": "m", "messages": self.messages()}
        request.update(self.thinking_fields())
        if self.chance(0.5):
            request["tools"] = self.tools()
            if self.chance(0.4):
                names = [tool["function"]["name"] for tool in request["tools"]]
                request["tool_choice"] = self.random.choice(
                    ["auto", "none", "required", {"type": "function", "function": {"name": self.random.choice(names)}}])
                if request["tool_choice"] not in ("auto", "none"):
                    request["thinking"] = {"type": "disabled"}
        if self.chance(0.25):
            request["response_format"] = self.random.choice(
                [{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "n", "schema": self.schema()}}])
            if request["response_format"]["type"] == "json_object":
                request["messages"].append({"role": "user", "content": "Answer in json."})
        return request

    def case(self):
        case = Case(self.random.choice(DIALECTS), self.base_request())
        for step in (self.continue_last, self.developer, self.late_system, self.call_order, self.lexemes, self.double_encoded,
                     self.strict_tools, self.number_effort):
            step(case)
        settle_trailing_turn(case)
        settle_effort(case)
        return case

    def continue_last(self, case):
        plain = not any(m["role"] == "tool" for m in case.request["messages"])
        if not plain or "tools" in case.request or "response_format" in case.request or not self.chance(0.3):
            return
        message = self.assistant()
        message["prefix"] = True
        for request in (case.request, case.official):
            request["messages"].append(copy.deepcopy(message))

    def developer(self, case):
        for ours in case.request["messages"]:
            if ours["role"] == "system" and self.chance(0.1):
                ours["role"] = "developer"
                note(case, "developer-is-system")

    def late_system(self, case):
        places = [i for i, m in enumerate(case.request["messages"]) if m["role"] == "user" and i > 0]
        if not places or not self.chance(0.15):
            return
        content = "Reminder: " + self.text()
        place = self.random.choice(places)
        after_text = any(m["role"] not in ("system", "developer") for m in case.request["messages"][:place])
        case.request["messages"].insert(place, {"role": "system", "content": content})
        hoisted = after_text and not case.is_v41
        case.official["messages"].insert(place, {"role": "user" if hoisted else "system", "content": content})
        if hoisted:
            note(case, "late-system-stays")

    def call_order(self, case):
        if not self.chance(0.1):
            return
        for request in (case.request,) if not case.is_v41 else (case.request, case.official):
            for message in request["messages"]:
                if len(message.get("tool_calls") or []) > 1:
                    rename_descending(request["messages"], message)
                    if not case.is_v41:
                        note(case, "calls-keep-order")

    def lexemes(self, case):
        if not self.chance(0.15):
            return
        numbers = list(LEXEMES)
        for ours, official in zip(case.request.get("tools", []), case.official.get("tools", [])):
            number = self.random.choice(numbers)
            for function in (ours["function"], official["function"]):
                function.setdefault("parameters", {"type": "object"})["maximum"] = number
            case.replacements.append((str(number), LEXEMES[number]))
            note(case, "number-lexemes")
        for message, official in zip(case.request["messages"], case.official["messages"]):
            for call, other in zip(message.get("tool_calls") or [], official.get("tool_calls") or []):
                number = self.random.choice(numbers)
                arguments = json.loads(call["function"]["arguments"])
                arguments["number"] = number
                call["function"]["arguments"] = other["function"]["arguments"] = json.dumps(arguments)
                case.replacements.append((str(number), LEXEMES[number]))
                note(case, "number-lexemes")

    def double_encoded(self, case):
        for message in case.request["messages"]:
            for call in message.get("tool_calls") or []:
                if self.chance(0.03):
                    call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
                    note(case, "double-encoded-arguments")
                elif self.chance(0.03):
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
                    note(case, "object-arguments")

    def strict_tools(self, case):
        for tool in case.request.get("tools", []):
            if "parameters" in tool["function"] and self.chance(0.1):
                tool["function"]["strict"] = True
                note(case, "strict-schema-untouched")

    def number_effort(self, case):
        if case.is_v41 and self.chance(0.1):
            case.request["reasoning_effort"] = self.random.randint(1, 100)
            case.official["reasoning_effort"] = "high"


def note(case, difference):
    if difference not in case.differs:
        case.differs.append(difference)


def rename_descending(messages, message):
    """Gives the calls of a message ids in descending order, and its results the same ids."""
    calls = message["tool_calls"]
    names = {call["id"]: f"id_{len(calls) - i}_{i}" for i, call in enumerate(calls)}
    for call in calls:
        call["id"] = names[call["id"]]
    for result in messages:
        if result["role"] == "tool" and result["tool_call_id"] in names:
            result["tool_call_id"] = names[result["tool_call_id"]]


def thinks(request):
    kind = request.get("thinking", {}).get("type")
    if kind:
        return kind != "disabled"
    return request.get("reasoning_effort") != "none"


def settle_trailing_turn(case):
    """Without tools the official encoder drops the reasoning of a turn after the last user message too; ours keeps it by default."""
    shows_tools = "tools" in case.request and case.request.get("tool_choice") != "none"
    roles = [m["role"] for m in case.official["messages"] if m["role"] != "latest_reminder"]
    if thinks(case.request) and not shows_tools and roles[-1] == "assistant":
        if not case.request["messages"][-1].get("prefix"):
            note(case, "trailing-turn-keeps-reasoning")
        case.history = "drop"


def settle_effort(case):
    """Maps the effort of dialects that the official encoder no longer speaks onto one it does."""
    if not thinks(case.request):
        return
    effort = case.request.get("reasoning_effort")
    word = {"minimal": "low", "medium": "high", "ultra": "max", "none": "high", None: "high"}.get(effort, effort)
    if case.dialect == "v4-preview":
        case.official["reasoning_effort"] = V4_EFFORTS_OF_PREVIEW[word]
        case.official["thinking"] = {"type": "enabled"}
    elif isinstance(effort, int):
        case.replacements.append(("Reasoning Effort: 75 (", f"Reasoning Effort: {effort} ("))
    elif case.dialect == "v4.1-pre":
        official = {"low": 50, "high": 75, "xhigh": 75, "max": 100}[word]
        pre = {"low": 25, "high": 50, "xhigh": 75, "max": 100}[word]
        case.replacements.append((f"Reasoning Effort: {official} (", f"Reasoning Effort: {pre} ("))


def dump_request(request):
    """The request as JSON text, the stand-ins of LEXEMES replaced by the lexemes (arguments are JSON inside JSON)."""
    text = json.dumps(request, ensure_ascii=False)
    for number, lexeme in LEXEMES.items():
        text = text.replace(str(number), lexeme)
    return text
