"""What other tools need changed in a script of the zoo: text -> text. Pure.

The scripts end in one loop over one loader (``pipelines/building.py``), so that every edit is the same few lines for
all of them. What a tool has to say is written into the folder that ``ZOO_OUT`` names, a file for each rank.
"""

from __future__ import annotations

from benchmarks.profiling.pipelines import Pipeline

STACKED_STEPS = 5
"""Steps that torch.profiler records with stacks: it hears every call, and a busy sample makes millions."""

_LOOP = "        for batch in loader:\n"
_EPOCHS = "    for epoch in range(EPOCHS):\n"
_MAIN = "def main():\n"
_TAIL = '\n\n\nif __name__ == "__main__":\n    main()\n'
_RANK = "os.environ.get('RANK', '0')"


def bounded(pipeline: Pipeline, steps: int) -> str:
    """Return its script, shortened to the fewest whole passes that have so many steps."""
    constants = pipeline.constants
    if constants["EPOCHS"] == 1:
        return pipeline.script({"LENGTH": steps * constants["BATCH"]})
    return pipeline.script({"EPOCHS": -(-steps // (constants["LENGTH"] // constants["BATCH"]))})


def timed(script: str) -> str:
    """Let it write down when each step began: ``marks-RANK.json``, in seconds."""
    before, body = _parts(script)
    before = before.replace(_MAIN, f"MARKS = []\n\n\n{_MAIN}")
    return (
        f"{before}            MARKS.append(time.perf_counter())\n{body}{_TAIL}"
        f'    with open(f"{{os.environ[\'ZOO_OUT\']}}/marks-{{{_RANK}}}.json", "w") as file:\n'
        "        file.write(str(MARKS))\n"
    )


def for_torch_profiler(script: str, warmup: int, steps: int, *, stacks: bool) -> str:
    """Profile steps after a warm-up, as PyTorch's own recipe does it.

    It writes ``rows-RANK.json``, the table as [name, calls, microseconds] each, and with ``stacks``
    ``trace-RANK.json``.
    """
    export = (
        f"    profiler.export_chrome_trace(f\"{{os.environ['ZOO_OUT']}}/trace-{{{_RANK}}}.json\")\n" if stacks else ""
    )
    keep = (
        "def keep(profiler):\n"
        "    import json\n\n"
        "    rows = [[row.key, row.count, row.cpu_time_total] for row in profiler.key_averages()]\n"
        f'    with open(f"{{os.environ[\'ZOO_OUT\']}}/rows-{{{_RANK}}}.json", "w") as file:\n'
        f"        json.dump(rows, file)\n{export}\n\n"
    )
    start = (
        "    profiler = torch.profiler.profile(\n"
        "        activities=[torch.profiler.ProfilerActivity.CPU],\n"
        f"        schedule=torch.profiler.schedule(wait=0, warmup={warmup}, active={steps}, repeat=1),\n"
        "        on_trace_ready=keep,\n"
        f"        with_stack={stacks},\n"
        "    )\n"
        "    profiler.start()\n"
    )
    before, body = _parts(timed(script), marked=True)
    before = before.replace(_MAIN, keep + _MAIN).replace(_EPOCHS, start + _EPOCHS)
    return f"{before}{body}\n            profiler.step()\n    profiler.stop(){_after(timed(script))}"


def for_traceml(script: str, *, patched: bool) -> str:
    """Initialise TraceML and wrap each step in ``trace_step``.

    What the loop does becomes a model's forward, with a backward and an optimizer after it: compute is what TraceML
    finds in these. A barrier goes to the backward, where DDP has it.

    Args:
        script: a pipeline's.
        patched: whether TraceML's automatic mode sees the loader; otherwise it is wrapped by hand.
    """
    plain, body = _parts(script)
    lines = body.splitlines()
    barriers = [line.strip() for line in lines if "barrier" in line]
    hooks = "".join(f"    model.weight.register_hook(lambda _: {barrier})\n" for barrier in barriers)
    forward = "\n".join(line.removeprefix("    ") for line in lines if "barrier" not in line)
    model = (
        "class Step(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.weight = torch.nn.Parameter(torch.zeros(1))\n\n"
        f"    def forward(self):\n{forward}\n"
        "        return self.weight.sum()\n\n\n"
    )
    made = "    model = Step()\n    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n" + hooks
    step = (
        "            with traceml.trace_step(model):\n"
        "                optimizer.zero_grad()\n"
        "                model().backward()\n"
        "                optimizer.step()"
    )
    text = timed(f"{plain}{step}{_TAIL}")
    text = text.replace("import torch\n", "import torch\nimport traceml_ai as traceml\n", 1)
    text = text.replace(_MAIN, f'{model}{_MAIN}    traceml.init(mode="auto")\n').replace(_EPOCHS, made + _EPOCHS)
    return text if patched else text.replace(" in loader:\n", " in traceml.wrap_dataloader_fetch(loader):\n")


def for_loader_evaluator(script: str, mode: str) -> str:
    """Wrap the loader in DALI's LoaderEvaluator; it writes ``metrics-RANK.json``, of the last pass.

    Args:
        script: a pipeline's.
        mode: ``log`` or ``replay``.
    """
    text = timed(script)
    text = text.replace(
        "import torch\n",
        "import torch\nfrom nvidia.dali.plugin.pytorch.loader_evaluator import LoaderEvaluator\n",
        1,
    )
    lines = text.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if line.startswith("    loader = DataLoader("))
    lines.insert(place + 1, f'    loader = LoaderEvaluator(loader, mode="{mode}")\n')
    text = "".join(lines)
    save = f"\n    loader.save_metrics(f\"{{os.environ['ZOO_OUT']}}/metrics-{{{_RANK}}}.json\")"
    return text.replace(_TAIL, save + _TAIL)


def _parts(script: str, *, marked: bool = False) -> tuple[str, str]:
    """Return a script up to its loop's first line, and the loop's body without the last line's end.

    Raises:
        ValueError: it is no script of the zoo.
    """
    before, loop, rest = script.partition(_LOOP)
    body, tail, after = rest.partition(_TAIL)
    if not loop or not tail or (after and not marked):
        raise ValueError("the script does not end in a loop over its loader and a call of main(); see building.py")
    return before + loop, body


def _after(script: str) -> str:
    """Return what follows the loop."""
    return _TAIL + script.partition(_TAIL)[2]


__all__ = ["STACKED_STEPS", "bounded", "for_loader_evaluator", "for_torch_profiler", "for_traceml", "timed"]
