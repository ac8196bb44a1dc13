//! Connects to a server, step by step, each with its deadline.
//!
//! ```text
//! resolve ─► connect ─► secure (0x04, TLS) ─► start_session (0x06) ─► ClusterSession
//! ```

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ostler_model::clock;
use ostler_model::limits::CLUSTER_STEP_WALL_DEFAULT;
use ostler_model::ports::BoxFuture;
use ostler_net::Stream;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::client::ServerDoor;
use super::session::{Arrivals, ClusterSession, MULTIPLEX};
use super::tls::ServerTls;
use ostler_model::server_address::ServerAddress;

/// The first byte of a connection on which TLS follows.
pub const TLS: u8 = 4;

/// Why a server cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The name of the server cannot be resolved.
    #[error("the name {host} cannot be resolved")]
    Name {
        /// The name of the server.
        host: String,
        /// The error of the resolver.
        source: io::Error,
    },
    /// No server accepts a connection there.
    #[error("cannot connect to {at}")]
    Connect {
        /// The address and port that were tried.
        at: SocketAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// TLS was not agreed on.
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
    /// The connection ended before the session began.
    #[error("the connection ended")]
    Ended(#[source] io::Error),
    /// There is no server to try.
    #[error("no server is given")]
    NoServer,
    /// A step took too long.
    #[error("{step} took longer than {} s", wall.as_secs())]
    Late {
        /// The step that was tried.
        step: &'static str,
        /// How long the step was given.
        wall: Duration,
    },
}

/// Servers over TCP, with TLS where they want it.
#[derive(Clone, Debug)]
pub struct TcpDoor {
    /// The TLS to use; none for none.
    pub tls: Option<ServerTls>,
}

impl ServerDoor for TcpDoor {
    fn dial<'a>(
        &'a self,
        to: &'a ServerAddress,
    ) -> BoxFuture<'a, Result<(ClusterSession, Arrivals), DialError>> {
        Box::pin(async move {
            let wall = CLUSTER_STEP_WALL_DEFAULT;
            let addresses = resolve(to, wall).await?;
            let stream = connect(&addresses, wall).await?;
            let socket: Box<dyn Stream> = match &self.tls {
                None => Box::new(stream),
                Some(tls) => secure(stream, tls, wall).await?,
            };
            start_session(socket, wall).await
        })
    }
}

/// Resolve the name of a server. There is at least one address.
///
/// # Errors
/// When the name has no address, or the resolver does not answer in time.
pub async fn resolve(to: &ServerAddress, wall: Duration) -> Result<Vec<SocketAddr>, DialError> {
    let name = |source| DialError::Name { host: to.host.clone(), source };
    let found = clock::timeout(wall, tokio::net::lookup_host((to.host.as_str(), to.port))).await;
    let found = found.ok_or(DialError::Late { step: "looking up its name", wall })?;
    let found: Vec<_> = found.map_err(name)?.collect();
    if found.is_empty() {
        return Err(name(io::Error::new(io::ErrorKind::NotFound, "it has no address")));
    }
    Ok(found)
}

/// Connect to the first of these addresses that accepts a connection.
///
/// # Errors
/// The error of the last address, when none accepts.
pub async fn connect(to: &[SocketAddr], wall: Duration) -> Result<TcpStream, DialError> {
    let mut last = DialError::Late { step: "connecting", wall };
    for at in to {
        last = match clock::timeout(wall, TcpStream::connect(at)).await {
            None => DialError::Late { step: "connecting", wall },
            Some(Err(source)) => DialError::Connect { at: *at, source },
            Some(Ok(stream)) => {
                // A request is a few small writes. Each would wait for the acknowledgement of the
                // one before.
                stream.set_nodelay(true).map_err(DialError::Ended)?;
                return Ok(stream);
            }
        };
    }
    Err(last)
}

/// Send the byte for TLS and do the handshake.
///
/// # Errors
/// When the server has no TLS, has the wrong certificate, or refuses the certificate of this node.
pub async fn secure(
    mut stream: TcpStream,
    tls: &ServerTls,
    wall: Duration,
) -> Result<Box<dyn Stream>, DialError> {
    let agreed = async {
        stream.write_all(&[TLS]).await?;
        tls.connector.connect(tls.name.clone(), stream).await
    };
    let agreed = clock::timeout(wall, agreed).await;
    let secured = agreed.ok_or(DialError::Late { step: "the TLS handshake", wall })?;
    Ok(Box::new(secured.map_err(DialError::Tls)?))
}

/// Begin a session on a connection.
///
/// # Errors
/// When the connection has ended.
pub async fn start_session(
    mut socket: Box<dyn Stream>,
    wall: Duration,
) -> Result<(ClusterSession, Arrivals), DialError> {
    let told = clock::timeout(wall, async {
        socket.write_all(&[MULTIPLEX]).await?;
        socket.flush().await
    });
    let told = told.await.ok_or(DialError::Late { step: "beginning a session", wall })?;
    told.map_err(DialError::Ended)?;
    Ok(ClusterSession::drive(socket.compat(), false))
}
