// Walks the Python frames of a thread, innermost first. On Python 3.11 and 3.12 it reads the
// interpreter's own frames, in a few nanoseconds; no other thread changes them.
#pragma once

#include <cstdint>
#include <optional>

#include <Python.h>
#include <frameobject.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030D0000
#define TXLA_INTERPRETER_FRAMES 1
#define Py_BUILD_CORE
#undef _PyGC_FINALIZED  // the internal headers of 3.12 define it again
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

namespace torch_xla::python {

struct PythonFrame {
  PyCodeObject* code;   // borrowed from the frame
  int32_t instruction;  // as PyCode_Addr2Line takes it
};

#ifdef TXLA_INTERPRETER_FRAMES

// Walks the frames of `thread`, which is the calling one's.
class FrameWalk {
 public:
  static constexpr bool kNeedsGil = false;

  explicit FrameWalk(PyThreadState* thread) : frame_(thread->cframe->current_frame) {}

  std::optional<PythonFrame> next() {
    while (frame_ != nullptr && !is_python(*frame_)) frame_ = frame_->previous;
    if (frame_ == nullptr) return std::nullopt;
    constexpr int kUnit = sizeof(_Py_CODEUNIT);
    const PythonFrame found{frame_->f_code, _PyInterpreterFrame_LASTI(frame_) * kUnit};
    frame_ = frame_->previous;
    return found;
  }

 private:
  // C code that calls Python has a frame of its own since 3.12.
  static bool is_python([[maybe_unused]] const _PyInterpreterFrame& frame) {
#if PY_VERSION_HEX >= 0x030C0000
    return frame.owner != FRAME_OWNED_BY_CSTACK;
#else
    return true;
#endif
  }

  _PyInterpreterFrame* frame_;
};

#else

// Does the same by frame objects. The caller holds the GIL.
class FrameWalk {
 public:
  static constexpr bool kNeedsGil = true;

  explicit FrameWalk(PyThreadState*) : frame_(PyEval_GetFrame()) { Py_XINCREF(frame_); }
  ~FrameWalk() { Py_XDECREF(frame_); }
  FrameWalk(const FrameWalk&) = delete;
  FrameWalk& operator=(const FrameWalk&) = delete;

  std::optional<PythonFrame> next() {
    if (frame_ == nullptr) return std::nullopt;
    PyCodeObject* code = PyFrame_GetCode(frame_);
#if PY_VERSION_HEX >= 0x030B0000
    const int instruction = PyFrame_GetLasti(frame_);
#else
    const int instruction = frame_->f_lasti * 2;  // counted in instructions of two bytes
#endif
    PyFrameObject* back = PyFrame_GetBack(frame_);
    Py_DECREF(code);  // the running frame holds it
    Py_DECREF(frame_);
    frame_ = back;
    return PythonFrame{code, instruction};
  }

 private:
  PyFrameObject* frame_;
};

#endif

}  // namespace torch_xla::python
