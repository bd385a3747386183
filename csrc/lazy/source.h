// Source, the line of the user's program that recorded a call. The Python bindings read it; C++
// programs have none.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/intrusive_ptr.h>

namespace torch_xla::lazy {

struct SourceFrame {
  std::string file;
  int line = 0;
  std::string function;  // qualified: "Net.forward"

  std::string str() const;        // "train.py:12 (Net.forward)"
  std::string short_str() const;  // "forward (train.py:12)", as PyTorch/XLA's debugging tools
};

// Innermost first; frames inside PyTorch and this package are left out.
using SourceFrames = std::vector<SourceFrame>;

// A compiled function of the user's program, or a whole stack of frames.
class Code : public c10::intrusive_ptr_target {
 public:
  virtual SourceFrames frames(int32_t instruction) const = 0;
};

// Frames that have been looked up.
class Stack final : public Code {
 public:
  explicit Stack(SourceFrames frames) : frames_(std::move(frames)) {}
  SourceFrames frames(int32_t) const override { return frames_; }

 private:
  const SourceFrames frames_;
};

// A place in the user's program. frames() and str() look up its file and line.
struct Source {
  c10::intrusive_ptr<const Code> code;
  int32_t instruction = 0;
  uint32_t scope = 0;  // scope_name() has its name

  explicit operator bool() const { return code.defined(); }
  SourceFrames frames() const;  // empty where the place is not known
  std::string str() const;      // the innermost frame; empty where the place is not known
};

// Sets `place`, an empty one, to the place that the calling thread has reached or, in a backward
// pass, whose thread runs no Python, to the place of the forward call. The caller holds the
// GraphLock.
void take_source(Source& place);
// Sets the place of the calls that are recorded from now on; an empty one ends that. The caller
// holds the GraphLock, and keeps it until that end.
void set_place(Source place);
// Returns the innermost frame of that place as text; takes the GraphLock.
std::string source_line();

// Parts of the program that have names, such as modules of a network. A backward pass is in the
// scope of its forward calls.
//
// Sets the scope of what the calling thread records from now on, "" for none, and returns the one
// before. Names are kept: of more than 65,536, the later ones count as none.
std::string set_scope(const std::string& name);
uint32_t scope_number(const std::string& name);
std::string scope_name(uint32_t scope);

// Sets whether take_source() keeps whole stacks of frames from now on.
void keep_stacks(bool keep);

// The Python frames that Hooks::read_source gives a place.
enum class Frames { Innermost, All };

// Returns the frames that the calling thread is in, from the function that was called last of
// PyTorch, of this package or of the user, outwards; none on a thread that runs no Python.
SourceFrames stack_here();

}  // namespace torch_xla::lazy
