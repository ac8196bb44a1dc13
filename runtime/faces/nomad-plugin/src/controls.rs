//! The services that every plugin program has: health, shutdown, output and further connections.

use std::pin::Pin;

use futures_util::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use crate::proto::goplugin::grpc_broker_server::GrpcBroker;
use crate::proto::goplugin::grpc_controller_server::GrpcController;
use crate::proto::goplugin::grpc_stdio_server::GrpcStdio;
use crate::proto::goplugin::{ConnInfo, Empty, StdioData};
use crate::proto::health::health_check_response::ServingStatus;
use crate::proto::health::health_server::Health;
use crate::proto::health::{HealthCheckRequest, HealthCheckResponse};

/// The name under which the host asks for the health of a plugin.
const SERVICE: &str = "plugin";

/// A stream of answers.
pub(crate) type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A stream of answers that ends when the process shuts down.
pub(crate) fn stream_until_shutdown<T: Send + 'static>(
    answers: impl Stream<Item = Result<T, Status>> + Send + 'static,
    left: CancellationToken,
) -> Response<Answers<T>> {
    use futures_util::StreamExt as _;
    Response::new(Box::pin(answers.take_until(left.cancelled_owned())))
}

/// Answers the calls of these services.
#[derive(Clone)]
pub(crate) struct Controls {
    /// Cancelled when the process shuts down.
    pub left: CancellationToken,
}

fn health_response(service: &str) -> Result<HealthCheckResponse, Status> {
    match service {
        SERVICE | "" => Ok(HealthCheckResponse { status: ServingStatus::Serving.into() }),
        _ => Err(Status::not_found("there is no such service")),
    }
}

#[tonic::async_trait]
impl Health for Controls {
    type WatchStream = Answers<HealthCheckResponse>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        health_response(&request.get_ref().service).map(Response::new)
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        use futures_util::StreamExt as _;
        let now = health_response(&request.get_ref().service)?;
        let first = futures_util::stream::iter([Ok(now)]);
        // The process is healthy as long as it answers.
        Ok(stream_until_shutdown(first.chain(futures_util::stream::pending()), self.left.clone()))
    }
}

#[tonic::async_trait]
impl GrpcController for Controls {
    async fn shutdown(&self, _request: Request<Empty>) -> Result<Response<Empty>, Status> {
        self.left.cancel();
        Ok(Response::new(Empty {}))
    }
}

#[tonic::async_trait]
impl GrpcStdio for Controls {
    type StreamStdioStream = Answers<StdioData>;

    /// The plugin prints nothing. What it has to say is in its log, on standard error.
    async fn stream_stdio(
        &self,
        _request: Request<()>,
    ) -> Result<Response<Self::StreamStdioStream>, Status> {
        Ok(stream_until_shutdown(futures_util::stream::pending(), self.left.clone()))
    }
}

#[tonic::async_trait]
impl GrpcBroker for Controls {
    type StartStreamStream = Answers<ConnInfo>;

    /// Nothing needs a further connection: none is offered, and none that is offered is taken.
    async fn start_stream(
        &self,
        request: Request<Streaming<ConnInfo>>,
    ) -> Result<Response<Self::StartStreamStream>, Status> {
        use futures_util::StreamExt as _;
        let offers = request.into_inner().filter_map(|_offer| std::future::ready(None));
        Ok(stream_until_shutdown(offers, self.left.clone()))
    }
}
