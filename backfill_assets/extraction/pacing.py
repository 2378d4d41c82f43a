"""How often a server is asked: never more than it allows, whatever the network does on the way.

Put here the waiting alone. What is asked is `http_client`'s.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from backfill_assets.declarations.apis import RateLimit


class Pace:
    """Lets requests begin, one at a time, so that at most so many reach the server in any so many seconds.

    What counts of an earlier request is when it ended, since it may have reached the server as late as that; of the next one,
    when it begins. One that was not answered may still be on its way: after it, as at the beginning, the limit counts as used up.
    Nobody knows what a process that was killed had asked for.
    """

    def __init__(
        self,
        limit: RateLimit,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._seconds, self._clock, self._sleep = limit.seconds, clock, sleep
        self._ended: deque[float] = deque(maxlen=limit.requests)
        self._use_up()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Wait until a request may be made, which the body does."""
        while (wait := self._ended[0] + self._seconds - self._clock()) > 0:
            self._sleep(wait)
        try:
            yield
        except BaseException:
            self._use_up()
            raise
        self._ended.append(self._clock())

    def _use_up(self) -> None:
        assert self._ended.maxlen is not None
        self._ended.extend([self._clock()] * self._ended.maxlen)
