//! What stands between a browser and an agent: a proxy that puts a prefix before every path, that can be cut, and
//! that can make many allocations of one.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

type Body = BoxBody<Bytes, hyper::Error>;

/// A proxy before an agent's TCP address. It ends with this.
pub struct Front {
    pub at: SocketAddr,
    cut: watch::Sender<bool>,
    _serves: AbortOnDropHandle<()>,
}

/// How it answers.
#[derive(Clone, Default)]
struct Ways {
    prefix: String,
    /// So many allocations are made of the first one.
    allocs: usize,
}

impl Front {
    /// Every path begins with `prefix`, which the agent does not see.
    pub async fn with_prefix(agent: SocketAddr, prefix: &str) -> Self {
        Self::start(agent, Ways { prefix: prefix.to_owned(), ..Ways::default() }).await
    }

    /// There are `count` allocations, all like the agent's first one.
    pub async fn with_allocs(agent: SocketAddr, count: usize) -> Self {
        Self::start(agent, Ways { allocs: count, ..Ways::default() }).await
    }

    async fn start(agent: SocketAddr, ways: Ways) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let (cut, is_cut) = watch::channel(false);
        let ways = Arc::new(ways);
        let serves = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                if *is_cut.borrow() {
                    continue;
                }
                let (ways, mut is_cut) = (Arc::clone(&ways), is_cut.clone());
                tokio::spawn(async move {
                    let service = service_fn(|request| pass(request, agent, Arc::clone(&ways)));
                    let serve = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service);
                    tokio::select! {
                        _ended = serve => {}
                        _cut = is_cut.wait_for(|cut| *cut) => {}
                    }
                });
            }
        });
        Self { at, cut, _serves: AbortOnDropHandle::new(serves) }
    }

    /// Every connection ends, and new ones too, or not any more.
    pub fn cut(&self, cut: bool) {
        self.cut.send_replace(cut);
    }
}

async fn pass(
    mut request: Request<Incoming>,
    agent: SocketAddr,
    ways: Arc<Ways>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    let Some(path) = path.strip_prefix(&ways.prefix).filter(|path| path.starts_with('/')) else {
        return Ok(said(StatusCode::NOT_FOUND, "not below the prefix".into()));
    };
    let many = ways.allocs > 0 && path.starts_with("/v1/allocations?");
    let asked = if many { "/v1/allocations?namespace=*&resources=true" } else { path };
    if many {
        // It is read here.
        request.headers_mut().remove("accept-encoding");
    }
    let Ok(mut answer) = forward(request, agent, asked).await else {
        return Ok(said(StatusCode::BAD_GATEWAY, "the agent does not answer".into()));
    };
    if many {
        let body = answer.body_mut().collect().await.unwrap().to_bytes();
        let (page, next) = page(&serde_json::from_slice(&body).unwrap(), path, ways.allocs);
        let mut response = said(StatusCode::OK, page.to_string().into());
        let index = answer.headers()["x-nomad-index"].clone();
        response.headers_mut().insert("x-nomad-index", index);
        if let Some(next) = next {
            response.headers_mut().insert("x-nomad-nexttoken", next.to_string().parse().unwrap());
        }
        return Ok(response);
    }
    Ok(answer.map(BodyExt::boxed))
}

fn said(status: StatusCode, body: Bytes) -> Response<Body> {
    let body = Full::new(body).map_err(|never| match never {}).boxed();
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response
}

async fn forward(
    request: Request<Incoming>,
    agent: SocketAddr,
    path: &str,
) -> Result<Response<Incoming>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TcpStream::connect(agent).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    // It ends when the body has been read, or is dropped.
    tokio::spawn(connection);
    let (mut parts, body) = request.into_parts();
    parts.uri = path.parse()?;
    Ok(sender.send_request(Request::from_parts(parts, body)).await?)
}

/// The page of `count` made allocations that a query asks for, and the number of the next one's first.
fn page(real: &Value, path: &str, count: usize) -> (Value, Option<usize>) {
    let query: Vec<(&str, &str)> = path
        .split_once('?')
        .unwrap()
        .1
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .collect();
    let number = |name| {
        let found = query.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.parse::<usize>().unwrap())
    };
    let (from, size) = (number("next_token").unwrap_or(0), number("per_page").unwrap_or(count));
    let to = count.min(from + size);
    let made = (from..to).map(|at| {
        let mut alloc = real[0].clone();
        alloc["ID"] = format!("{at:08x}-0000-4000-8000-000000000000").into();
        alloc["Name"] = format!("many.g[{at}]").into();
        alloc
    });
    (made.collect(), (to < count).then_some(to))
}
