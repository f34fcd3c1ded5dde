"""A clock that moves only when told to, so that timing tests are exact."""


class FakeClock:
    """A stand-in for ``time.perf_counter_ns`` in tests: call it to read nanoseconds.

    ``tick_ns`` is added by every reading, as a real clock's own cost would be; ``reads`` counts them.

        clock = FakeClock()
        timer = PhaseTimer(clock=clock, cpu_clock=clock)
        clock.advance(seconds=1.5)
    """

    __slots__ = ("now_ns", "reads", "tick_ns")

    def __init__(self, *, start_ns: int = 0, tick_ns: int = 0) -> None:
        self.now_ns = start_ns
        self.tick_ns = tick_ns
        self.reads = 0

    def __call__(self) -> int:
        """The time in nanoseconds, after this reading's own ``tick_ns``."""
        self.reads += 1
        self.now_ns += self.tick_ns
        return self.now_ns

    def advance(self, seconds: float = 0.0, *, ns: int = 0) -> None:
        """Let time pass; a negative amount raises ValueError, for clocks don't go back."""
        step = round(seconds * 1e9) + ns
        if step < 0:
            raise ValueError(f"advance by {step} ns: expected 0 or more, a clock does not go back")
        self.now_ns += step
