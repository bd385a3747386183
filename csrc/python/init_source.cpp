// The user's line, read from the interpreter's frames.
#include <string_view>

#include <pybind11/pybind11.h>

#include "python/init.h"
#include "util/source.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

// Folders whose frames are not the user's. Set once, at import.
std::vector<std::string>& hidden_folders() {
  static auto& folders = *new std::vector<std::string>;
  return folders;
}

bool is_hidden(std::string_view file) {
  for (const std::string& folder : hidden_folders()) {
    if (file.starts_with(folder)) return true;
  }
  return false;
}

std::string_view text_of(PyObject* unicode) {
  Py_ssize_t size = 0;
  const char* data = unicode == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(unicode, &size);
  if (data == nullptr) {
    PyErr_Clear();
    return "?";
  }
  return {data, static_cast<size_t>(size)};
}

py::object code_attribute(const py::object& code, const char* name) {
  return py::reinterpret_steal<py::object>(PyObject_GetAttrString(code.ptr(), name));
}

util::SourceFrames python_frames(size_t max_frames) {
  util::SourceFrames frames;
  if (Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) return frames;
  // PyTorch lets the lock go around operators. Nobody waits for the graph with the lock in hand.
  const py::gil_scoped_acquire gil;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && frames.size() < max_frames) {
    auto* raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code =
        py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
    const py::object file = code_attribute(code, "co_filename");
    const std::string_view file_text = text_of(file.ptr());
    if (!is_hidden(file_text)) {
      py::object function = code_attribute(code, "co_qualname");
      if (!function) {  // before Python 3.11
        PyErr_Clear();
        function = code_attribute(code, "co_name");
      }
      frames.push_back({std::string(file_text), PyFrame_GetLineNumber(raw),
                        std::string(text_of(function.ptr()))});
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
  }
  return frames;
}

std::string folder_of(const char* module) {
  const auto file = py::module_::import(module).attr("__file__").cast<std::string>();
  return file.substr(0, file.rfind('/') + 1);
}

}  // namespace

void init_source(py::module_& m) {
  // torch_xla itself is half imported now: the extension's own folder is its.
  hidden_folders() = {folder_of("torch"), "<frozen "};
  m.def("_set_package_folder",
        [](const std::string& folder) { hidden_folders().push_back(folder + "/"); });
  util::set_source_provider(&python_frames);
}

}  // namespace torch_xla::python
