//! aggregate.
