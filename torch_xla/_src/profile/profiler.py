"""The common part of `torch_xla.debug.profiler` and the extension's `profiler`: one recording at a
time, a server of TensorBoard's protocol, and its client.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch_xla import _XLAC
from torch_xla._src.insight import recording
from torch_xla._src.profile import job as profile_job
from torch_xla._src.profile import kernels as profile_kernels
from torch_xla._src.profile import spaces as profile_spaces
from torch_xla._src.profile.messages import messages

TraceMe = _XLAC._TraceMe
_SERVICE = "tensorflow.ProfilerService"
_GRACE = 30.0  # seconds that a recording may take to be written
# Modules that may be missing.
_OF_PLUGIN = "the plugin's own profile of its devices is"
_LOOPS = "the loops of the CPU's programs are"


class TslProfilerSessionWrapper:
    """A recording, from here to `stop()`: our events and, where the plugin makes a profile of its
    devices, that; on the CPU, samples of its threads.

    Args:
        options: Of the plugin's profile, a `ProfileOptions`.

    Raises:
        RuntimeError: There is another one.
        ImportError: The package `protobuf` is not there.
    """

    def __init__(self, options: Any = None) -> None:
        if options is None:  # and sooner than when there is something to lose
            options = messages().ProfileOptions(host_tracer_level=2, device_tracer_level=1)
        options.version, options.enable_hlo_proto = 1, True
        recording.refuse_profile()
        _XLAC._xla_start_trace(kernels=True)
        self._missing: dict[str, str] = {}
        begin = _XLAC._xla_start_plugin_profile
        self._plugin = self._try(_OF_PLUGIN, begin, options.SerializeToString())
        self._samples = self._plugin is None and self._try(_LOOPS, profile_kernels.start_sampling)

    def _try(self, part: str, what: Callable[..., Any], *args: Any) -> Any:
        """Without this part the profile has our events, and says why."""
        try:
            return what(*args)
        except Exception as error:
            self._missing[part] = f"{part} missing: {error}"
            warnings.warn(f"torch_xla.debug.profiler: {self._missing[part]}", stacklevel=2)
            return None

    def end(self, host: str | None = None) -> Any:
        """Ends it, and returns the profile: an `XSpace`."""
        plugin, self._plugin = self._plugin, None
        seen = (
            self._try(_OF_PLUGIN, lambda: profile_spaces.parse(plugin.stop())) if plugin else None
        )
        tracks = _XLAC._xla_stop_trace()
        if self._samples:
            self._try(_LOOPS, profile_kernels.stop_sampling, tracks)
        space = profile_spaces.to_xspace(tracks, host or profile_spaces.host_name(), seen)
        if _OF_PLUGIN in self._missing:
            space.errors.append(self._missing[_OF_PLUGIN])
        if _LOOPS in self._missing:
            space.warnings.append(self._missing[_LOOPS])
        return space

    def stop(self) -> bytes:
        """Ends it, and returns the profile: a serialized `XSpace`."""
        return self.end().SerializeToString()

    def export(self, xspace: bytes, log_dir: str | os.PathLike) -> None:
        """Writes what `stop` gave into a log directory of TensorBoard."""
        host = profile_spaces.host_name()
        folder = profile_spaces.run_folder(log_dir)
        profile_spaces.write_space(xspace, folder, host)


class ScopePusher:
    """A scope of recorded calls, until it is let go. Profiles have it as an event, and the metadata
    of programs begin with its name (`XLA_HLO_DEBUG=1`)."""

    def __init__(self, name: str) -> None:
        self._event = TraceMe(name)
        self._event.__enter__()
        self._outer = _XLAC._xla_set_scope(name)
        if self._outer:
            _XLAC._xla_set_scope(f"{self._outer}/{name}")

    def __del__(self) -> None:
        self._event.__exit__(None, None, None)
        _XLAC._xla_set_scope(self._outer)


def scope_pusher(name: str) -> ScopePusher:
    return ScopePusher(name)


def _grpc() -> Any:
    try:
        import grpc
    except ImportError as e:
        raise ImportError(
            "torch_xla.debug.profiler: expected the package grpcio, by which profiles are asked "
            "for. Install it with `pip install torch_xla[profiler]`."
        ) from e
    return grpc


class ProfilerServer:
    """Records profiles for those who ask at its port. Ends when it is let go, or by `stop()`.

    Args:
        port: Of the address; 0 takes a free one.
        host: The address; what is not this machine's own is asked by whoever reaches it, and each
            request names the folder to write to.

    Attributes:
        port: That it has.

    Raises:
        RuntimeError: The port is taken, or is none.
        ImportError: `grpcio` or `protobuf` is not there.
    """

    def __init__(self, port: int, host: str = "localhost") -> None:
        grpc = _grpc()
        from concurrent.futures import ThreadPoolExecutor

        self.port = 0
        if not 0 <= port < 1 << 16:
            raise RuntimeError(f"start_server: expected a port from 0 to 65535, got {port}.")
        # The server's threads refer to the service, and may not to this object: it would not end.
        self._service = _Service()
        self._server = grpc.server(
            ThreadPoolExecutor(4, _THREADS),
            options=(("grpc.so_reuseport", 0),),  # a port of another process is not shared with it
        )
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler(_SERVICE, self._service.handlers())]
        )
        # This name has two addresses: one may be free where the other is taken.
        address = f"{'127.0.0.1' if host == 'localhost' else host}:{port}"
        with contextlib.suppress(RuntimeError):
            self.port = self._server.add_insecure_port(address)
        if self.port == 0:
            raise RuntimeError(
                f"start_server: expected a free port, got {host}:{port}. Choose another, or 0."
            )
        self._server.start()
        # Also before the interpreter ends, while the threads that this waits for are there.
        self.stop = weakref.finalize(self, _end, self._server, self._service)


_servers: weakref.WeakValueDictionary[tuple[int, str], ProfilerServer] = (
    weakref.WeakValueDictionary()
)
_THREADS = "torch_xla_profiler"  # of servers


def server_at(port: int, host: str) -> ProfilerServer:
    """The server that this process has there, else a new one."""
    known = _servers.get((port, host))
    if known is not None and known.stop.alive:
        return known
    made = ProfilerServer(port, host)
    _servers[made.port, host] = made
    return made


def _end(server: Any, service: _Service) -> None:
    """Returns when what was being recorded has been answered."""
    service.ended = True
    service.terminated.set()
    stopped = server.stop(_GRACE)
    if not threading.current_thread().name.startswith(_THREADS):  # else it would wait for itself
        stopped.wait()


class _Service:
    """The answers of a server."""

    def __init__(self) -> None:
        self.terminated = threading.Event()
        self.ended = False  # with the server

    def handlers(self) -> dict[str, Any]:
        m = messages()
        methods = {
            "Profile": (self.profile, m.ProfileRequest, m.ProfileResponse),
            "Terminate": (self.terminate, m.TerminateRequest, m.TerminateResponse),
            "Monitor": (self.monitor, m.MonitorRequest, m.MonitorResponse),
        }
        return {
            name: _grpc().unary_unary_rpc_method_handler(
                answer,
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
            for name, (answer, request, response) in methods.items()
        }

    def profile(self, request: Any, context: Any) -> Any:
        grpc = _grpc()
        response = messages().ProfileResponse()
        duration_ms = request.duration_ms or request.opts.duration_ms or 1000
        self.terminated.clear()
        if self.ended:
            self.terminated.set()
        try:
            session = TslProfilerSessionWrapper(request.opts if request.opts.version else None)
        except RuntimeError as e:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(e))
        host = request.opts.override_hostname or request.host_name or profile_spaces.host_name()
        try:
            self.terminated.wait(duration_ms / 1e3)
        finally:
            space = session.end(host)
        response.empty_trace = not any(
            line.events for plane in space.planes for line in plane.lines
        )
        if request.emit_xspace:
            response.xspace.CopyFrom(space)
        elif not response.empty_trace:
            try:
                folder = Path(request.repository_root) / request.session_id
                profile_spaces.write(space, folder, host)
            except OSError as e:
                context.abort(grpc.StatusCode.INTERNAL, f"The profile cannot be written: {e}")
        return response

    def terminate(self, request: Any, context: Any) -> Any:
        self.terminated.set()
        return messages().TerminateResponse()

    def monitor(self, request: Any, context: Any) -> Any:
        from torch_xla.debug import metrics

        return messages().MonitorResponse(data=metrics.short_metrics_report())


def start_server(port: int) -> ProfilerServer:
    return ProfilerServer(port)


def trace(
    service_addr: str,
    logdir: str | os.PathLike,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    timeout_s: int = 120,
    interval_s: int = 5,
    options: dict[str, int] | None = None,
) -> None:
    """`torch_xla.debug.profiler.trace`, with the levels and `delay_ms` as options."""
    given = {"host_tracer_level": 2, "device_tracer_level": 1, "delay_ms": 0, **(options or {})}
    addresses = [a for a in (a.strip() for a in service_addr.split(",")) if a]
    if not addresses:
        raise ValueError(
            "profiler.trace: expected addresses such as 'localhost:9012,10.0.0.2:9012', got "
            f"'{service_addr}'."
        )
    time.sleep(given["delay_ms"] / 1e3)
    folder = profile_spaces.run_folder(logdir)
    requests = [_request(address, folder, duration_ms, given) for address in addresses]
    met: set[str] = set()
    for _ in range(max(1, num_tracing_attempts)):
        responses = list(_ask(addresses, requests, duration_ms, timeout_s, interval_s, met))
        if not all(response.empty_trace for response in responses):
            profile_job.join(folder)
            return
    raise RuntimeError(
        f"profiler.trace: expected the programs at {service_addr} to do something on xla within "
        f"{duration_ms} ms, got {max(1, num_tracing_attempts)} empty profiles. Ask while they "
        "run, or for longer."
    )


def _request(address: str, folder: Path, duration_ms: int, options: dict[str, int]) -> Any:
    host = "".join(c if c.isalnum() or c in "-_" else "_" for c in address)
    request = messages().ProfileRequest(
        duration_ms=duration_ms,
        repository_root=str(folder.parent.absolute()),
        session_id=folder.name,
        host_name=host,
    )
    request.opts.version = 1
    request.opts.duration_ms = duration_ms
    request.opts.host_tracer_level = options["host_tracer_level"]
    request.opts.device_tracer_level = options["device_tracer_level"]
    return request


def _ask(
    addresses: list[str],
    requests: list[Any],
    duration_ms: int,
    timeout_s: int,
    interval_s: int,
    met: set[str],
) -> Iterator[Any]:
    """The answers; all are asked at once, and again while they are not there yet or busy. Those
    that have answered are added to `met`."""
    grpc = _grpc()
    again = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION}
    deadline = time.monotonic() + timeout_s
    told: set[str] = set()
    with contextlib.ExitStack() as stack:
        calls = []
        for address, request in zip(addresses, requests, strict=True):
            channel = stack.enter_context(grpc.insecure_channel(address))
            call = channel.unary_unary(
                f"/{_SERVICE}/Profile",
                request_serializer=type(request).SerializeToString,
                response_deserializer=messages().ProfileResponse.FromString,
            )
            calls.append((address, call, request))
        longest = duration_ms / 1e3 + timeout_s
        answers = [(a, c, r, c.future(r, timeout=longest)) for a, c, r in calls]
        for address, call, request, answer in answers:
            while True:
                try:
                    response = answer.result()
                    break
                except grpc.RpcError as e:
                    gone = address in met and e.code() is grpc.StatusCode.UNAVAILABLE
                    late = time.monotonic() + interval_s >= deadline
                    if e.code() not in again or gone or late:
                        raise RuntimeError(
                            f"profiler.trace: expected a profile of {address}, got "
                            f"{e.code().name}: {e.details()}"
                        ) from e
                    if address not in told:
                        told.add(address)
                        warnings.warn(
                            f"profiler.trace: {address} cannot be asked now ({e.code().name}: "
                            f"{e.details()}). It is asked again for {timeout_s} s.",
                            stacklevel=4,
                        )
                    time.sleep(interval_s)
                    answer = call.future(request, timeout=longest)
            met.add(address)
            yield response
