"""Ctrl-C and SIGTERM: the first asks training to stop after the update under way, the second ends it at once."""

import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from hybridrl.execution import Iteration

_ASKED = b"stopping after the update under way; once more: at once\n"


class Interrupted(KeyboardInterrupt):
    """A signal ended the command.

    Args:
        number: of the signal.
        cure: what to do next, for the user.
    """

    def __init__(self, number: int, cure: str = "") -> None:
        super().__init__(number, cure)
        self.number, self.cure = number, cure


class StopSignals:
    """While it is entered, a signal makes this callback of ``learn`` answer False; the next raises Interrupted.

    A signal that the process ignores (in the background of a shell script, say) stays ignored. Outside of the main
    thread, where Python hears no signals, nothing changes.

    Args:
        cure: what to do after an interruption, for the user.

    Attributes:
        received: the first signal's number; None before.
    """

    def __init__(self, cure: str) -> None:
        self.cure, self._owner = cure, os.getpid()
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __call__(self, iteration: "Iteration") -> bool:
        """Whether to go on."""
        return self.received is None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Leave signals to whoever heard them before; ending twice is fine."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:
            self._hear_in_a_fork(number)
        elif self.received is None:
            self.received = number
            if sys.stderr is not None and sys.stderr.isatty():
                os.write(sys.stderr.fileno(), _ASKED)  # print may have been interrupted midway, and is not re-entrant
        else:
            self.end()
            raise Interrupted(number, self.cure)

    def _hear_in_a_fork(self, number: int) -> None:
        """A worker process leaves Ctrl-C, which a terminal sends to all, to its owner; who ends it by SIGTERM."""
        if number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
