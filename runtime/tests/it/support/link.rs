//! A way between a node and its servers that can be cut, held silent or slow.

use std::net::Ipv4Addr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What comes of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Open,
    /// Connections end, and new ones end at once.
    Cut,
    /// Connections stand, and nothing arrives: neither side hears that the other one is gone.
    Silent,
    /// Every piece comes so much later.
    Slow(Duration),
}

/// See the module. It goes with this.
pub struct Link {
    pub port: u16,
    way: watch::Sender<Way>,
    target: watch::Sender<u16>,
}

impl Link {
    pub async fn new() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (way, target) = (watch::Sender::new(Way::Open), watch::Sender::new(0));
        tokio::spawn(accept(listener, way.subscribe(), target.subscribe()));
        Self { port, way, target }
    }

    /// To a port on loopback, from now on.
    pub fn to(&self, port: u16) {
        self.target.send_replace(port);
    }

    pub fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn accept(
    listener: TcpListener,
    mut way: watch::Receiver<Way>,
    target: watch::Receiver<u16>,
) {
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.unwrap().0,
            // The link is gone.
            changed = way.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        let (way, port) = (way.clone(), *target.borrow());
        tokio::spawn(async move {
            if *way.borrow() == Way::Cut {
                return;
            }
            let Ok(far) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await else { return };
            let (near_reads, near_writes) = stream.into_split();
            let (far_reads, far_writes) = far.into_split();
            tokio::select! {
                () = carry(near_reads, far_writes, way.clone()) => {}
                () = carry(far_reads, near_writes, way) => {}
            }
        });
    }
}

/// Until one of the ends is over, or the way is cut.
async fn carry(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut way: watch::Receiver<Way>,
) {
    let mut piece = vec![0; 64 * 1024];
    loop {
        let now = *way.borrow_and_update();
        if now == Way::Cut {
            return;
        }
        let length = tokio::select! {
            read = from.read(&mut piece), if now != Way::Silent => match read {
                Ok(length @ 1..) => length,
                _ => return,
            },
            changed = way.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
        };
        if let Way::Slow(time) = now {
            ostler_model::clock::sleep(time).await;
        }
        if to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}
