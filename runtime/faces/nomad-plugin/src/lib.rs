//! A driver or device plugin of Ostler as an external plugin of a stock Nomad client.
//!
//! ```text
//! Nomad ─ executes the file ─► handshake: cookie, one line ─► gRPC on a unix socket
//!                                                               ├ controls: health, shutdown, streams
//!                                                               ├ base: who it is, schema, configuration
//!                                                               ├ driver ─► tasks ─► Driver, Workloads
//!                                                               └ device ─► DeviceSource
//! ```
//! A component is called and restricted as in an agent: with the same catalogue, trust, grants,
//! sandbox, supervisors and workers (`ostler_agent::alone`). Nothing here reads a configuration
//! file or an argument. Start with [`serve`].

mod base;
mod controls;
mod device;
mod driver;
pub mod fuzz;
mod handshake;
mod schema;
mod server;
mod values;

pub use handshake::{COOKIE, HandshakeError, is_called_by_nomad};
pub use server::{PluginOptions, ServeError, serve};

/// The types and services that are generated from `proto/`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    clippy::indexing_slicing,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
mod proto {
    pub(crate) mod health {
        tonic::include_proto!("grpc.health.v1");
    }
    pub(crate) mod goplugin {
        tonic::include_proto!("plugin");
    }
    pub(crate) mod hashicorp {
        pub(crate) mod nomad {
            pub(crate) mod plugins {
                pub(crate) mod base {
                    pub(crate) mod proto {
                        tonic::include_proto!("hashicorp.nomad.plugins.base.proto");
                    }
                }
                pub(crate) mod device {
                    tonic::include_proto!("hashicorp.nomad.plugins.device");
                }
                pub(crate) mod drivers {
                    pub(crate) mod proto {
                        tonic::include_proto!("hashicorp.nomad.plugins.drivers.proto");
                    }
                }
                pub(crate) mod shared {
                    pub(crate) mod structs {
                        tonic::include_proto!("hashicorp.nomad.plugins.shared.structs");
                    }
                    pub(crate) mod hclspec {
                        tonic::include_proto!("hashicorp.nomad.plugins.shared.hclspec");
                    }
                }
            }
        }
    }
    pub(crate) use hashicorp::nomad::plugins::base::proto as base;
    pub(crate) mod rpc {
        tonic::include_proto!("google.rpc");
    }
    pub(crate) use hashicorp::nomad::plugins::device;
    pub(crate) use hashicorp::nomad::plugins::drivers::proto as driver;
    pub(crate) use hashicorp::nomad::plugins::shared::{hclspec, structs};
}
