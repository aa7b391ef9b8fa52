//! cudatrace, the user half.
