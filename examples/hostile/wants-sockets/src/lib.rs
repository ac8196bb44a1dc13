//! A driver that would call home: it imports `wasi:sockets`, which no driver is granted by itself.
//!
//! Its task's `address` is where it calls; the start never succeeds, and the reason says how far it
//! came and which variables of the agent it sees.

use std::net::TcpStream;

use ostler_sdk::driver::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Config {
    address: String,
}

struct WantsSockets;

impl Driver for WantsSockets {
    type Runs = Polled<1000>;

    fn describe() -> DriverInfo {
        DriverInfo::new("wants-sockets", env!("CARGO_PKG_VERSION"))
            .task_config_schema(r#"{"type": "object"}"#)
    }

    fn start(task: TaskConfig) -> Result<Started> {
        let config: Config = task.parse()?;
        let reached = match TcpStream::connect(&config.address) {
            Ok(_) => "connected".to_owned(),
            Err(error) => format!("not connected: {error}"),
        };
        let mut seen: Vec<String> = std::env::vars().map(|(name, _)| name).collect();
        seen.sort();
        Err(Error::fatal(format!("{reached}; sees [{}]", seen.join(" "))))
    }
}

ostler_sdk::export_driver!(WantsSockets);
