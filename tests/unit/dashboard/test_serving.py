"""The socket that the dashboard is served on."""

from __future__ import annotations

import asyncio
import socket

from shanty.dashboard import serving
from shanty.dashboard.serving import Place


def test_an_answer_is_not_held_back() -> None:
    """With Nagle's algorithm each answer would wait 40 ms for an acknowledgement."""

    async def option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            end = writer.get_extra_info("socket")
            found.set_result(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        with serving.listen(Place("127.0.0.1")) as listener:
            async with await asyncio.start_server(connected, sock=listener):
                _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
                answer = await found
                writer.close()
                return answer

    assert asyncio.run(option()) != 0
