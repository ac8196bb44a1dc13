//! Keeps the last calls of one plugin in memory.

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::Value;

use super::input;
use super::store::RecordingStore;
use super::trace::{SharedTrace, Trace};
use super::{CallLimits, CallOutcome, RecordedCall, Recording};
use ostler_model::limits::{PLUGIN_RING_BYTES_MAX, PLUGIN_RING_CALLS_MAX, PluginLimits};
use ostler_model::ports::BoxFuture;
use ostler_model::redact::Secrets;
use ostler_plugin::host::trace::HostCallLog;
use ostler_plugin::observe::{CallEnd, CallObserver, EndedCall, ObservedCall, PluginIdentity};

/// Keeps the last calls of a plugin, and writes them down when one failed.
#[derive(Debug)]
pub struct Recorder {
    identity: PluginIdentity,
    bounds: CallLimits,
    calls_max: usize,
    /// The schemas of the plugin's own configuration and of its tasks' configuration, once it has
    /// described itself.
    schemas: OnceLock<(Option<Value>, Option<Value>)>,
    ring: Mutex<CallRing>,
    store: Option<Arc<RecordingStore>>,
}

#[derive(Debug, Default)]
struct CallRing {
    calls: VecDeque<(u64, RecordedCall)>,
    bytes: usize,
    /// The number of the newest call. The first call has 1.
    newest: u64,
    /// Secrets of starts that are no longer in the ring. Handles of later calls may still
    /// hold them.
    secrets: Secrets,
}

impl Recorder {
    /// A recorder that keeps as many calls as the limits say; `None` if they say none.
    #[must_use]
    pub fn new(
        identity: PluginIdentity,
        limits: &PluginLimits,
        store: Option<Arc<RecordingStore>>,
    ) -> Option<Self> {
        let calls_max = (limits.recorded_calls_max as usize).min(PLUGIN_RING_CALLS_MAX);
        (calls_max > 0).then(|| Self {
            identity,
            bounds: CallLimits::from(limits),
            calls_max,
            schemas: OnceLock::new(),
            ring: Mutex::default(),
            store,
        })
    }

    /// Keep a call that ended. Returns its number, for [`Recorder::write`].
    fn keep_call(&self, ended: EndedCall<'_>, trace: Trace) -> u64 {
        let Trace { bytes, calls, cut, secrets } = trace;
        let call = RecordedCall {
            function: ended.function.to_owned(),
            at: ended.at.nanos(),
            took: u64::try_from(ended.took.as_nanos()).unwrap_or(u64::MAX),
            input: ended.arguments,
            trace: bytes,
            host_calls: calls,
            cut,
            outcome: CallOutcome::from(&ended.end),
        };
        let mut ring = self.lock_ring();
        secrets.iter().for_each(|text| ring.secrets.learn_granted(text));
        ring.newest += 1;
        let number = ring.newest;
        ring.bytes += call_size(&call);
        ring.calls.push_back((number, call));
        while ring.calls.len() > self.calls_max
            || (ring.bytes > PLUGIN_RING_BYTES_MAX && ring.calls.len() > 1)
        {
            let Some((_, gone)) = ring.calls.pop_front() else { break };
            ring.bytes -= call_size(&gone);
            if gone.function == "start" {
                self.remember_secrets(&mut ring.secrets, gone);
            }
        }
        number
    }

    /// Write a kept call to a file, with those before it.
    fn write(&self, number: u64) {
        if let Some(store) = &self.store
            && let Some(recording) = self.recording(Some(number))
        {
            store.write(recording);
        }
    }

