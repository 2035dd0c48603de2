#!/bin/bash
# All emulator tests (no GPU): bash emu.sh; about 5 minutes.
cd "$(dirname "$0")"; for t in emu_dense emu_wgrad emu_fourier emu_fourier2 emu_wg emu_conv; do nice g++ -O2 -std=c++17 -march=native -w -o /tmp/$t $t.cpp && nice /tmp/$t $1; done
