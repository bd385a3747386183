"""torch_xla._internal.tpu: what the environment or the metadata server tells of a TPU machine."""

from __future__ import annotations

import glob
import http.server
import os
import threading

import pytest

from torch_xla._internal import tpu


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in (
        *("TPU_SKIP_MDS_QUERY", "TPU_ACCELERATOR_TYPE", "TPU_PROCESS_BOUNDS", "TPU_WORKER_ID"),
        *("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS"),
        *("TPU_WORKER_HOSTNAMES", "TPU_VISIBLE_CHIPS", "CLOUD_TPU_TASK_ID"),
        *("TPU_PROCESS_ADDRESSES", "TPU_PROCESS_PORT"),
    ):
        # Sets first, so that what a test makes of it goes with the test.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture
def chips(monkeypatch, tmp_path):
    """Gives this machine PCI devices: `(vendor, device)` of each."""

    def plug(*devices):
        for i, (vendor, device) in enumerate(devices):
            folder = tmp_path / "pci" / str(i)
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(vendor + "\n")
            (folder / "device").write_text(device + "\n")
        found = [str(path) for path in sorted(tmp_path.glob("pci/*"))]
        monkeypatch.setattr(glob, "glob", lambda p: found if p == "/sys/bus/pci/devices/*" else [])

    return plug


@pytest.fixture
def variables(monkeypatch):
    def set_all(**values):
        monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def metadata(monkeypatch):
    """A metadata server; returns its answers by path, and counts questions."""
    answers: dict[str, str] = {}
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            known = self.headers["Metadata-Flavor"] == "Google" and self.path in answers
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(answers.get(self.path, "").encode())

        def log_message(self, *args):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(tpu, "_GCE_METADATA_ROOT_URL", f"http://127.0.0.1:{server.server_port}")
    yield answers, asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_shapes_of_meshes():
    shape = tpu.MeshShape.from_string("2, 3,1")
    assert shape == (2, 3, 1) and (shape.x, shape.y, shape.z, shape.size) == (2, 3, 1, 6)
    assert shape * tpu.MeshShape(2, 2, 1) == (4, 6, 1)
    for bad in ("2,2", "2,2,x", ""):
        with pytest.raises(ValueError, match="three numbers such as '2,2,1'"):
            tpu.MeshShape.from_string(bad)


def test_a_machine_that_variables_describe(variables, chips, monkeypatch):
    chips(*[("0x1ae0", "0x005e")] * 4)
    variables(
        TPU_ACCELERATOR_TYPE="v4-32",
        TPU_PROCESS_BOUNDS="1,2,2",
        TPU_CHIPS_PER_PROCESS_BOUNDS="2,2,1",
        TPU_WORKER_ID="3",
        TPU_WORKER_HOSTNAMES="10.0.0.1,10.0.0.2",
    )
    assert tpu.get_tpu_env() == {
        "ACCELERATOR_TYPE": "v4-32",
        "TPU_PROCESS_BOUNDS": "1,2,2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "WORKER_ID": "3",
    }
    assert isinstance(tpu.get_tpu_env(), tpu.TpuEnv) and tpu.get_tpu_type() == "v4"
    assert (tpu.version(), tpu.num_logical_cores_per_chip()) == (4, 1)
    assert (tpu.worker_id(), tpu.task_id(), tpu.num_local_processes()) == (3, None, 4)
    assert (tpu.process_bounds_size(), tpu.num_tpu_workers()) == (4, 2)
    assert (tpu.num_available_devices(), tpu.num_expected_global_devices()) == (4, 8)
    assert tpu.get_worker_ips() == ["10.0.0.1", "10.0.0.2"]
    assert tpu.discover_master_worker_ip() == "10.0.0.1"
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v3-32")
    assert (tpu.num_available_devices(), tpu.num_expected_global_devices()) == (8, 16)
    monkeypatch.setenv("CLOUD_TPU_TASK_ID", "5")  # of the process, where it is known
    assert (tpu.worker_id(), tpu.task_id()) == (5, 5)
    monkeypatch.setenv("TPU_PROCESS_BOUNDS", "2,1,1")  # fewer processes than chips
    assert tpu.num_local_processes() == 2
    for kind, (generation, name) in {
        "v5litepod-8": (5, "v5litepod"),
        "v6e-8": (6, "v6e"),
        "tpu7x-128": (7, "tpu7x"),
    }.items():
        monkeypatch.setenv("TPU_ACCELERATOR_TYPE", kind)
        assert (tpu.version(), tpu.get_tpu_type()) == (generation, name)
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "h100")
    with pytest.raises(OSError, match="such as 'v4-16', got 'h100'"):
        tpu.version()


