// Where the user's program is, for error texts and debug flags. The Python bindings supply it; C++
// programs have none.
#pragma once

#include <string>
#include <vector>

namespace torch_xla::util {

struct SourceFrame {
  std::string file;
  int line = 0;
  std::string function;  // qualified: "Net.forward"

  std::string str() const;  // "train.py:12 (Net.forward)"
};

// Innermost first; frames inside PyTorch and this package are left out.
using SourceFrames = std::vector<SourceFrame>;

// The frames of the calling thread, at most `max_frames`; empty on a thread that runs no Python.
SourceFrames source_frames(size_t max_frames);
// The innermost one as text; empty where there is none.
std::string source_line();

void set_source_provider(SourceFrames (*provider)(size_t max_frames));

}  // namespace torch_xla::util
