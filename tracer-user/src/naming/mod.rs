//! naming.
