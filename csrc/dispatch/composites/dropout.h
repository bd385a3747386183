// Dropout as one operator forward and one backward.
#pragma once

namespace torch_xla::dispatch {

void register_dropout();

}  // namespace torch_xla::dispatch
