// How solves on chip end, as the other solves do.
#pragma once
#include "dev.cuh"

// As in common.cuh.
enum OnchipOutcome : uint32_t { ONCHIP_CONVERGED = 0, ONCHIP_ITERATION_LIMIT = 1, ONCHIP_STAGNATED = 2, ONCHIP_NOT_FINITE = 3 };
struct OnchipReport {
  uint32_t iterations, outcome;
  double residual;
};
// PATIENCE and ROUNDING_LEVEL of solve.cuh.
constexpr int ONCHIP_PATIENCE = 12;
constexpr float ONCHIP_ROUNDING = 1000.0f * FLT_EPSILON;
