//! Makes one call of `grpc.health.v1.Health/Check`, the standard health service, on a connection of
//! its own.

use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codegen::http::Uri;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;
use tower_service::Service;

use super::{CheckAnswer, CheckTarget, PartialAnswer, ProbeError};
use ostler_model::limits::{CHECK_GRPC_BYTES_MAX, CHECK_HEAD_BYTES_MAX};
use ostler_net::{Stream, drive_with};

/// The request, which names the service.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The answer, which has the status of the service.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// The status of a service, see [`HealthCheckResponse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

/// The path of the method.
pub(super) const CHECK: &str = "/grpc.health.v1.Health/Check";

pub(super) async fn ask(
    service: &str,
    target: &CheckTarget,
    tls: bool,
    stream: Box<dyn Stream>,
    heard: &mut PartialAnswer,
) -> Result<(), ProbeError> {
    let no_http =
        |error: hyper::Error| ProbeError::Http { to: target.to_string(), source: error.into() };
    let (requests, connection) = http2::Builder::new(TokioExecutor::new())
        .max_header_list_size(u32::try_from(CHECK_HEAD_BYTES_MAX).unwrap_or(u32::MAX))
        .handshake::<_, Body>(TokioIo::new(stream))
        .await
        .map_err(no_http)?;
    let scheme = if tls { "https" } else { "http" };
    let origin = Uri::builder().scheme(scheme).authority(target.to_string());
    let origin = origin.path_and_query("/").build().map_err(ProbeError::Request)?;
    let mut client = Grpc::with_origin(Requests(requests), origin)
        .max_decoding_message_size(CHECK_GRPC_BYTES_MAX);
    let request = tonic::Request::new(HealthCheckRequest { service: service.to_owned() });
    let answered = async {
        let codec = ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let path = PathAndQuery::from_static(CHECK);
        client.ready().await.map_err(no_http)?;
        heard.answer = Some(match client.unary(request, path, codec).await {
            Ok(answer) => serving_answer(answer.into_inner().status),
            Err(status) => refusal_answer(&status),
        });
        Ok(())
    };
    drive_with(connection, answered).await
}

fn serving_answer(status: i32) -> CheckAnswer {
    match ServingStatus::try_from(status) {
        Ok(ServingStatus::Serving) => CheckAnswer::new_passing("SERVING"),
        Ok(ServingStatus::NotServing) => CheckAnswer::new_critical("NOT_SERVING"),
        Ok(ServingStatus::ServiceUnknown) => CheckAnswer::new_critical("SERVICE_UNKNOWN"),
        Ok(ServingStatus::Unknown) => CheckAnswer::new_critical("UNKNOWN"),
        Err(_) => CheckAnswer::new_critical(&format!("the unknown status {status}")),
    }
}

fn refusal_answer(status: &Status) -> CheckAnswer {
    let why = match status.code() {
        Code::NotFound => "the server knows no such service".to_owned(),
        Code::Unimplemented => "the server has no health service (grpc.health.v1)".to_owned(),
        code => format!("the call failed: {code}"),
    };
    CheckAnswer::new_critical(&match status.message() {
        "" => why,
        said => format!("{why}: {said}"),
    })
}

/// A connection in the form that tonic calls.
struct Requests(http2::SendRequest<Body>);

impl Service<Request<Body>> for Requests {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}
