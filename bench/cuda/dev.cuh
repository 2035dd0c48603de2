// The machine's primitives are the engine's.
#pragma once
#include "../../crates/engine/src/cuda/kernels/dev.cuh"
