//! Code generated from the WIT of the contract.
//!
//! One crate offers both worlds: the section that says what a component exports is emitted by
//! the export macro, in the plugin's crate, so that only the world in use reaches the file. The
//! device world reuses the types and imports of the driver world.
#![allow(
    missing_docs,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::allow_attributes_without_reason,
    clippy::panic,
    reason = "generated code"
)]

pub mod driver {
    wit_bindgen::generate!({
        path: "wit/since-0.1",
        world: "ostler:plugin/driver-plugin",
        pub_export_macro: true,
        default_bindings_module: "ostler_sdk::bindings::driver",
        runtime_path: "ostler_sdk::wit_bindgen::rt",
        additional_derives: [PartialEq],
        generate_unused_types: true,
    });
}

pub mod device {
    wit_bindgen::generate!({
        path: "wit/since-0.1",
        world: "ostler:plugin/device-plugin",
        pub_export_macro: true,
        default_bindings_module: "ostler_sdk::bindings::device",
        runtime_path: "ostler_sdk::wit_bindgen::rt",
        additional_derives: [PartialEq],
        with: {
            "ostler:plugin/types@0.1.0": crate::bindings::driver::ostler::plugin::types,
            "ostler:plugin/log@0.1.0": crate::bindings::driver::ostler::plugin::log,
            "ostler:plugin/config@0.1.0": crate::bindings::driver::ostler::plugin::config,
            "ostler:plugin/clock@0.1.0": crate::bindings::driver::ostler::plugin::clock,
            "ostler:plugin/random@0.1.0": crate::bindings::driver::ostler::plugin::random,
            "ostler:plugin/command@0.1.0": crate::bindings::driver::ostler::plugin::command,
        },
    });
}
