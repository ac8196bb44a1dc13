//! Bindings generated from `wit/`, one frozen module per released interface version.
//!
//! A component that was built against an older version keeps its own module, and an adapter that
//! converts upward. Only [`crate::driver`] and [`crate::device`] use these types.

#[path = "bindings_since_0_1.rs"]
pub mod since_0_1;
