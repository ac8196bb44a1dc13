//! The data of a store that runs one plugin call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use wasmtime::component::ResourceTable;
use wasmtime_wasi::filesystem::WasiFilesystemCtxView;
use wasmtime_wasi::sockets::WasiSocketsCtxView;
use wasmtime_wasi::{FsPerms, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView};

use super::HostServices;
use super::imports::Lookup;
use super::log_meter::LogMeter;
use super::network::NetworkState;
use super::trace::Tracer;
use ostler_model::clock::{Clock, Stopwatch};
use ostler_model::grants::Grants;
use ostler_model::limits::{self, PluginLimits};
use ostler_model::ports::TaskContext;
use ostler_model::printable::printable_line;
use ostler_model::redact::Secrets;
use ostler_sandbox::{
    CpuMeter, GuestLimiter, GuestOutput, HostCalls, HostcallBudget, StderrTail, StoreLimits,
    StoreState, new_resource_table, new_wasi_builder,
};
use ostler_wasm_task::guest_files::{FileShare, Files, GuestFiles, HasGuestFiles, choose_threads};

/// What host functions know of the plugin that calls them. It is the same for all calls
/// of the plugin.
pub struct PluginContext {
    /// Name of the plugin, for log lines and errors.
    pub name: String,
    /// Configuration of the plugin as JSON text.
    pub config: String,
    /// What the plugin may do.
    pub grants: Grants,
    /// How much one call may use.
    pub limits: PluginLimits,
    /// Whether this is a dry run, before the plugin takes the place of another: it sees everything
    /// and changes nothing.
    pub dry: bool,
    /// Zero point of the monotonic clock. It is the same for all calls, so that the clock
    /// never goes back.
    pub started: Stopwatch,
    log: Mutex<LogMeter>,
    /// The secrets in the plugin's configuration and variables.
    secrets: RwLock<Arc<Secrets>>,
    /// The share of files that all calls of the plugin have open together.
    files: OnceLock<Arc<FileShare>>,
}

impl PluginContext {
    /// The context of a plugin.
    #[must_use]
    pub fn new(
        name: String,
        config: String,
        grants: Grants,
        limits: PluginLimits,
        clock: &Clock,
    ) -> Self {
        let log = Mutex::new(LogMeter::new(limits.log_bytes_per_second, clock.now()));
        let (started, files) = (Stopwatch::start(), OnceLock::new());
        let secrets = RwLock::new(Arc::new(own_secrets(&config, None, &grants)));
        Self { name, config, grants, limits, dry: false, started, log, secrets, files }
    }

    /// Learn which parts of the configuration are secret from the schema with which the
    /// plugin described itself.
    pub(crate) fn learn_schema(&self, schema: &str) {
        let schema = serde_json::from_str(schema).ok();
        let secrets = Arc::new(own_secrets(&self.config, schema.as_ref(), &self.grants));
        *self.secrets.write().unwrap_or_else(PoisonError::into_inner) = secrets;
    }

    /// The secrets that the plugin has in a call: its own, and those of the task that the
    /// call is about.
    pub(crate) fn secrets(&self, task: Option<&TaskContext>) -> Secrets {
        let own = Arc::clone(&self.secrets.read().unwrap_or_else(PoisonError::into_inner));
        let mut all = Secrets::clone(&own);
        if let Some(task) = task {
            all.add_secrets(&task.secrets);
        }
        all
    }

    /// The same context for a dry run: host functions answer questions truthfully, and refuse to
    /// start, signal or end anything. Granted directories are read-only.
    #[must_use]
    pub fn for_dry_run(self) -> Self {
        Self { dry: true, ..self }
    }

    /// Why host functions change nothing now; `None` where they may.
    pub(super) fn refusal_reason(&self) -> Option<String> {
        let refused = || "refused: a dry run before an upgrade changes nothing".to_owned();
        self.dry.then(refused)
    }

