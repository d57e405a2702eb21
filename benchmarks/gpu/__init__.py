"""What a GPU gets of the data and how much of it the data takes: ``python -m benchmarks.gpu``.

Read the files in this order, which is the order a measurement goes through them:

    catalogue.py       what is measured: cases, their sides, sizes and goals
    measuring.py       clocks of the device, and what is kept from one measurement to the next
    made_data.py       the seeded images
    host_to_device.py  copies to the device against the plain copy
    transforms.py      transforms of batches against a copy on the device
    resident.py        data that lie on the device against airbench's way
    step.py            a training step with data against one without
    trace.py           how long the host was blocked, from a profiler's trace
    host_blocked.py    the share of such waiting in a training loop
    runner.py          lets the sides alternate in one child process, which is replaced when a side fails
    report.py          JSON lines, the table, rows for README.md
    __main__.py        the command
    machine.py         what machine this is, and what is missing on it
    verdict.py         one line for each goal, from the JSON lines and the reports of the tests
    all.sh             builds, runs the tests that need a GPU and the command, and prints the verdict

With ``--device cpu`` the same code runs at smaller sizes; its numbers say nothing of a GPU.
"""
