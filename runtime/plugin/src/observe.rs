//! Who may be told of the calls of plugins: what each was given, what the host answered it, and how it
//! ended. Arguments and answers of the host are bytes here; with them a call can be made again, see
//! [`crate::PluginRuntime::call_by_name`].

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::Failure;
use crate::host::trace::HostCallLog;
use ostler_model::clock::Timestamp;
use ostler_model::limits::PluginLimits;
use ostler_model::plugin::PluginKind;
use ostler_model::ports::BoxFuture;

/// Which plugin it is.
#[derive(Clone, Debug)]
pub struct PluginIdentity {
    /// Name of its block.
    pub plugin: String,
    /// Driver or device plugin.
    pub kind: PluginKind,
    /// Version of the plugin contract.
    pub interface_version: String,
    /// SHA-256 of the component, hex.
    pub digest: String,
    /// Its configuration as JSON.
    pub config: String,
}

/// Chooses whose calls are observed; one per [`crate::PluginRuntime`].
pub trait PluginObserver: Send + Sync {
    /// A plugin is loaded with these limits. `None`: nobody is told of its calls.
    fn loaded(
        &self,
        plugin: PluginIdentity,
        limits: &PluginLimits,
    ) -> Option<Arc<dyn CallObserver>>;
}

/// Is told of the calls of one plugin.
pub trait CallObserver: Send + Sync {
    /// The plugin described itself: the schemas of its own configuration and of its tasks'.
    fn described(&self, own: &str, task: &str);

    /// A call begins.
    fn begins(self: Arc<Self>) -> Box<dyn ObservedCall>;

    /// The answer of a call that had ended turned out to be against the rules. `number` is what
    /// [`ObservedCall::ended`] returned.
    fn broken(&self, number: u64, reason: String);

    /// Write what is known of its last calls to a file. `None`: there is nothing to write.
    fn write_now(&self) -> BoxFuture<'_, io::Result<Option<PathBuf>>>;
}

/// One call that is observed.
pub trait ObservedCall: Send + Sync {
    /// Who is told of what it asks the host.
    fn host_calls(&self) -> Arc<dyn HostCallLog>;

    /// It ended. The number by which the observer knows it.
    fn ended(self: Box<Self>, call: EndedCall<'_>) -> u64;
}

/// What is told of a call when it ended.
#[derive(Debug)]
pub struct EndedCall<'a> {
    /// The function.
    pub function: &'a str,
    /// When it began.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    /// Its arguments in their compact form; empty when there are none.
    pub arguments: Vec<u8>,
    /// How it ended.
    pub end: CallEnd<&'a Failure>,
}

/// How a call ended.
#[derive(Debug)]
pub enum CallEnd<F = Failure> {
    /// It answered.
    Answered,
    /// It answered that it cannot.
    Refused(String),
    /// It answered against the rules.
    Broken(String),
    /// It did not answer.
    Failed(F),
}
