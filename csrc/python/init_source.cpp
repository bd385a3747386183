// Reads the user's line from the interpreter's frames.
#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <pybind11/pybind11.h>

#include "lazy/source.h"
#include "python/frames.h"
#include "python/init.h"
#include "util/fork_mutex.h"
#include "util/hooks.h"

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

bool is_hidden(std::string_view file) {
  return std::ranges::any_of(hidden_folders(),
                             [&](const std::string& folder) { return file.starts_with(folder); });
}

// The line that a line of generated code stands for.
struct GeneratedLine {
  lazy::SourceFrames frames;  // of the user's program, innermost first
  uint32_t scope = 0;
};
using GeneratedLines = std::unordered_map<int, GeneratedLine>;

// By file name, which each generated function has for itself. Guarded by the GIL.
std::unordered_map<std::string, std::shared_ptr<const GeneratedLines>>& generated_lines() {
  static auto& lines = *new std::unordered_map<std::string, std::shared_ptr<const GeneratedLines>>;
  return lines;
}

void set_generated_lines(const std::string& file, const py::dict& lines) {
  auto known = std::make_shared<GeneratedLines>();
  for (const auto& [line, value] : lines) {
    const auto [frames, scope] = value.cast<std::pair<py::list, std::string>>();
    GeneratedLine& generated = (*known)[line.cast<int>()];
    for (const auto& frame : frames) {
      const auto [name, at, function] = frame.cast<std::tuple<std::string, int, std::string>>();
      if (!is_hidden(name)) generated.frames.push_back({name, at, function});
    }
    generated.scope = lazy::scope_number(scope);
  }
  generated_lines()[file] = std::move(known);
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
  explicit PythonCode(PyCodeObject* code) : reference_(weak_reference(code)) {
    const std::string file = text_of(code, "co_filename");
    if (!is_hidden(file)) lines_ = without_constants(code);
    const auto generated = generated_lines().find(file);
    if (generated != generated_lines().end()) generated_ = generated->second;
  }
  ~PythonCode() override {
    dropped().add(reference_);
    if (lines_ != nullptr) dropped().add(reinterpret_cast<PyObject*>(lines_));
  }

  // Returns whether this is the code object `code`, which is alive; another may have been at its
  // address.
  bool is(PyCodeObject* code) const {
    return reinterpret_cast<PyWeakReference*>(reference_)->wr_object ==
           reinterpret_cast<PyObject*>(code);
  }
  bool hidden() const { return lines_ == nullptr; }

  lazy::SourceFrames frames(int32_t instruction) const override {
    if (Py_IsInitialized() == 0) return {};
    const py::gil_scoped_acquire gil;
    const GeneratedLine* line = generated(instruction);
    if (line != nullptr && !line->frames.empty()) return line->frames;
    return {frame_of(lines_, instruction)};
  }

  // The scope that an instruction of generated code is in, which its own line tells.
  uint32_t scope(int32_t instruction) const {
    return generated_ == nullptr ? 0 : generated_scope(instruction);
  }

 private:
  [[gnu::noinline]] uint32_t generated_scope(int32_t instruction) const {
    const py::gil_scoped_acquire gil;
    const GeneratedLine* line = generated(instruction);
    return line == nullptr ? 0 : line->scope;
  }

  const GeneratedLine* generated(int32_t instruction) const {
    if (generated_ == nullptr) return nullptr;
    const auto line = generated_->find(PyCode_Addr2Line(lines_, instruction));
    return line == generated_->end() ? nullptr : &line->second;
  }

  PyCodeObject* lines_ = nullptr;  // null for code that is not the user's
  PyObject* const reference_;
  std::shared_ptr<const GeneratedLines> generated_;  // null for code that somebody has written
};

// The code objects that were met last. Guarded by GraphLock.
class KnownCode {
 public:
  const c10::intrusive_ptr<PythonCode>& of(PyCodeObject* code) {
    // Objects are aligned to 16 bytes.
    c10::intrusive_ptr<PythonCode>& known =
        known_[(reinterpret_cast<uintptr_t>(code) >> 4) % kSlots];
    if (!known.defined() || !known->is(code)) [[unlikely]]
      meet(code, known);
    return known;
  }

 private:
  // Apart, so that of() needs few registers; this is most of what a recorded call's line costs.
  [[gnu::noinline]] static void meet(PyCodeObject* code, c10::intrusive_ptr<PythonCode>& known) {
    // PyTorch lets the GIL go around operators. Nobody waits for the graph with the GIL in hand.
    const py::gil_scoped_acquire gil;
    known = c10::make_intrusive<PythonCode>(code);
    dropped().release();
  }

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
    place.scope = code->scope(frame->instruction);
    return;
  }
}

[[gnu::noinline]] void all_frames(PyThreadState* thread, lazy::Source& place) {
  constexpr size_t kMost = 16;
  const py::gil_scoped_acquire gil;
  lazy::SourceFrames frames;
  FrameWalk walk(thread);
  while (const auto frame = frames.size() < kMost ? walk.next() : std::nullopt) {
    const auto& code = known_code.of(frame->code);
    if (code->hidden()) continue;
    if (frames.empty()) place.scope = code->scope(frame->instruction);
    std::ranges::move(code->frames(frame->instruction), std::back_inserter(frames));
  }
  if (frames.empty()) return;
  place.code = c10::make_intrusive<lazy::Stack>(std::move(frames));
  place.instruction = 0;
}

lazy::SourceFrames stack_here() {
  PyThreadState* thread = PyGILState_GetThisThreadState();
  if (thread == nullptr) return {};
  const py::gil_scoped_acquire gil;
  constexpr size_t kMost = 64;
  lazy::SourceFrames frames;
  FrameWalk walk(thread);
  while (const auto frame = frames.size() < kMost ? walk.next() : std::nullopt) {
    frames.push_back(frame_of(frame->code, frame->instruction));
  }
  // The frames of a public function inside the package say nothing to its caller, but that it is a
  // sync.
  const std::string& package = hidden_folders().back();
  const auto in = [&](size_t i, const std::string& folder) {
    return i < frames.size() && frames[i].file.starts_with(folder);
  };
  size_t inner = 0;
  while (in(inner, package + "_src/") && in(inner + 1, package) &&
         frames[inner].function != "sync") {
    ++inner;
  }
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
  // Says of each line of a generated function, which has a file name of its own: the frames that it
  // stands for, innermost first, as (file, line, function), and the name of its scope.
  m.def("_set_generated_lines", &set_generated_lines);
  m.def("_drop_generated_lines", [](const std::string& file) { generated_lines().erase(file); });
  util::hooks.read_source = &read_source;
  util::hooks.read_stack = &stack_here;
}

}  // namespace torch_xla::python
