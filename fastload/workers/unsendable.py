"""What a worker process sends in place of a result that cannot be pickled."""

from __future__ import annotations

from torch._utils import ExceptionWrapper

from ..base.worker_errors import wrap_exception
from .fetch import Outcome, Result


def in_its_place(result: Result, error: Exception, where: str) -> Result:
    """Return the result to send. One in place of an error can be pickled for certain."""
    if result.outcome in (Outcome.SAMPLES, Outcome.OWN_ROWS):
        return result._replace(outcome=Outcome.UNSENDABLE, payload=f"samples cannot be sent one by one ({error!r})")
    if result.outcome in (Outcome.ERROR, Outcome.FAILED_START):
        wrapper: ExceptionWrapper = result.payload
        # A class that cannot be found by its name, such as one defined in a function: its text still can.
        substitute = ExceptionWrapper((RuntimeError, RuntimeError(), None), where=where)
        vars(substitute).update(vars(wrapper), exc_type=RuntimeError)
        name = wrapper.exc_type.__name__
        substitute.where = f"{where} (as RuntimeError, because {name} itself cannot be pickled: {error!r})"
        return result._replace(payload=substitute)
    error.add_note(
        "the result of the dataset or of collate_fn could not be sent to the main process; "
        "return tensors, arrays or other picklable objects"
    )
    return result._replace(outcome=Outcome.ERROR, payload=wrap_exception(error, where))
