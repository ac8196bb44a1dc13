//! A driver that would call home: it imports `wasi:sockets`, which no driver is granted.

use std::net::TcpStream;

use ostler_sdk::driver::prelude::*;

struct WantsSockets;

impl Driver for WantsSockets {
    type Runs = Polled<1000>;

    fn describe() -> DriverInfo {
        DriverInfo::new("wants-sockets", env!("CARGO_PKG_VERSION"))
            .task_config_schema(r#"{"type": "object"}"#)
    }

    fn start(task: TaskConfig) -> Result<Started> {
        match TcpStream::connect("192.0.2.1:80") {
            Ok(_) => Started::new::<Self>(task.id),
            Err(error) => Err(Error::recoverable(error.to_string())),
        }
    }
}

ostler_sdk::export_driver!(WantsSockets);
