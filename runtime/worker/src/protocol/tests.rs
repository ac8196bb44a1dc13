//! The bytes of version 1.
