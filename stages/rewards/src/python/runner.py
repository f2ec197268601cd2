"""Scores responses with a function of a user's Python file.

The variable `setup` is the first request: it names the file and the function. Each further line of standard input is a request with one
response, and each line of standard output its answer. Needs Python 3.8 and its standard library only. `results.py` is placed before this
text.
"""

import faulthandler
import importlib.machinery
import importlib.util
import inspect
import json
import os
import select
import signal
import sys
import threading

# The module's name in verl.
MODULE = "custom_module"
# The function's name in verl.
FUNCTION = "compute_score"
VERL = ("data_source", "solution_str", "ground_truth", "extra_info")
TRL = ("prompts", "completions", "completion_ids", "log_extra", "log_metric")
# Arguments of TRL that exist only within its trainer.
TRAINER = ("trainer_state", "environments")

# The maximum length of an answer in bytes, without the line break.
MAX_ANSWER = (1 << 20) - 1


class Streams:
    """Private copies of standard input and output, which the user's code cannot reach.

    The user's code reads an empty standard input, and its standard output is standard error.
    """

    def __init__(self):
        self.process = os.getpid()
        requests, answers = os.dup(0), os.dup(1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        os.close(nothing)
        # Standard error also accepts text that its encoding lacks, and writes each line at once.
        sys.stderr.reconfigure(line_buffering=True)
        sys.stdout = sys.stderr
        faulthandler.enable()
        self.requests = os.fdopen(requests, "rb")
        self.answers = os.fdopen(answers, "wb")
        # A child of the user's code that outlives this process must not hold the pipes open.
        os.register_at_fork(after_in_child=lambda: (os.close(requests), os.close(answers)))
        threading.Thread(target=kill_group_at_hangup, args=(requests,), daemon=True).start()

    def answer(self, number, answer):
        """Writes an answer, or an error in its place if it is too long."""
        line = json.dumps(dict(answer, id=number), allow_nan=False).encode()
        if len(line) > MAX_ANSWER:
            error = "the result has {} bytes as JSON: expected at most {}".format(len(line), MAX_ANSWER)
            line = json.dumps({"id": number, "error": error}).encode()
        if os.getpid() != self.process:
            # The user's code forked, and both processes returned. Only the first one answers.
            os._exit(1)
        self.answers.write(line + b"\n")
        self.answers.flush()


def kill_group_at_hangup(requests):
    """Kills the process group when the other end of the pipe is closed, so that no process outlives a killed run."""
    hangup = select.poll()
    hangup.register(requests, 0)
    hangup.poll()
    try:
        os.killpg(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)


class Function:
    """The user's function, with the arguments that it takes."""

    def __init__(self, setup):
        module = load(setup["file"])
        self.name, self.function = find(module, setup.get("function"))
        self.kwargs = setup["kwargs"]
        self.loop = None
        try:
            parameters = inspect.signature(self.function).parameters.values()
        except (TypeError, ValueError) as error:
            raise RewardFileError("`{}`: cannot read its parameters: {}".format(self.name, error))
        self.takes_all = any(one.kind == one.VAR_KEYWORD for one in parameters)
        named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        self.parameters = [one.name for one in named]
        self.required = [one.name for one in named if one.default is one.empty]
        if any(one.kind == one.POSITIONAL_ONLY and one.default is one.empty for one in parameters):
            raise RewardFileError("`{}` has positional-only parameters: expected parameters with names".format(self.name))
        self.signature = setup.get("signature") or self.infer_signature()
        self.check()

    def infer_signature(self):
        """Returns the signature that the names of the parameters belong to."""
        is_verl = "solution_str" in self.parameters
        is_trl = any(name in self.parameters for name in TRL[:3])
        if is_verl != is_trl:
            return "verl" if is_verl else "trl"
        raise RewardFileError(
            "cannot tell the signature of `{}` from its parameters {}: verl's has `solution_str`, and TRL's has `completions`; "
            "set the option `signature`".format(self.name, quote_names(self.parameters))
        )

    def check(self):
        """Refuses a function that no call could satisfy, and arguments that it does not take."""
        passed = VERL if self.signature == "verl" else TRL
        for name in self.kwargs:
            if name in passed:
                raise RewardFileError("`kwargs.{}`: `{}` gets this argument from the sample".format(name, self.name))
            if not self.takes_all and name not in self.parameters:
                raise RewardFileError(
                    "`kwargs.{}`: `{}` has no such parameter; it has {}".format(name, self.name, quote_names(self.parameters))
                )
        needed = [name for name in self.required if name not in self.kwargs and name not in passed]
        if self.signature == "trl":
            # Other names are columns of the dataset.
            needed = [name for name in needed if name in TRAINER]
        if needed:
            raise RewardFileError(
                "`{}` needs the arguments {}, which it cannot get: the signature `{}` passes {}; further ones can be set with "
                "the option `kwargs`".format(self.name, quote_names(needed), self.signature, quote_names(passed))
            )

    def score(self, request):
        """Returns the answer to a request."""
        arguments, answer = {}, {"components": {}, "labels": {}}
        if self.signature == "verl":
            arguments = {name: request[name] for name in VERL}
            read = read_verl
        else:
            arguments = trl_arguments(request, answer)
            read = read_trl
        arguments.update(self.kwargs)
        missing = [name for name in self.required if name not in arguments]
        if missing:
            columns = [name for name in arguments if name not in TRL and name not in self.kwargs]
            raise RewardFileError(
                "`{}` needs the columns {}, which the row lacks: it has {}; `data.extra_columns` names further columns of the "
                "dataset".format(self.name, quote_names(missing), quote_names(columns))
            )
        if not self.takes_all:
            arguments = {name: value for name, value in arguments.items() if name in self.parameters}
        read(self.call(arguments), answer)
        return answer

    def call(self, arguments):
        result = self.function(**arguments)
        if not inspect.isawaitable(result):
            return result
        import asyncio

        async def awaited():
            return await result

        if self.loop is None:
            # One loop for all calls: a session that the function opened stays usable.
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(awaited())


def load(path):
    path = os.path.abspath(path)
    # As for a program: modules beside the file can be imported.
    sys.path.insert(1, os.path.dirname(path))
    sys.argv = [path]
    loader = importlib.machinery.SourceFileLoader(MODULE, path)
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


def find(module, name):
    """Returns the name of the function and the function."""
    wanted = name or FUNCTION
    function = getattr(module, wanted, None)
    if callable(function):
        return wanted, function
    own = [
        name
        for name, value in vars(module).items()
        if inspect.isroutine(value) and getattr(value, "__module__", None) == MODULE
    ]
    hint = "" if name else "; name one with the option `function`"
    raise RewardFileError("it has no function `{}`: its functions are {}{}".format(wanted, quote_names(own), hint))


def trl_arguments(request, answer):
    """Returns the arguments of TRL for a batch of one response. Dataset columns are lists of one value."""
    prompt, response = request["prompt"], request["response"]
    is_chat = isinstance(prompt, list)
    columns = {"data_source": request["data_source"], "ground_truth": request["ground_truth"]}
    columns.update(request["extra_info"])
    arguments = {name: [value] for name, value in columns.items() if name not in ("prompt", "completion")}
    arguments.update(
        prompts=[prompt],
        completions=[[{"role": "assistant", "content": response}] if is_chat else response],
        completion_ids=[request["response_ids"]],
        log_extra=lambda column, values: add_label(answer, column, values[0] if len(values) == 1 else values),
        log_metric=lambda name, value: add_component(answer, name, value),
    )
    return arguments


def main(setup):
    streams = Streams()
    try:
        if sys.version_info < (3, 8):
            raise RewardFileError("expected Python 3.8 or later, found {}".format(sys.version.split()[0]))
        function = Function(setup)
    except BaseException as error:
        streams.answer(0, failure(error))
        return
    streams.answer(0, {"function": function.name, "signature": function.signature})
    for line in streams.requests:
        request = json.loads(line)
        try:
            answer = function.score(request)
        except BaseException as error:
            raised = "" if isinstance(error, RewardFileError) else "`{}` raised ".format(function.name)
            answer = failure(error, raised)
        streams.answer(request["id"], answer)


main(setup)
