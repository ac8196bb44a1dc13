//! `log`, `config`, `events`, `clock`, `random`: the interfaces that every plugin gets.

use crate::bindings::since_0_1::host::{clock, config, events, log, random, types};
use crate::host::CallState;
use crate::host::log_meter::LogVerdict;
use ostler_model::limits::{
    ANSWER_NAME_BYTES_MAX, EVENT_ANNOTATION_BYTES_MAX, EVENT_ANNOTATIONS_MAX,
    PLUGIN_MESSAGE_BYTES_MAX,
};

/// Most random bytes of one request. A longer request is cut.
const RANDOM_BYTES_MAX: u32 = 4096;

impl log::Host for CallState {
    async fn log(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        self.budget.charge(message.len())?;
        let verdict = self.plugin.log_meter().take(message.len(), self.services.clock.now());
        let LogVerdict::Write { dropped } = verdict else { return Ok(()) };
        let message = self.clean_text(message, PLUGIN_MESSAGE_BYTES_MAX);
        let plugin = self.plugin.name.as_str();
        if dropped > 0 {
            tracing::warn!(plugin, dropped, "log messages dropped: the plugin logs too much");
        }
        match level {
            log::Level::Trace => tracing::trace!(plugin, "{message}"),
            log::Level::Debug => tracing::debug!(plugin, "{message}"),
            log::Level::Info => tracing::info!(plugin, "{message}"),
            log::Level::Warn => tracing::warn!(plugin, "{message}"),
            log::Level::Error => tracing::error!(plugin, "{message}"),
        }
        Ok(())
    }
}

impl config::Host for CallState {
    async fn get(&mut self) -> wasmtime::Result<String> {
        self.budget.give(self.plugin.config.len())?;
        Ok(self.plugin.config.clone())
    }
}

impl events::Host for CallState {
    async fn emit(
        &mut self,
        message: String,
        annotations: Vec<types::EnvVar>,
    ) -> wasmtime::Result<()> {
        let bytes: usize = annotations.iter().map(|a| a.name.len() + a.value.len()).sum();
        self.budget.charge(message.len() + bytes)?;
        if let Some(task) = self.task.as_ref().filter(|_| !self.plugin.dry) {
            let (names, values): (Vec<_>, Vec<_>) = annotations
                .into_iter()
                .take(EVENT_ANNOTATIONS_MAX)
                .map(|a| ((a.name, ANSWER_NAME_BYTES_MAX), (a.value, EVENT_ANNOTATION_BYTES_MAX)))
                .unzip();
            let annotations =
                self.clean_texts(names).into_iter().zip(self.clean_texts(values)).collect();
            (task.events)(self.clean_text(message, PLUGIN_MESSAGE_BYTES_MAX), annotations);
        }
        Ok(())
    }
}

impl clock::Host for CallState {
    async fn now(&mut self) -> wasmtime::Result<u64> {
        self.budget.give(8)?;
        Ok(self.services.clock.now().nanos())
    }

    async fn monotonic(&mut self) -> wasmtime::Result<u64> {
        self.budget.give(8)?;
        Ok(u64::try_from(self.plugin.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl random::Host for CallState {
    async fn bytes(&mut self, len: u32) -> wasmtime::Result<Vec<u8>> {
        let len = len.min(RANDOM_BYTES_MAX);
        self.budget.give(len as usize)?;
        let mut bytes = vec![0; len as usize];
        self.services.rng.fill(&mut bytes);
        Ok(bytes)
    }
}
