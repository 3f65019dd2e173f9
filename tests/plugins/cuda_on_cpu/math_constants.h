#pragma once
#include "cuda_on_cpu.hpp"
#define CUDART_INF_F __int_as_float(0x7f800000)
