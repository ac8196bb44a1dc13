//! Requests by a path as text. New code makes its requests by [`crate::routes::endpoints`].

use hyper::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ApiClient, BodyPieces, ClientError, ExecInputs, ExecOutputs, LogFrameStream};
use crate::request::{ApiRequest, encode_part};

fn request<B, T>(method: Method, path: &str) -> ApiRequest<B, T> {
    ApiRequest::new(method, path, &[])
}

impl ApiClient {
    /// The value of `namespace` in the query of a list, encoded.
    #[must_use]
    pub fn namespaces(&self) -> String {
        segment(self.listed_namespace())
    }

    /// Read an object.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(&request(Method::GET, path)).await
    }

    /// Read an object again after each change, until `look` returns a result.
    ///
    /// # Errors
    /// When the agent cannot be asked, or `look` fails.
    pub async fn watch<T: DeserializeOwned, R, E: From<ClientError>>(
        &self,
        path: &str,
        look: impl AsyncFnMut(T) -> Result<Option<R>, E>,
    ) -> Result<R, E> {
        self.watch_until(&request(Method::GET, path), look).await
    }

    /// Send a request that changes something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send_body(&request(Method::PUT, path), body).await
    }

    /// Send a request that ends or removes something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(&request(Method::DELETE, path)).await
    }

    /// Send a request whose answer has no body of interest.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn call(&self, method: Method, path: &str) -> Result<(), ClientError> {
        self.send_only(&request::<(), ()>(method, path)).await
    }

    /// Read a stream of frames for as long as it lasts.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn stream(&self, path: &str) -> Result<LogFrameStream, ClientError> {
        self.stream_frames(&request(Method::GET, path)).await
    }

    /// Read the body of an answer piece by piece. The agent must have started.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn body_pieces(&self, path: &str) -> Result<BodyPieces, ClientError> {
        self.read_pieces(&request::<(), ()>(Method::GET, path)).await
    }

    /// Run a command inside a task.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn exec(&self, path: &str) -> Result<(ExecInputs, ExecOutputs), ClientError> {
        self.start_exec(&request(Method::GET, path)).await
    }
}

/// Encode a name as one segment of a path, or as a value in a query.
#[must_use]
pub fn segment(name: &str) -> String {
    encode_part(name)
}
