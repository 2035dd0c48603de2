#!/bin/bash
# All emulator tests (no GPU): bash emu.sh, a few minutes; bash emu.sh 1 for more of the solves on chip.
cd "$(dirname "$0")"; for t in emu_onchip emu_anderson emu_ode emu_wgrad emu_fourier emu_fourier2; do nice g++ -O2 -std=c++17 -march=native -w -I . -o /tmp/$t $t.cpp && nice /tmp/$t $1; done
