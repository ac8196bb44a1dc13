//! The guests of `examples/`, compiled by the build script of this crate.
//!
//! The built-in plugins are embedded as bytes, so that an installed `ostler` is one file. Tests
//! reach all other guests as files through `fixtures` (cargo feature of the same name). Start at
//! `build.rs`.

/// A compiled guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guest {
    /// Name of its crate in `examples/plugins`, for example `driver-wasm`.
    pub name: &'static str,
    /// The component.
    pub bytes: &'static [u8],
    /// Its code, compiled when this program was built (`ostler_engine::ahead`); empty where that was
    /// done on a machine of another architecture.
    pub code: &'static [u8],
}

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(Guest {
            name: $name,
            bytes: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".wasm")),
            code: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".code")),
        }),*]
    };
}

/// The plugins every agent has without configuration: drivers first, then device plugins.
pub fn builtin_plugins() -> &'static [Guest] {
    embedded![
        "driver-wasm",
        "driver-exec",
        "driver-raw-exec",
        "driver-mock",
        "device-files",
        "device-pci",
        "device-usb",
        "device-hwmon",
        "device-nvidia",
        "device-mock",
    ]
}

/// Paths of guests that tests run. Valid on the machine that compiled them.
#[cfg(feature = "fixtures")]
pub mod fixtures {
    /// Where cargo compiled the guests: what else is compiled for WebAssembly finds the SDK there.
    pub const TARGET_DIR: &str = env!("OSTLER_GUESTS_TARGET");

    macro_rules! paths {
        ($($(#[$doc:meta])* $constant:ident = $name:literal;)*) => {
            $($(#[$doc])* pub const $constant: &str =
                concat!(env!("OUT_DIR"), "/", $name, ".wasm");)*
            /// All of them.
            pub const ALL: &[&str] = &[$($constant),*];
        };
    }

    paths! {
        /// Driver `wasm`.
        DRIVER_WASM = "driver-wasm";
        /// Driver `exec`.
        DRIVER_EXEC = "driver-exec";
        /// Driver `raw_exec`.
        DRIVER_RAW_EXEC = "driver-raw-exec";
        /// Driver `mock_driver`.
        DRIVER_MOCK = "driver-mock";
        /// Device plugin `files`.
        DEVICE_FILES = "device-files";
        /// Device plugin `pci`.
        DEVICE_PCI = "device-pci";
        /// Device plugin `usb`.
        DEVICE_USB = "device-usb";
        /// Device plugin `hwmon`.
        DEVICE_HWMON = "device-hwmon";
        /// Device plugin `nvidia`.
        DEVICE_NVIDIA = "device-nvidia";
        /// Device plugin `mock_device`: devices and faults as its script says.
        DEVICE_MOCK = "device-mock";
        /// Task that greets and shows its devices (component).
        HELLO = "hello";
        /// Task that greets and exits with a code (core module, WASI preview 1).
        HELLO_P1 = "hello-p1";
        /// Task that serves a key-value store over TCP (component).
        KV_SERVER = "kv-server";
        /// Task with small commands for tests (component).
        TOOLBOX = "toolbox";
        /// The same as a core module of WASI preview 1.
        TOOLBOX_P1 = "toolbox-p1";
        /// Device plugin that misbehaves as its configuration says.
        HOSTILE_DEVICE = "hostile-device";
        /// Device plugin that tries paths and commands beyond its grants.
        HOSTILE_BURGLAR = "hostile-burglar";
        /// WASM task that tries to get out or to take the node with it (component).
        HOSTILE_TASK = "hostile-task";
        /// The same as a core module of WASI preview 1.
        HOSTILE_TASK_P1 = "hostile-task-p1";
        /// Driver that misbehaves as its configuration says.
        HOSTILE_DRIVER = "hostile-driver";
        /// Component of a world that is not ours.
        HOSTILE_OTHER_WORLD = "hostile-other-world";
        /// Driver that imports sockets, which nobody grants.
        HOSTILE_WANTS_SOCKETS = "hostile-wants-sockets";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `\0asm`, then version 13 and layer 1: a component, not a core module.
    const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

    #[test]
    fn every_builtin_plugin_is_a_component() {
        for plugin in builtin_plugins() {
            assert!(plugin.bytes.starts_with(COMPONENT), "{}", plugin.name);
        }
    }

    #[cfg(feature = "fixtures")]
    #[test]
    fn every_fixture_is_there_and_only_the_preview_1_tasks_are_core_modules() {
        for path in fixtures::ALL {
            let bytes = std::fs::read(path).unwrap_or_default();
            assert!(bytes.starts_with(b"\0asm"), "{path}");
            assert_eq!(!bytes.starts_with(COMPONENT), path.ends_with("-p1.wasm"), "{path}");
        }
    }
}