    fn file_share(&self, services: &HostServices) -> Arc<FileShare> {
        let share = || {
            Arc::new(FileShare::new(services.sandbox.descriptors(limits::PLUGIN_OPEN_FILES_MAX)))
        };
        Arc::clone(self.files.get_or_init(share))
    }

    pub(super) fn log_meter(&self) -> std::sync::MutexGuard<'_, LogMeter> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The secrets in a plugin's configuration, and in the variables of the agent that it is granted.
fn own_secrets(config: &str, schema: Option<&serde_json::Value>, grants: &Grants) -> Secrets {
    let mut secrets = Secrets::for_task();
    secrets.learn_config(config, schema);
    if !grants.env.is_empty() {
        for (name, value) in grants.environment(agent_environment()) {
            secrets.learn_variable(&name, &value);
        }
    }
    secrets
}

/// The agent's own environment, as far as it is text.
fn agent_environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// The time that a call spent in host work that has a deadline of its own (compiling a task,
/// running a command, recording a process). It does not count for the guest's wall deadline.
#[derive(Debug, Default)]
pub struct HostTime {
    began: OnceLock<Stopwatch>,
    nanos: AtomicU64,
    running: AtomicU64,
}

impl HostTime {
    /// Note that the guest begins: its deadline runs from here.
    pub fn start(&self) {
        self.began.get_or_init(Stopwatch::start);
    }

    /// How long ago the guest began; `None` where it did not begin yet.
    #[must_use]
    pub fn elapsed(&self) -> Option<Duration> {
        self.began.get().map(Stopwatch::elapsed)
    }

    /// Do host work whose time does not count for the guest's deadline.
    pub async fn run_uncharged<F: Future>(&self, work: F) -> F::Output {
        struct HostTimeGuard<'a>(&'a HostTime, Stopwatch);
        impl Drop for HostTimeGuard<'_> {
            fn drop(&mut self) {
                let nanos = u64::try_from(self.1.elapsed().as_nanos()).unwrap_or(u64::MAX);
                self.0.nanos.fetch_add(nanos, Ordering::SeqCst);
                self.0.running.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.running.fetch_add(1, Ordering::SeqCst);
        let _guard = HostTimeGuard(self, Stopwatch::start());
        work.await
    }

    /// Time of the host work that was finished so far.
    #[must_use]
    pub fn host_work(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }

    /// Is host work going on now whose time does not count?
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.running.load(Ordering::SeqCst) > 0
    }
}

/// The data of a store that runs one plugin call.
pub struct CallState {
    wasi: WasiCtx,
    table: ResourceTable,
    network: NetworkState,
    limiter: GuestLimiter,
    /// How many host calls and bytes the call may still use.
    pub budget: HostcallBudget,
    /// The plugin that calls.
    pub plugin: Arc<PluginContext>,
    /// The task that the call is about, if any.
    pub task: Option<Arc<TaskContext>>,
    /// What host functions use.
    pub services: HostServices,
    /// The time of host work that does not count for the deadline.
    pub host_time: Arc<HostTime>,
    /// Records the answers of the host, or gives recorded ones.
    pub tracer: Tracer,
    cpu: CpuMeter,
    // This is dropped after the table, whose files it counts.
    files: GuestFiles,
    /// Whether the granted directories are open.
    opened: bool,
}

