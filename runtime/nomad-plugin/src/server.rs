//! The process: found, announced, served until Nomad says that it is over.

use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::OnceCell;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::transport::Server;

use crate::base::Base;
use crate::controls::Controls;
use crate::device::{DeviceSide, Devices};
use crate::driver::{DriverSide, Tasks};
use crate::handshake::{self, HandshakeError};
use crate::proto::base::base_plugin_server::BasePluginServer;
use crate::proto::device::device_plugin_server::DevicePluginServer;
use crate::proto::driver::driver_server::DriverServer;
use crate::proto::goplugin::grpc_broker_server::GrpcBrokerServer;
use crate::proto::goplugin::grpc_controller_server::GrpcControllerServer;
use crate::proto::goplugin::grpc_stdio_server::GrpcStdioServer;
use crate::proto::health::health_server::HealthServer;
use ostler_agent::alone::{LivePlugin, LoneError, LoneOptions, LonePlugin};
use ostler_model::causes;
use ostler_model::clock;
use ostler_model::json::JsonObject;
use ostler_model::limits::NOMAD_PLUGIN_LEAVE_WALL;
use ostler_model::plugin::PluginKind;
use ostler_plugin::Plugin;

/// What is served.
#[derive(Clone, Debug)]
pub struct PluginOptions {
    /// Which plugin, and where it lives.
    pub plugin: LoneOptions,
    /// What it is expected to be, where that is said.
    pub kind: Option<PluginKind>,
}

/// Why nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nomad is not there.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// There is no such plugin, or it cannot be used.
    #[error(transparent)]
    Plugin(#[from] LoneError),
    /// A driver was asked for, and it is a device plugin, or the other way round.
    #[error("{name} is a {is} plugin, not a {asked} plugin")]
    Kind {
        /// The plugin.
        name: String,
        /// What it is.
        is: PluginKind,
        /// What was asked for.
        asked: PluginKind,
    },
    /// The socket cannot be made.
    #[error("cannot make a socket for Nomad: {0}")]
    Socket(#[source] io::Error),
    /// Serving ended.
    #[error("serving Nomad failed: {0}")]
    Serve(#[source] tonic::transport::Error),
}

/// The plugin, and what Nomad said of it.
pub(crate) struct Served {
    /// As it was found.
    pub found: LonePlugin,
    /// The process leaves.
    pub left: CancellationToken,
    configured: Mutex<JsonObject>,
    /// With the first call that is about what runs: Nomad asks a plugin who it is while another process
    /// of it may still have the data directory.
    tasks: OnceCell<Arc<Tasks>>,
    devices: OnceCell<Arc<Devices>>,
}

impl Served {
    /// The tasks of a driver.
    pub(crate) async fn tasks(&self) -> Result<Arc<Tasks>, Status> {
        let begin = async || match self.live().await? {
            (Plugin::Driver(plugin), live) => {
                let begun = Tasks::new(plugin, live, self.found.data_dir());
                begun.map(Arc::new).map_err(|error| {
                    Status::internal(format!("the records of tasks cannot be kept: {error}"))
                })
            }
            (Plugin::Device(_), _) => Err(Status::unimplemented("this is a device plugin")),
        };
        self.tasks.get_or_try_init(begin).await.cloned()
    }

    /// The devices of a device plugin.
    pub(crate) async fn devices(&self) -> Result<Arc<Devices>, Status> {
        let begin = async || match self.live().await? {
            (Plugin::Device(plugin), live) => {
                Ok(Arc::new(Devices::follow(Arc::new(plugin), Some(live))))
            }
            (Plugin::Driver(_), _) => Err(Status::unimplemented("this is a driver")),
        };
        self.devices.get_or_try_init(begin).await.cloned()
    }

    async fn live(&self) -> Result<(Plugin, LivePlugin), Status> {
        let config = self.configured.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let live = self.found.live(config).await;
        let (plugin, live) = live.map_err(|error| {
            let text = causes::chain(&error);
            tracing::error!("{text}");
            Status::failed_precondition(text)
        })?;
        for notice in &live.notices {
            tracing::warn!("{notice}");
        }
        Ok((plugin, live))
    }

    /// Nomad gave a configuration, which fits.
    pub(crate) fn configure(&self, config: JsonObject) {
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// A socket in a directory of its own, which goes with it.
struct Place {
    listener: UnixListener,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Place {
    fn make() -> io::Result<Self> {
        // Newer Nomads name a directory for it.
        let parent = std::env::var_os("PLUGIN_UNIX_SOCKET_DIR").filter(|dir| !dir.is_empty());
        let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
        let owner = std::fs::Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new()
            .prefix("ostler-plugin-")
            .permissions(owner)
            .tempdir_in(parent)?;
        let socket = dir.path().join("grpc");
        Ok(Self { listener: UnixListener::bind(&socket)?, socket, _dir: dir })
    }
}

/// A terminal interrupts Nomad and its plugins together: Nomad says then whether this one ends. Whoever
/// terminates this process alone means it.
fn heed_signals(left: &CancellationToken) -> io::Result<()> {
    let mut interrupted = signal(SignalKind::interrupt())?;
    let mut terminated = signal(SignalKind::terminate())?;
    let left = left.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                Some(()) = interrupted.recv() => {}
                _ = terminated.recv() => break left.cancel(),
            }
        }
    });
    Ok(())
}

/// Serve one plugin to the Nomad client that executed this process, until it says that it is over. To be
/// called on the control runtime. Tasks go on.
///
/// # Errors
/// See [`ServeError`]; nothing was announced to Nomad then.
pub async fn serve(options: PluginOptions) -> Result<(), ServeError> {
    handshake::expect_nomad()?;
    let found = LonePlugin::find(options.plugin).await?;
    let is = found.described().manifest().kind;
    if let Some(asked) = options.kind.filter(|asked| *asked != is) {
        let name = found.described().name().to_string();
        return Err(ServeError::Kind { name, is, asked });
    }
    let Place { listener, socket, _dir } = Place::make().map_err(ServeError::Socket)?;
    let left = CancellationToken::new();
    let configured = Mutex::new(found.configuration(&JsonObject::default()));
    let (tasks, devices) = (OnceCell::new(), OnceCell::new());
    let served = Arc::new(Served { found, left: left.clone(), configured, tasks, devices });
    let controls = Controls { left: left.clone() };
    let router = Server::builder()
        .add_service(HealthServer::new(controls.clone()))
        .add_service(GrpcControllerServer::new(controls.clone()))
        .add_service(GrpcStdioServer::new(controls.clone()))
        .add_service(GrpcBrokerServer::new(controls))
        .add_service(BasePluginServer::new(Base { served: Arc::clone(&served) }));
    let router = match is {
        PluginKind::Driver => router.add_service(DriverServer::new(DriverSide { served })),
        PluginKind::Device => router.add_service(DevicePluginServer::new(DeviceSide { served })),
    };
    heed_signals(&left).map_err(ServeError::Socket)?;
    handshake::announce(&socket)?;
    let serving = router.serve_with_incoming_shutdown(
        UnixListenerStream::new(listener),
        left.clone().cancelled_owned(),
    );
    let late = async {
        left.cancelled().await;
        clock::sleep(NOMAD_PLUGIN_LEAVE_WALL).await;
    };
    tokio::select! {
        served = serving => served.map_err(ServeError::Serve),
        () = late => Ok(()),
    }
}
