// Reads the user's line from the interpreter's frames.
#include <array>
#include <mutex>
#include <string_view>
#include <utility>

#include <pybind11/pybind11.h>

#include "lazy/source.h"
#include "lazy/stack.h"
#include "python/frames.h"
#include "python/init.h"
#include "util/fork_mutex.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

// Folders whose frames are not the user's. Set once, at import.
std::vector<std::string>& hidden_folders() {
  static auto& folders = *new std::vector<std::string>;
  return folders;
}

std::string text_of(PyCodeObject* code, const char* attribute) {
  const auto text = py::reinterpret_steal<py::object>(
      PyObject_GetAttrString(reinterpret_cast<PyObject*>(code), attribute));
  Py_ssize_t size = 0;
  const char* data = text ? PyUnicode_AsUTF8AndSize(text.ptr(), &size) : nullptr;
  if (data == nullptr) {
    PyErr_Clear();
    return "";
  }
  return {data, static_cast<size_t>(size)};
}

bool is_hidden(PyCodeObject* code) {
  const std::string file = text_of(code, "co_filename");
  for (const std::string& folder : hidden_folders()) {
    if (file.starts_with(folder)) return true;
  }
  return false;
}

lazy::SourceFrame frame_of(PyCodeObject* code, int32_t instruction) {
  std::string function = text_of(code, "co_qualname");
  if (function.empty()) function = text_of(code, "co_name");  // before Python 3.11
  return {text_of(code, "co_filename"), PyCode_Addr2Line(code, instruction), std::move(function)};
}

// References that are to be given back: places are let go by threads that do not hold the GIL.
class Dropped {
 public:
  void add(PyObject* object) {
    const std::lock_guard lock(mutex_);
    objects_.push_back(object);
  }
  // The caller holds the GIL.
  void release() {
    std::vector<PyObject*> objects;
    {
      const std::lock_guard lock(mutex_);
      objects.swap(objects_);
    }
    for (PyObject* object : objects) Py_DECREF(object);
  }

 private:
  util::ForkMutex mutex_;
  std::vector<PyObject*> objects_;
};

Dropped& dropped() {
  static auto& dropped = *new Dropped;
  return dropped;
}

// A copy of `code` that still tells its lines, but keeps nothing of what a program holds: with a
// code object end the functions that torch.compile generated for it.
PyCodeObject* without_constants(PyCodeObject* code) {
  const auto replace =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(code)).attr("replace");
  return reinterpret_cast<PyCodeObject*>(
      replace(py::arg("co_consts") = py::tuple()).release().ptr());
}

PyObject* weak_reference(PyCodeObject* code) {
  PyObject* reference = PyWeakref_NewRef(reinterpret_cast<PyObject*>(code), nullptr);
  if (reference == nullptr) throw py::error_already_set();
  return reference;
}

class PythonCode final : public lazy::Code {
 public:
  // The caller holds the GIL.
  explicit PythonCode(PyCodeObject* code)
      : lines_(is_hidden(code) ? nullptr : without_constants(code)),
        reference_(weak_reference(code)) {}
  ~PythonCode() override {
    dropped().add(reference_);
    if (lines_ != nullptr) dropped().add(reinterpret_cast<PyObject*>(lines_));
  }

  // Whether this is the code object `code`, which is alive; another may have been at its address.
  bool is(PyCodeObject* code) const {
    return reinterpret_cast<PyWeakReference*>(reference_)->wr_object ==
           reinterpret_cast<PyObject*>(code);
  }
  bool hidden() const { return lines_ == nullptr; }

  lazy::SourceFrames frames(int32_t instruction) const override {
    if (Py_IsInitialized() == 0) return {};
    const py::gil_scoped_acquire gil;
    return {frame_of(lines_, instruction)};
  }

 private:
  PyCodeObject* const lines_;  // null for code that is not the user's
  PyObject* const reference_;
};

// The code objects that were met last. Guarded by GraphLock.
class KnownCode {
 public:
  const c10::intrusive_ptr<PythonCode>& of(PyCodeObject* code) {
    // Objects are aligned to 16 bytes.
    c10::intrusive_ptr<PythonCode>& known =
        known_[(reinterpret_cast<uintptr_t>(code) >> 4) % kSlots];
    if (!known.defined() || !known->is(code)) [[unlikely]] {
      // PyTorch lets the GIL go around operators. Nobody waits for the graph with the GIL in hand.
      const py::gil_scoped_acquire gil;
      known = c10::make_intrusive<PythonCode>(code);
      dropped().release();
    }
    return known;
  }

 private:
  static constexpr size_t kSlots = 1024;
  std::array<c10::intrusive_ptr<PythonCode>, kSlots> known_;
};

KnownCode& known_code = *new KnownCode;  // never destroyed

void innermost(PyThreadState* thread, lazy::Source& place) {
  FrameWalk walk(thread);
  while (const auto frame = walk.next()) {
    const auto& code = known_code.of(frame->code);
    if (code->hidden()) continue;
    place.code = code;
    place.instruction = frame->instruction;
    return;
  }
}

// The first `most` of the frames whose code `wanted` is true for. The caller holds the GIL.
template <class Wanted>
lazy::SourceFrames frames_of(PyThreadState* thread, size_t most, Wanted wanted) {
  lazy::SourceFrames frames;
  FrameWalk walk(thread);
  while (const auto frame = frames.size() < most ? walk.next() : std::nullopt) {
    if (wanted(frame->code)) frames.push_back(frame_of(frame->code, frame->instruction));
  }
  return frames;
}

void all_frames(PyThreadState* thread, lazy::Source& place) {
  const py::gil_scoped_acquire gil;
  lazy::SourceFrames frames =
      frames_of(thread, 16, [](PyCodeObject* code) { return !known_code.of(code)->hidden(); });
  if (!frames.empty()) place = {c10::make_intrusive<lazy::Stack>(std::move(frames)), 0};
}

lazy::SourceFrames stack_here() {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return {};
  const py::gil_scoped_acquire gil;
  lazy::SourceFrames frames = frames_of(thread, 64, [](PyCodeObject*) { return true; });
  // How a public function goes on inside the package says nothing to its caller.
  const std::string& package = hidden_folders().back();
  const auto in = [&](size_t i, const std::string& folder) {
    return i < frames.size() && frames[i].file.starts_with(folder);
  };
  size_t inner = 0;
  while (in(inner, package + "_src/") && in(inner + 1, package)) ++inner;
  frames.erase(frames.begin(), frames.begin() + static_cast<ptrdiff_t>(inner));
  return frames;
}

void read_source(lazy::Frames frames, lazy::Source& place) {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return;  // a thread of C++, or after the interpreter's end
  if (frames == lazy::Frames::All) return all_frames(thread, place);
  if constexpr (FrameWalk::kNeedsGil) {
    const py::gil_scoped_acquire gil;
    innermost(thread, place);
  } else {
    innermost(thread, place);
  }
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
  lazy::set_source_reader(&read_source);
  lazy::set_stack_reader(&stack_here);
}

}  // namespace torch_xla::python
