//! Sends one request over a connection of its own, and reads the answer with bounds.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Body as _, Incoming, SizeHint};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper::{HeaderMap, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;

use crate::Stream;
use ostler_model::clock;

/// Why no answer, or no whole answer, came from a host. The texts do not name the host.
#[derive(Debug, thiserror::Error)]
pub enum ExchangeError {
    /// Nobody accepted the connection.
    #[error(transparent)]
    Connect(io::Error),
    /// The TLS handshake failed.
    #[error(transparent)]
    Tls(io::Error),
    /// The name of the host cannot stand in a certificate.
    #[error("it is not a host name")]
    Name,
    /// A step took too long.
    #[error("it did not {what} within {limit:?}")]
    TimedOut {
        /// What was waited for, as a part of a message.
        what: &'static str,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The answer broke off, or is no HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// The body is larger than it may be.
    #[error("length limit exceeded")]
    TooLarge {
        /// The largest body, in bytes.
        max: u64,
    },
}

/// The bounds of an answer. A caller who leaves a wait out bounds the time in another way.
#[derive(Clone, Copy, Debug, Default)]
pub struct HttpBounds {
    /// The largest head, in bytes; none for the bound of hyper, some 400 KiB.
    pub head_bytes: Option<usize>,
    /// The most headers; none for the bound of hyper, which is 100.
    pub headers: Option<usize>,
    /// The longest wait for the head.
    pub head_wait: Option<Duration>,
    /// The longest wait for the next piece of the body.
    pub silence: Option<Duration>,
}

/// An answer whose head has arrived. The connection ends when this is dropped.
pub struct HttpAnswer {
    response: Response<Incoming>,
    silence: Option<Duration>,
    /// Moves bytes while it is polled, and never completes.
    connection: Pin<Box<dyn Future<Output = Infallible> + Send>>,
}

/// Do `work` on a connection, which moves bytes only while it is driven. That the connection has
/// ended shows in the result of the work.
pub fn drive_with<T: Send>(
    connection: impl Future + Send,
    work: impl Future<Output = T> + Send,
) -> impl Future<Output = T> + Send {
    let driven = async {
        drop(connection.await);
        std::future::pending::<Infallible>().await
    };
    async {
        tokio::select! {
            biased;
            done = work => done,
            never = driven => match never {},
        }
    }
}

async fn within<T>(
    limit: Option<Duration>,
    what: &'static str,
    work: impl Future<Output = T>,
) -> Result<T, ExchangeError> {
    match limit {
        None => Ok(work.await),
        Some(limit) => {
            clock::timeout(limit, work).await.ok_or(ExchangeError::TimedOut { what, limit })
        }
    }
}

impl HttpAnswer {
    /// Send a request over a stream, and wait for the head of the answer.
    ///
    /// # Errors
    /// [`ExchangeError::Http`], or that it takes too long.
    pub async fn ask(
        stream: impl Stream + 'static,
        request: Request<Full<Bytes>>,
        bounds: HttpBounds,
    ) -> Result<Self, ExchangeError> {
        let mut builder = http1::Builder::new();
        if let Some(bytes) = bounds.head_bytes {
            builder.max_buf_size(bytes);
        }
        if let Some(count) = bounds.headers {
            builder.max_headers(count);
        }
        let (mut sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
        let mut connection: Pin<Box<dyn Future<Output = Infallible> + Send>> =
            Box::pin(async move {
                let _ends = connection.with_upgrades().await;
                std::future::pending().await
            });
        let sent = drive_with(&mut connection, sender.send_request(request));
        let response = within(bounds.head_wait, "answer", sent).await??;
        Ok(Self { response, silence: bounds.silence, connection })
    }

    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// The headers of the answer.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// The length of the rest of the body, as far as it is known.
    #[must_use]
    pub fn size_hint(&self) -> SizeHint {
        self.response.body().size_hint()
    }

    /// Wait for the next piece of the body, which is not empty; `None` at its end. Trailers are
    /// ignored.
    ///
    /// # Errors
    /// [`ExchangeError::Http`], or that nothing comes for too long.
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>, ExchangeError> {
        loop {
            let frame = drive_with(&mut self.connection, self.response.body_mut().frame());
            match within(self.silence, "send more of its answer", frame).await? {
                None => return Ok(None),
                Some(frame) => match frame?.into_data() {
                    Ok(data) if !data.is_empty() => return Ok(Some(data)),
                    Ok(_) | Err(_) => {}
                },
            }
        }
    }

    /// Read the rest of the body, of at most `max` bytes.
    ///
    /// # Errors
    /// [`ExchangeError::TooLarge`], and those of [`HttpAnswer::next_piece`].
    pub async fn read_body(&mut self, max: u64) -> Result<Vec<u8>, ExchangeError> {
        if self.size_hint().lower() > max {
            return Err(ExchangeError::TooLarge { max });
        }
        let mut body = Vec::new();
        while let Some(piece) = self.next_piece().await? {
            if (body.len() as u64).saturating_add(piece.len() as u64) > max {
                return Err(ExchangeError::TooLarge { max });
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    /// Read the beginning of the body, until `into` has `max` bytes. An error only ends it.
    pub async fn read_beginning(&mut self, max: usize, into: &mut Vec<u8>) {
        while into.len() < max {
            let Ok(Some(piece)) = self.next_piece().await else { return };
            into.extend(piece.take(max.saturating_sub(into.len())).chunk());
        }
    }

    /// Wait until the connection speaks the other protocol that the answer agrees to.
    ///
    /// # Errors
    /// When the other side did not agree to one.
    pub async fn upgrade(self) -> Result<Upgraded, hyper::Error> {
        drive_with(self.connection, hyper::upgrade::on(self.response)).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// Ask a server that answers with this text, and keeps the connection open.
    async fn ask(
        text: &'static str,
        bounds: HttpBounds,
    ) -> (Result<HttpAnswer, ExchangeError>, tokio::io::DuplexStream) {
        let (ours, mut theirs) = tokio::io::duplex(64 * 1024);
        let served = async {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(theirs.read_u8().await.unwrap());
            }
            theirs.write_all(text.as_bytes()).await.unwrap();
        };
        let request = Request::get("/").body(Full::default()).unwrap();
        let (answer, ()) = tokio::join!(HttpAnswer::ask(ours, request, bounds), served);
        (answer, theirs)
    }

    #[tokio::test]
    async fn a_body_is_read_whole_up_to_its_bound() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
        let (answer, _theirs) = ask(text, HttpBounds::default()).await;
        assert_eq!(answer.unwrap().read_body(5).await.unwrap(), b"hello");
        let (answer, _theirs) = ask(text, HttpBounds::default()).await;
        let error = answer.unwrap().read_body(4).await.unwrap_err();
        assert!(matches!(error, ExchangeError::TooLarge { max: 4 }), "{error}");
        let chunked =
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n";
        let (answer, _theirs) = ask(chunked, HttpBounds::default()).await;
        let error = answer.unwrap().read_body(4).await.unwrap_err();
        assert!(matches!(error, ExchangeError::TooLarge { max: 4 }), "{error}");
    }

    #[tokio::test]
    async fn the_beginning_of_a_body_is_what_came_before_it_broke_off() {
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello";
        for (max, read) in [(3, "hel"), (99, "hello")] {
            let (answer, theirs) = ask(text, HttpBounds::default()).await;
            drop(theirs);
            let mut body = Vec::new();
            answer.unwrap().read_beginning(max, &mut body).await;
            assert_eq!(body, read.as_bytes());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_each_wait() {
        let limit = Duration::from_secs(3);
        let bounds =
            HttpBounds { head_wait: Some(limit), silence: Some(limit), ..HttpBounds::default() };
        let (answer, _theirs) = ask("", bounds).await;
        assert!(matches!(answer, Err(ExchangeError::TimedOut { what: "answer", .. })));
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello";
        let (answer, _theirs) = ask(text, bounds).await;
        let error = answer.unwrap().read_body(9).await.unwrap_err();
        assert!(matches!(error, ExchangeError::TimedOut { what: "send more of its answer", .. }));
    }

    #[tokio::test]
    async fn a_head_that_is_too_large_is_an_error() {
        let text = "HTTP/1.1 200 OK\r\na: 1\r\nb: 2\r\nc: 3\r\n\r\n";
        let few = HttpBounds { headers: Some(2), ..HttpBounds::default() };
        let (answer, _theirs) = ask(text, few).await;
        assert!(matches!(answer, Err(ExchangeError::Http(_))));
    }

    #[tokio::test]
    async fn a_connection_is_handed_over_where_both_sides_agree() {
        let text = "HTTP/1.1 101 Over\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
        let (answer, mut theirs) = ask(text, HttpBounds::default()).await;
        let mut stream = TokioIo::new(answer.unwrap().upgrade().await.unwrap());
        stream.write_all(b"ping").await.unwrap();
        let mut heard = [0; 4];
        theirs.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"ping");
    }
}
