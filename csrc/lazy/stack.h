// The calling thread's whole Python stack, for reports of what a program did there. Source
// (lazy/source.h) is the user's place alone.
#pragma once

#include "lazy/source.h"

namespace torch_xla::lazy {

// Returns the frames that the calling thread is in, from the function that was called last of
// PyTorch, of this package or of the user, outwards; none on a thread that runs no Python.
SourceFrames stack_here();

// Sets the function that reads them.
using StackReader = SourceFrames (*)();
void set_stack_reader(StackReader reader);

}  // namespace torch_xla::lazy
