// Schema positions of torch_xla::attention and attention_backward, which share their rules' code.
#pragma once

#include <cstddef>

namespace torch_xla::ops {

struct AttentionArguments {
  size_t query, key, value, mask, keep, dropout_p, is_causal, scale;
  size_t grad = 0, output = 0, logsumexp = 0, mask_grad = 0;  // of the backward call
};

inline constexpr AttentionArguments kAttentionForward = {.query = 0,
                                                         .key = 1,
                                                         .value = 2,
                                                         .mask = 3,
                                                         .keep = 4,
                                                         .dropout_p = 5,
                                                         .is_causal = 6,
                                                         .scale = 7};
inline constexpr AttentionArguments kAttentionBackward = {.query = 1,
                                                          .key = 2,
                                                          .value = 3,
                                                          .mask = 6,
                                                          .keep = 7,
                                                          .dropout_p = 8,
                                                          .is_causal = 9,
                                                          .scale = 10,
                                                          .grad = 0,
                                                          .output = 4,
                                                          .logsumexp = 5,
                                                          .mask_grad = 11};

}  // namespace torch_xla::ops
