//! Arrays and fused equilibrium operations: all the unsafe code of the workspace, nothing else.