def test_chips_are_those_of_the_vendor_that_are_known(chips):
    chips(
        *(("0x1ae0", "0x0063"), ("0x1ae0", "0x0076"), ("0x1ae0", "0x001f"), ("0x10de", "0x005e")),
    )
    assert tpu.num_available_chips() == 2


def test_a_machine_by_itself(variables):
    variables(TPU_HOST_BOUNDS="1,1,1", TPU_WORKER_HOSTNAMES="10.0.0.7")
    assert {k: v for k, v in tpu.get_tpu_env().items() if v} == {"TPU_PROCESS_BOUNDS": "1,1,1"}
    assert (tpu.task_id(), tpu.process_bounds_size(), tpu.num_tpu_workers()) == (None, None, 1)
    assert tpu.get_worker_ips() == ["localhost"]
    assert tpu.discover_master_worker_ip(use_localhost=False) == "localhost"
    with pytest.raises(KeyError, match="expected ACCELERATOR_TYPE from the environment"):
        tpu.version()
    tpu.configure_one_chip_topology()
    assert {name: os.environ[name] for name in os.environ if name.startswith("TPU_PROCESS")} == {
        "TPU_PROCESS_BOUNDS": "1,1,1"
    }
    assert os.environ["TPU_VISIBLE_CHIPS"] == "0"


@pytest.mark.parametrize(
    "kind, bounds, processes",
    [("v4-16", "1,1,2", "2,2,2"), ("v2-32", "", "4,4,1"), ("tpu7x-16", "1,1,2", "2,2,2,2")],
)
def test_a_process_for_each_chip(metadata, kind, bounds, processes):
    answers, _ = metadata
    answers["/instance/attributes/tpu-env"] = (
        f"ACCELERATOR_TYPE: '{kind}'\nWORKER_ID: '1'\n"
        f"TPU_PROCESS_BOUNDS: '{bounds}'\nTPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'\n"
    )
    answers["/instance/attributes/worker-network-endpoints"] = "a:1:10.1.0.1,b:2:10.1.0.2"
    os.environ["TPU_PROCESS_PORT"] = "1"  # stays
    tpu.configure_topology(local_rank=2, local_world_size=4)
    ports = range(8476, 8480)
    assert {
        name: os.environ[name] for name in os.environ if name.startswith(("TPU_", "CLOUD_TPU"))
    } == {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": processes,
        "CLOUD_TPU_TASK_ID": "6",
        "TPU_PROCESS_ADDRESSES": ",".join(f"10.1.0.{i}:{p}" for i in (1, 2) for p in ports),
        "TPU_VISIBLE_CHIPS": "2",
        "TPU_PROCESS_PORT": "1",
    }


def test_a_machine_that_the_metadata_server_describes(metadata, chips):
    answers, asked = metadata
    answers["/instance/attributes/tpu-env"] = (
        "ACCELERATOR_TYPE: 'v2-32'\nWORKER_ID: '1'\nTPU_PROCESS_BOUNDS: '2,2,1'\n"
        "TPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'\nZONE: us-central2-b\n"
    )
    answers["/instance/attributes/worker-network-endpoints"] = "a:8470:10.1.0.1,b:8470:10.1.0.2"
    assert tpu.get_tpu_type() == "v2" and tpu.get_tpu_env()["ZONE"] == "us-central2-b"
    assert len(asked) == 2  # anew each time
    chips(*[("0x1ae0", "0x0027")] * 4)
    assert (tpu.worker_id(), tpu.num_tpu_workers(), tpu.num_expected_global_devices()) == (1, 2, 16)
    assert tpu.get_worker_ips() == ["10.1.0.1", "10.1.0.2"]
    assert tpu.discover_master_worker_ip() == "10.1.0.1"
    with pytest.raises(OSError, match="404"):
        tpu._get_metadata("nothing")


def test_without_tpu():
    assert tpu.num_available_devices() == tpu.num_available_chips() == tpu.num_local_processes()
    assert "0x005e" in tpu._TPU_PCI_DEVICE_IDS and tpu._GOOGLE_PCI_VENDOR_ID == "0x1ae0"
