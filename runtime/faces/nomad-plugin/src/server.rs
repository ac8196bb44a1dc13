//! The process: it finds the plugin, announces it to Nomad, and serves it until Nomad ends it.

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
use crate::device::{DeviceSide, PluginDevices};
use crate::driver::{DriverSide, DriverTasks};
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

/// Which plugin is served.
#[derive(Clone, Debug)]
pub struct PluginOptions {
    /// Which plugin it is, and where its data lies.
    pub plugin: LoneOptions,
    /// The kind that the plugin must have, where the caller says it.
    pub kind: Option<PluginKind>,
}

/// Why the plugin is not served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Nomad did not start this process, or is gone.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The plugin does not exist, or cannot be used.
    #[error(transparent)]
    Plugin(#[from] LoneError),
    /// The plugin is of another kind than the caller asked for.
    #[error("{name} is a {is} plugin, not a {asked} plugin")]
    Kind {
        /// Name of the plugin.
        name: String,
        /// The kind that the plugin has.
        is: PluginKind,
        /// The kind that the caller asked for.
        asked: PluginKind,
    },
    /// The socket for Nomad cannot be made.
    #[error("cannot make a socket for Nomad: {0}")]
    Socket(#[source] io::Error),
    /// Serving ended with an error.
    #[error("serving Nomad failed: {0}")]
    Serve(#[source] tonic::transport::Error),
}

/// The plugin, and its configuration as Nomad gave it.
pub(crate) struct ServedPlugin {
    /// The plugin as it was found in its catalogue.
    pub found: LonePlugin,
    /// Cancelled when the process shuts down.
    pub left: CancellationToken,
    configured: Mutex<JsonObject>,
    /// The tasks of a driver, opened by the first call that needs them. Nomad asks a plugin who it
    /// is while another process of the plugin may still have the data directory.
    tasks: OnceCell<Arc<DriverTasks>>,
    devices: OnceCell<Arc<PluginDevices>>,
}

impl ServedPlugin {
    /// The tasks of a driver. The first call starts the plugin.
    pub(crate) async fn tasks(&self) -> Result<Arc<DriverTasks>, Status> {
        let begin = async || match self.start_plugin().await? {
            (Plugin::Driver(plugin), live) => {
                let begun = DriverTasks::new(plugin, live, self.found.data_dir());
                begun.map(Arc::new).map_err(|error| {
                    Status::internal(format!("the records of tasks cannot be kept: {error}"))
                })
            }
            (Plugin::Device(_), _) => Err(Status::unimplemented("this is a device plugin")),
        };
        self.tasks.get_or_try_init(begin).await.cloned()
    }

    /// The devices of a device plugin. The first call starts the plugin.
    pub(crate) async fn devices(&self) -> Result<Arc<PluginDevices>, Status> {
        let begin = async || match self.start_plugin().await? {
            (Plugin::Device(plugin), live) => {
                Ok(Arc::new(PluginDevices::follow(Arc::new(plugin), Some(live))))
            }
            (Plugin::Driver(_), _) => Err(Status::unimplemented("this is a driver")),
        };
        self.devices.get_or_try_init(begin).await.cloned()
    }

    async fn start_plugin(&self) -> Result<(Plugin, LivePlugin), Status> {
        let config = self.configured.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let live = self.found.activate(config).await;
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

    /// Leave the tasks to the next process of the plugin, and end what has none.
    async fn leave(&self) {
        let drivers = self.tasks.get().map(|tasks| &tasks.live);
        let devices = self.devices.get().and_then(|devices| devices.live.as_ref());
        for live in drivers.into_iter().chain(devices) {
            live.leave().await;
        }
    }

    /// Take the configuration that Nomad gave. It was checked before.
    pub(crate) fn configure(&self, config: JsonObject) {
        *self.configured.lock().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// A socket in a directory of its own, which is removed with it.
struct SocketDir {
    listener: UnixListener,
    socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl SocketDir {
    fn make() -> io::Result<Self> {
        // Newer versions of Nomad name the directory for the socket.
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

/// Ignore interrupts, and shut down when the process is terminated. A terminal interrupts Nomad and
/// its plugins together, and then Nomad decides whether this process ends.
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

/// Serve one plugin to the Nomad client that executed this process, until the client ends it. It
/// must be called on the control runtime. Tasks go on after the end.
///
/// # Errors
/// See [`ServeError`]; nothing was announced to Nomad then.
pub async fn serve(options: PluginOptions) -> Result<(), ServeError> {
    handshake::expect_nomad()?;
    let found = LonePlugin::find(options.plugin).await?;
    let is = found.described_plugin().manifest().kind;
    if let Some(asked) = options.kind.filter(|asked| *asked != is) {
        let name = found.described_plugin().name().to_string();
        return Err(ServeError::Kind { name, is, asked });
    }
    let SocketDir { listener, socket, _dir } = SocketDir::make().map_err(ServeError::Socket)?;
    let left = CancellationToken::new();
    let configured = Mutex::new(found.configuration(&JsonObject::default()));
    let (tasks, devices) = (OnceCell::new(), OnceCell::new());
    let served = Arc::new(ServedPlugin { found, left: left.clone(), configured, tasks, devices });
    let controls = Controls { left: left.clone() };
    let router = Server::builder()
        .add_service(HealthServer::new(controls.clone()))
        .add_service(GrpcControllerServer::new(controls.clone()))
        .add_service(GrpcStdioServer::new(controls.clone()))
        .add_service(GrpcBrokerServer::new(controls))
        .add_service(BasePluginServer::new(Base { served: Arc::clone(&served) }));
    let of_kind = Arc::clone(&served);
    let router = match is {
        PluginKind::Driver => router.add_service(DriverServer::new(DriverSide { served: of_kind })),
        PluginKind::Device => {
            router.add_service(DevicePluginServer::new(DeviceSide { served: of_kind }))
        }
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
    let end = tokio::select! {
        end = serving => end.map_err(ServeError::Serve),
        () = late => Ok(()),
    };
    served.leave().await;
    end
}
