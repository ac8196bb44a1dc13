//! The way to a server, step by step, each with its deadline.
//!
//! ```text
//! resolve ─► connect ─► secure (0x04, TLS) ─► begin (0x06) ─► Session
//! ```

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ostler_model::clock;
use ostler_model::limits::CLUSTER_STEP_WALL_DEFAULT;
use ostler_model::ports::BoxFuture;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::compat::TokioAsyncReadCompatExt;

use super::client::ServerDoor;
use super::session::{Arrivals, MULTIPLEX, Session};
use super::tls::ServerTls;
use ostler_model::server_address::ServerAddress;

/// First byte of a connection: TLS follows.
pub const TLS: u8 = 4;

/// Why a server cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// Its name stands for no address.
    #[error("the name {host} cannot be resolved")]
    Name {
        /// The name.
        host: String,
        /// Why.
        source: io::Error,
    },
    /// Nobody takes a connection there.
    #[error("cannot connect to {at}")]
    Connect {
        /// Where.
        at: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// TLS was not agreed on.
    #[error("TLS was not agreed on")]
    Tls(#[source] io::Error),
    /// The connection ended at once.
    #[error("the connection ended")]
    Ended(#[source] io::Error),
    /// There is none to try.
    #[error("no server is given")]
    NoServer,
    /// A step took too long.
    #[error("{step} took longer than {} s", wall.as_secs())]
    Late {
        /// What was tried.
        step: &'static str,
        /// How long was waited.
        wall: Duration,
    },
}

/// A connection, with TLS or without.
pub trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// Servers over TCP, with TLS where they want it.
#[derive(Clone, Debug)]
pub struct TcpDoor {
    /// How they are spoken to.
    pub tls: Option<ServerTls>,
}

impl ServerDoor for TcpDoor {
    fn dial<'a>(
        &'a self,
        to: &'a ServerAddress,
    ) -> BoxFuture<'a, Result<(Session, Arrivals), DialError>> {
        Box::pin(async move {
            let wall = CLUSTER_STEP_WALL_DEFAULT;
            let addresses = resolve(to, wall).await?;
            let stream = connect(&addresses, wall).await?;
            let socket: Box<dyn Socket> = match &self.tls {
                None => Box::new(stream),
                Some(tls) => secure(stream, tls, wall).await?,
            };
            begin(socket, wall).await
        })
    }
}

/// The addresses a server's name stands for, at least one.
///
/// # Errors
/// When it stands for none, or nobody says so in time.
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

/// Connect to the first of these addresses that takes it.
///
/// # Errors
/// What the last one said, when none does.
pub async fn connect(to: &[SocketAddr], wall: Duration) -> Result<TcpStream, DialError> {
    let mut last = DialError::Late { step: "connecting", wall };
    for at in to {
        last = match clock::timeout(wall, TcpStream::connect(at)).await {
            None => DialError::Late { step: "connecting", wall },
            Some(Err(source)) => DialError::Connect { at: *at, source },
            Some(Ok(stream)) => {
                // A request is a few small writes; each would wait for the last one's acknowledgement.
                stream.set_nodelay(true).map_err(DialError::Ended)?;
                return Ok(stream);
            }
        };
    }
    Err(last)
}

/// Agree on TLS.
///
/// # Errors
/// When the server has no TLS, is not who it should be, or does not take this node's certificate.
pub async fn secure(
    mut stream: TcpStream,
    tls: &ServerTls,
    wall: Duration,
) -> Result<Box<dyn Socket>, DialError> {
    let agreed = async {
        stream.write_all(&[TLS]).await?;
        tls.connector.connect(tls.name.clone(), stream).await
    };
    let agreed = clock::timeout(wall, agreed).await;
    let secured = agreed.ok_or(DialError::Late { step: "agreeing on TLS", wall })?;
    Ok(Box::new(secured.map_err(DialError::Tls)?))
}

/// Begin a session.
///
/// # Errors
/// When the connection has ended.
pub async fn begin(
    mut socket: Box<dyn Socket>,
    wall: Duration,
) -> Result<(Session, Arrivals), DialError> {
    let told = clock::timeout(wall, async {
        socket.write_all(&[MULTIPLEX]).await?;
        socket.flush().await
    });
    let told = told.await.ok_or(DialError::Late { step: "beginning a session", wall })?;
    told.map_err(DialError::Ended)?;
    Ok(Session::drive(socket.compat(), false))
}
