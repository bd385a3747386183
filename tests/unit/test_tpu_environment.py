"""torch_xla._internal.tpu: what the environment or the metadata server tells of a TPU machine."""

from __future__ import annotations

import http.server
import threading

import pytest

from torch_xla._internal import tpu


@pytest.fixture(autouse=True)
def clean(monkeypatch):
    for name in (
        *("TPU_SKIP_MDS_QUERY", "TPU_ACCELERATOR_TYPE", "TPU_PROCESS_BOUNDS", "TPU_WORKER_ID"),
        *("TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS"),
        *("TPU_WORKER_HOSTNAMES", "TPU_VISIBLE_CHIPS", "CLOUD_TPU_TASK_ID"),
    ):
        monkeypatch.delenv(name, raising=False)
    tpu._read_metadata.cache_clear()
    yield
    tpu._read_metadata.cache_clear()


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


def test_a_machine_that_variables_describe(variables, monkeypatch):
    variables(
        TPU_ACCELERATOR_TYPE="v4-32",
        TPU_PROCESS_BOUNDS="1,2,2",
        TPU_CHIPS_PER_PROCESS_BOUNDS="2,2,1",
        TPU_WORKER_ID="3",
        TPU_WORKER_HOSTNAMES="10.0.0.1,10.0.0.2",
        CLOUD_TPU_TASK_ID="5",
        TPU_VISIBLE_CHIPS="0,1",
    )
    assert tpu.get_tpu_env() == {
        "ACCELERATOR_TYPE": "v4-32",
        "TPU_PROCESS_BOUNDS": "1,2,2",
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
        "WORKER_ID": "3",
    }
    assert isinstance(tpu.get_tpu_env(), tpu.TpuEnv) and tpu.get_tpu_type() == "v4-32"
    assert (tpu.version(), tpu.num_logical_cores_per_chip()) == (4, 1)
    assert (tpu.worker_id(), tpu.task_id(), tpu.num_local_processes()) == (3, 5, 2)
    assert (tpu.process_bounds_size(), tpu.num_tpu_workers()) == (4, 4)
    assert tpu.num_expected_global_devices() == 16
    assert tpu.get_worker_ips() == ["10.0.0.1", "10.0.0.2"]
    assert tpu.discover_master_worker_ip() == "10.0.0.1"
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v3-32")
    assert tpu.num_expected_global_devices() == 32
    monkeypatch.setenv("TPU_ACCELERATOR_TYPE", "v5litepod-8")
    assert tpu.version() == 5


def test_a_machine_by_itself(variables):
    variables(TPU_HOST_BOUNDS="1,1,1")
    assert tpu.get_tpu_env() == {"TPU_PROCESS_BOUNDS": "1,1,1"}
    assert (tpu.task_id(), tpu.process_bounds_size(), tpu.num_tpu_workers()) == (None, None, 1)
    assert tpu.discover_master_worker_ip() == "localhost"
    with pytest.raises(KeyError, match="expected ACCELERATOR_TYPE from the environment"):
        tpu.version()


def test_a_machine_that_the_metadata_server_describes(metadata):
    answers, asked = metadata
    answers["/instance/attributes/tpu-env"] = (
        "ACCELERATOR_TYPE: 'v2-32'\nWORKER_ID: '1'\nTPU_PROCESS_BOUNDS: '2,2,1'\n"
        "TPU_CHIPS_PER_PROCESS_BOUNDS: '2,2,1'\nZONE: us-central2-b\n"
    )
    answers["/instance/attributes/worker-network-endpoints"] = "a:8470:10.1.0.1,b:8470:10.1.0.2"
    assert tpu.get_tpu_type() == "v2-32" and tpu.get_tpu_env()["ZONE"] == "us-central2-b"
    assert (tpu.worker_id(), tpu.num_tpu_workers(), tpu.num_expected_global_devices()) == (1, 4, 32)
    assert asked == ["/instance/attributes/tpu-env"]  # once
    assert tpu.get_worker_ips() == ["10.1.0.1", "10.1.0.2"]
    assert tpu.discover_master_worker_ip() == "10.1.0.1"
    with pytest.raises(OSError, match="404"):
        tpu._get_metadata("nothing")


def test_without_tpu():
    assert tpu.num_available_devices() == tpu.num_available_chips() == tpu.num_local_processes()
    assert "0x005e" in tpu._TPU_PCI_DEVICE_IDS and tpu._GOOGLE_PCI_VENDOR_ID == "0x1ae0"