    /// The kept calls, redacted, up to this call or all of them; `None` if there are none.
    fn recording(&self, upto: Option<u64>) -> Option<Recording> {
        let (calls, mut secrets) = {
            let ring = self.lock_ring();
            let wanted =
                ring.calls.iter().filter(|(number, _)| upto.is_none_or(|max| *number <= max));
            let calls: Vec<RecordedCall> = wanted.map(|(_, call)| call.clone()).collect();
            (calls, ring.secrets.clone())
        };
        if calls.is_empty() {
            return None;
        }
        secrets.redacted = 0;
        let mut recording = Recording {
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            plugin: self.identity.plugin.clone(),
            kind: Some(self.identity.kind),
            interface_version: self.identity.interface_version.clone(),
            digest: self.identity.digest.clone(),
            config: self.identity.config.clone(),
            limits: self.bounds,
            redacted: 0,
            calls,
        };
        self.redact_recording(&mut recording, secrets);
        Some(recording)
    }

    /// Take every secret out of a recording.
    fn redact_recording(&self, recording: &mut Recording, mut secrets: Secrets) {
        let (own, task) = self.schemas();
        recording.config = secrets.redact_config(&recording.config, own);
        for call in &mut recording.calls {
            input::redact_input(&call.function, &mut call.input, task, &mut secrets);
        }
        let mut found = secrets.redacted;
        for call in &mut recording.calls {
            found = found.saturating_add(secrets.scrub(&mut call.input));
            found = found.saturating_add(secrets.scrub(&mut call.trace));
            found = found.saturating_add(secrets.scrub_text(&mut call.outcome.text));
        }
        recording.redacted = found;
    }

    /// Learn the secrets of a start that leaves the ring.
    fn remember_secrets(&self, secrets: &mut Secrets, mut start: RecordedCall) {
        let (_, task) = self.schemas();
        input::redact_input("start", &mut start.input, task, secrets);
    }

    fn schemas(&self) -> (Option<&Value>, Option<&Value>) {
        self.schemas.get().map_or((None, None), |(own, task)| (own.as_ref(), task.as_ref()))
    }

    fn lock_ring(&self) -> MutexGuard<'_, CallRing> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallObserver for Recorder {
    fn note_description(&self, own: &str, task: &str) {
        // The schemas are parsed once, because each start that leaves the ring needs them.
        let parsed = |text: &str| serde_json::from_str(text).ok();
        let _first_stays = self.schemas.set((parsed(own), parsed(task)));
    }

    fn begin_call(self: Arc<Self>) -> Box<dyn ObservedCall> {
        Box::new(OngoingCall { recorder: self, trace: SharedTrace::default() })
    }

    /// The call is written to a file, if it is still kept.
    fn mark_broken(&self, number: u64, reason: String) {
        {
            let mut ring = self.lock_ring();
            let Some((_, call)) = ring.calls.iter_mut().find(|(kept, _)| *kept == number) else {
                return;
            };
            call.outcome = CallOutcome::new_broken(reason);
        }
        self.write(number);
    }

    fn write_now(&self) -> BoxFuture<'_, io::Result<Option<PathBuf>>> {
        Box::pin(async move {
            let Some(store) = &self.store else { return Ok(None) };
            match self.recording(None) {
                Some(recording) => store.write_now(recording).await.map(Some),
                None => Ok(None),
            }
        })
    }
}

/// A call that is under way.
struct OngoingCall {
    recorder: Arc<Recorder>,
    trace: SharedTrace,
}

impl ObservedCall for OngoingCall {
    fn host_calls(&self) -> Arc<dyn HostCallLog> {
        Arc::new(self.trace.clone())
    }

    /// The call is kept, and written to a file if the plugin is to blame for its end.
    fn end_call(self: Box<Self>, call: EndedCall<'_>) -> u64 {
        let failed = matches!(&call.end, CallEnd::Failed(failure) if failure.is_plugin_fault());
        let number = self.recorder.keep_call(call, self.trace.take());
        if failed {
            self.recorder.write(number);
        }
        number
    }
}

/// The approximate size of a call in memory.
fn call_size(call: &RecordedCall) -> usize {
    const RECORD: usize = 256;
    RECORD + call.input.len() + call.trace.len() + call.outcome.text.len()
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