impl CallState {
    /// State for one call, in which nothing is open. What the guest writes to standard error
    /// goes to `stderr`.
    #[must_use]
    pub fn new(
        plugin: Arc<PluginContext>,
        task: Option<Arc<TaskContext>>,
        services: HostServices,
        host_time: Arc<HostTime>,
        cpu: CpuMeter,
        limits: &StoreLimits,
        stderr: Arc<StderrTail>,
    ) -> Self {
        let mut wasi = new_wasi_builder(limits);
        wasi.stderr(GuestOutput::new(stderr));
        // Nearly always no variable is granted, and copying the agent's takes a tenth of a call.
        if !plugin.grants.env.is_empty() {
            let granted: Vec<_> = plugin.grants.environment(agent_environment()).collect();
            wasi.envs(&granted);
        }
        let network = NetworkState::default();
        // In a dry run a plugin may ask others about the node. About a task it might tell them to
        // act.
        if !plugin.dry || task.is_none() {
            network.open(&mut wasi, &plugin.grants.connect);
        }
        let limiter = GuestLimiter::new(limits);
        let files = GuestFiles::new(limiter.usage(), plugin.file_share(&services), false);
        Self {
            wasi: wasi.build(),
            network,
            table: new_resource_table(limits),
            limiter,
            files,
            budget: HostcallBudget::for_plugin(&plugin.limits),
            plugin,
            task,
            services,
            host_time,
            tracer: Tracer::Off,
            cpu,
            opened: false,
        }
    }

    /// Open the granted directories, before the guest is told of them for the first time. Most
    /// calls of most plugins never ask for them. May block.
    ///
    /// # Errors
    /// When a directory exists and cannot be opened. One that does not exist is left out: a plugin
    /// for absent hardware finds nothing, which is not an error.
    pub(super) fn open_granted(&mut self) -> wasmtime::Result<()> {
        if std::mem::replace(&mut self.opened, true) || self.tracer.is_playing() {
            return Ok(());
        }
        let plugin = Arc::clone(&self.plugin);
        let mut wasi = WasiCtxBuilder::new();
        let granted = plugin.grants.files.iter().map(|grant| grant.path.as_path());
        self.files.set_waits(choose_threads(&mut wasi, granted));
        for grant in &plugin.grants.files {
            let perms =
                if grant.write && !plugin.dry { FsPerms::ReadWrite } else { FsPerms::ReadOnly };
            if !grant.path.exists() {
                continue;
            }
            let guest = grant.path.to_string_lossy();
            wasi.preopened_dir(&grant.path, &*guest, perms).map_err(|error| {
                wasmtime::Error::msg(format!(
                    "cannot open the granted directory {guest}: {error:#}"
                ))
            })?;
        }
        self.wasi.filesystem().clone_from(wasi.build().filesystem());
        Ok(())
    }

    /// A text of the plugin without the secrets that it was given, and with invisible characters
    /// made visible. `max` is the most bytes that are shown.
    pub(super) fn clean_text(&self, text: String, max: usize) -> String {
        self.clean_texts([(text, max)]).into_iter().next().unwrap_or_default()
    }

    /// The same for several texts, each with the most bytes of it that are shown.
    pub(super) fn clean_texts(
        &self,
        texts: impl IntoIterator<Item = (String, usize)>,
    ) -> Vec<String> {
        let secrets = self.plugin.secrets(self.task.as_deref());
        let without = |(mut text, max): (String, usize)| {
            secrets.scrub_text(&mut text);
            printable_line(text, max)
        };
        texts.into_iter().map(without).collect()
    }

    /// Look-ups of names, as far as they are granted.
    pub(super) fn lookup(&mut self) -> Lookup<'_> {
        Lookup {
            sockets: WasiSocketsCtxView { ctx: self.wasi.sockets(), table: &mut self.table },
            network: &mut self.network,
            granted: &self.plugin.grants.connect,
        }
    }
}

impl HasGuestFiles for CallState {
    fn guest_files(&mut self) -> &mut GuestFiles {
        &mut self.files
    }

    fn files(&mut self) -> Files<'_> {
        let wasi = WasiFilesystemCtxView { ctx: self.wasi.filesystem(), table: &mut self.table };
        Files { wasi, own: &mut self.files }
    }
}

impl StoreState for CallState {
    fn limiter(&mut self) -> &mut GuestLimiter {
        &mut self.limiter
    }
}

impl HostCalls for CallState {
    fn budget(&mut self) -> &mut HostcallBudget {
        &mut self.budget
    }

    fn cpu(&self) -> &CpuMeter {
        &self.cpu
    }
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView { ctx: &mut self.wasi, table: &mut self.table }
    }
}
