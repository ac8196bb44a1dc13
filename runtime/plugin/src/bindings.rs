//! Bindings generated from `wit/`, one frozen module per released interface version.
//!
//! A component built against an older version keeps its own module and an adapter that converts
//! upward; only [`crate::driver`] and [`crate::device`] use these types.

#[path = "bindings_since_0_1.rs"]
pub mod since_0_1;
