//! Observers of plugin calls. They are told what each call was given, what the host answered it,
//! and how it ended. Arguments and answers of the host are bytes here. With them a call can be made
//! again: see [`crate::PluginRuntime::call_by_name`].

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::CallFailure;
use crate::host::trace::HostCallLog;
use ostler_model::clock::Timestamp;
use ostler_model::limits::PluginLimits;
use ostler_model::plugin::PluginKind;
use ostler_model::ports::BoxFuture;

/// Identifies a plugin to observers.
#[derive(Clone, Debug)]
pub struct PluginIdentity {
    /// Name of the plugin's block in the configuration.
    pub plugin: String,
    /// Whether it is a driver or a device plugin.
    pub kind: PluginKind,
    /// Version of the plugin contract.
    pub interface_version: String,
    /// SHA-256 of the component, in hexadecimal.
    pub digest: String,
    /// Configuration of the plugin as JSON.
    pub config: String,
}

/// Chooses whose calls are observed; one per [`crate::PluginRuntime`].
pub trait PluginObserver: Send + Sync {
    /// A plugin is loaded with these limits. Returns the observer of its calls; `None`:
    /// nobody observes them.
    fn observe_plugin(
        &self,
        plugin: PluginIdentity,
        limits: &PluginLimits,
    ) -> Option<Arc<dyn CallObserver>>;
}

/// Receives the calls of one plugin.
pub trait CallObserver: Send + Sync {
    /// Take note of the schemas with which the plugin described itself: that of its own
    /// configuration, and that of its tasks.
    fn note_description(&self, own: &str, task: &str);

    /// A call begins.
    fn begin_call(self: Arc<Self>) -> Box<dyn ObservedCall>;

    /// The answer of a call that had ended turned out to break the rules. `number` is
    /// what [`ObservedCall::end_call`] returned.
    fn mark_broken(&self, number: u64, reason: String);

    /// Write what is known about the last calls to a file. `None`: there is nothing to write.
    fn write_now(&self) -> BoxFuture<'_, io::Result<Option<PathBuf>>>;
}

/// One call that is observed.
pub trait ObservedCall: Send + Sync {
    /// The log of what the call asks the host.
    fn host_calls(&self) -> Arc<dyn HostCallLog>;

    /// The call ended. Returns the number by which the observer knows it.
    fn end_call(self: Box<Self>, call: EndedCall<'_>) -> u64;
}

/// What an observer is told when a call ends.
#[derive(Debug)]
pub struct EndedCall<'a> {
    /// Name of the function in the contract.
    pub function: &'a str,
    /// When the call began.
    pub at: Timestamp,
    /// How long the call took.
    pub took: Duration,
    /// Arguments of the call in their compact form; empty when there are none.
    pub arguments: Vec<u8>,
    /// How the call ended.
    pub end: CallEnd<&'a CallFailure>,
}

/// How a call of a plugin ended.
#[derive(Debug)]
pub enum CallEnd<F = CallFailure> {
    /// The plugin answered.
    Answered,
    /// The plugin answered with an error of its own.
    Refused(String),
    /// The plugin's answer breaks the rules.
    Broken(String),
    /// The plugin did not answer.
    Failed(F),
}
