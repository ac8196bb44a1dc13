//! `ostler:plugin@0.1.0`.

/// World `driver-plugin`: every host interface, and the `driver` export.
#[allow(missing_docs, clippy::all, reason = "generated from wit/, where the documentation is")]
pub mod driver_world {
    wasmtime::component::bindgen!({
        path: "../../../wit/since-0.1",
        world: "driver-plugin",
        imports: { default: async | trappable },
        exports: { default: async },
        // Arguments and answers of recorded calls are kept as they are.
        additional_derives: [serde::Serialize, serde::Deserialize],
    });
}

/// World `device-plugin`. Shares its host interfaces with [`driver_world`].
#[allow(missing_docs, clippy::all, reason = "generated from wit/, where the documentation is")]
pub mod device_world {
    wasmtime::component::bindgen!({
        path: "../../../wit/since-0.1",
        world: "device-plugin",
        imports: { default: async | trappable },
        exports: { default: async },
        // Arguments and answers of recorded calls are kept as they are.
        additional_derives: [serde::Serialize, serde::Deserialize],
        with: {
            "ostler:plugin/types@0.1.0": super::driver_world::ostler::plugin::types,
            "ostler:plugin/log@0.1.0": super::driver_world::ostler::plugin::log,
            "ostler:plugin/config@0.1.0": super::driver_world::ostler::plugin::config,
            "ostler:plugin/clock@0.1.0": super::driver_world::ostler::plugin::clock,
            "ostler:plugin/random@0.1.0": super::driver_world::ostler::plugin::random,
            "ostler:plugin/command@0.1.0": super::driver_world::ostler::plugin::command,
        },
    });
}

pub use device_world::exports::ostler::plugin::device as device_export;
pub use driver_world::exports::ostler::plugin::driver as driver_export;
pub use driver_world::ostler::plugin as host;
