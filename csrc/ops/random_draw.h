// Draws random numbers inside a program: bits that are a pure function of a seed and of an
// element's position, and distributions made from these bits.
#pragma once

#include "hlo/ops.h"

namespace torch_xla::ops::draw {

// Gives 64 random bits for each element, as two ui32 words: Philox2x32-10 of (seed, position,
// stream). `stream` separates several draws from one seed.
//
// It is written in elementwise operations rather than with stablehlo.rng_bit_generator: it fuses
// into what uses it (a dropout mask of a million elements takes 1.1 ms on two cores, 114 ms through
// the operation's PHILOX and 2.3 ms through its THREE_FRY), gives the same numbers on every
// target, and does not change with the sharding of the result.
struct Words {
  hlo::Value first, second;
};
Words words(const hlo::Value& seed, const hlo::Dims& dims, int stream = 0);
// Gives the same bits as one ui64.
hlo::Value word64(const hlo::Value& seed, const hlo::Dims& dims, int stream = 0);

// Below, `type` is f32 or f64.

// In [0, 1), on the grid of 2^-24 (f32) or 2^-53 (f64).
hlo::Value uniform(const hlo::Value& seed, const hlo::Type& type, int stream = 0);
// In (0, 1], with finer steps towards zero; for logarithms.
hlo::Value positive_uniform(const hlo::Value& seed, const hlo::Type& type, int stream = 0);
// Mean 0 and deviation 1, in f32 with tails to 6.3 deviations and a relative error of 4e-7.
hlo::Value normal(const hlo::Value& seed, const hlo::Type& type, int stream = 0);
// Rate 1; never zero.
hlo::Value exponential(const hlo::Value& seed, const hlo::Type& type, int stream = 0);
// Location 0 and scale 1.
hlo::Value cauchy(const hlo::Value& seed, const hlo::Type& type, int stream = 0);

// True with this probability (0-dim f64), to 31 bits.
hlo::Value bernoulli(const hlo::Value& seed, const hlo::Dims& dims, const hlo::Value& probability);
// Signed 64-bit integers in [0, range); range 0 means all 2^64 values.
hlo::Value integers(const hlo::Value& seed, const hlo::Dims& dims, uint64_t range);

}  // namespace torch_xla::ops::draw
