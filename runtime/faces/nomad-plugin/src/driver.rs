//! The driver service: it turns calls of Nomad into calls about the tasks of one driver.
//!
//! ```text
//! StartTask ─ translation ─► tasks: start, note, release ─► handle for Nomad's state
//! RecoverTask ─ handle ─► tasks: adopt, ask the driver        WaitTask, StopTask, … ─► tasks
//! ```

mod errors;
mod exec;
mod fingerprint;
mod record;
mod recovery;
mod task;
mod tasks;
mod translation;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio_stream::wrappers::{BroadcastStream, WatchStream};
use tonic::{Request, Response, Status, Streaming};

use crate::controls::{Answers, stream_until_shutdown};
use crate::proto::driver::driver_capabilities::{FsIsolation as Fs, MountConfigs};
use crate::proto::driver::driver_server::Driver as DriverService;
use crate::proto::driver::network_isolation_spec::NetworkIsolationMode;
use crate::proto::driver::{self as wire};
use crate::schema;
use crate::server::ServedPlugin;
use ostler_model::clock;
use ostler_model::json::JsonObject;
use ostler_model::limits::{NOMAD_FINGERPRINT_PAUSE, NOMAD_STATS_INTERVAL_MIN};
use ostler_model::ports::FsIsolation;
use ostler_plugin::Plugin;
use ostler_plugin::driver::LoadedDriver;

pub(crate) use fingerprint::attribute;
pub(crate) use task::wire_time;
pub(crate) use tasks::DriverTasks;

/// For fuzz targets: do these bytes of Nomad's state hold the record of a run?
pub(crate) fn fuzz_record(bytes: &[u8]) -> bool {
    record::NomadRunRecord::decode(bytes).is_some_and(|kept| !kept.encode().is_empty())
}

/// For fuzz targets: translate a task of Nomad. Its log pipes are not opened.
pub(crate) fn fuzz_task(mut task: wire::TaskConfig, schema: &str) {
    task.stdout_path.clear();
    task.stderr_path.clear();
    let (spawned, events) = (Arc::default(), task::EventSender::new());
    if let Ok(context) = translation::task_context(&task, &spawned, &events) {
        let _config = translation::task_config(&task, &context, (schema, FsIsolation::Preopen));
    }
}

/// Answers the calls of the driver service.
#[derive(Clone)]
pub(crate) struct DriverSide {
    /// The plugin that is served.
    pub served: Arc<ServedPlugin>,
}

impl DriverSide {
    fn driver_plugin(&self) -> Result<&LoadedDriver, Status> {
        match self.served.found.described_plugin() {
            Plugin::Driver(plugin) => Ok(plugin),
            Plugin::Device(_) => Err(Status::unimplemented("this is a device plugin")),
        }
    }

    async fn tasks(&self) -> Result<Arc<DriverTasks>, Status> {
        self.driver_plugin()?;
        self.served.tasks().await
    }
}

/// A duration as Nomad gives it. One that is absent is zero.
pub(crate) fn duration(given: Option<prost_types::Duration>) -> Duration {
    given.and_then(|given| Duration::try_from(given).ok()).unwrap_or_default()
}

#[tonic::async_trait]
impl DriverService for DriverSide {
    type FingerprintStream = Answers<wire::FingerprintResponse>;
    type TaskStatsStream = Answers<wire::TaskStatsResponse>;
    type TaskEventsStream = Answers<wire::DriverTaskEvent>;
    type ExecTaskStreamingStream = Answers<wire::ExecTaskStreamingResponse>;

    async fn task_config_schema(
        &self,
        _request: Request<wire::TaskConfigSchemaRequest>,
    ) -> Result<Response<wire::TaskConfigSchemaResponse>, Status> {
        let none = JsonObject::default();
        let spec = schema::spec(self.driver_plugin()?.task_schema.text(), &none);
        Ok(Response::new(wire::TaskConfigSchemaResponse { spec: Some(spec) }))
    }

    async fn capabilities(
        &self,
        _request: Request<wire::CapabilitiesRequest>,
    ) -> Result<Response<wire::CapabilitiesResponse>, Status> {
        let can = &self.driver_plugin()?.capabilities;
        // No driver uses a root directory that Nomad would build by copying: an isolated task gets
        // a root made of its host's directories, and a WASM task gets only directories. A task
        // without a root of its own would not see a volume where its job says.
        let (fs, mounts) = match can.fs_isolation {
            FsIsolation::None => (Fs::None, MountConfigs::NoMounts),
            FsIsolation::Chroot | FsIsolation::Preopen => (Fs::Image, MountConfigs::AnyMounts),
        };
        let capabilities = wire::DriverCapabilities {
            send_signals: can.send_signals,
            exec: can.exec,
            fs_isolation: fs.into(),
            network_isolation_modes: vec![NetworkIsolationMode::Host.into()],
            must_create_network: false,
            mount_configs: mounts.into(),
        };
        Ok(Response::new(wire::CapabilitiesResponse { capabilities: Some(capabilities) }))
    }

    async fn fingerprint(
        &self,
        _request: Request<wire::FingerprintRequest>,
    ) -> Result<Response<Self::FingerprintStream>, Status> {
        let found = match self.tasks().await {
            Ok(tasks) => tasks.fingerprints(),
            // Nomad shows the reason, and asks again at once when the stream ends.
            Err(status) => {
                let shown =
                    futures_util::stream::iter([Ok(fingerprint::unhealthy(status.message()))]);
                let ended = futures_util::stream::once(async {
                    clock::sleep(NOMAD_FINGERPRINT_PAUSE).await;
                    Err(status)
                });
                return Ok(stream_until_shutdown(shown.chain(ended), self.served.left.clone()));
            }
        };
        let answers = WatchStream::new(found).filter_map(|found| std::future::ready(found.map(Ok)));
        Ok(stream_until_shutdown(answers, self.served.left.clone()))
    }

    async fn recover_task(
        &self,
        request: Request<wire::RecoverTaskRequest>,
    ) -> Result<Response<wire::RecoverTaskResponse>, Status> {
        let handle = request.into_inner().handle;
        let handle = handle.ok_or_else(|| Status::invalid_argument("there is no handle"))?;
        self.tasks().await?.recover(handle).await?;
        Ok(Response::new(wire::RecoverTaskResponse {}))
    }

    async fn start_task(
        &self,
        request: Request<wire::StartTaskRequest>,
    ) -> Result<Response<wire::StartTaskResponse>, Status> {
        let task = request.into_inner().task;
        let task = task.ok_or_else(|| Status::invalid_argument("there is no task"))?;
        let tasks = self.tasks().await?;
        // Spawned, so that a Nomad that goes away meanwhile leaves no half-started task.
        let started = tokio::spawn(async move { tasks.start(task).await }).await;
        let handle = started.map_err(|_| Status::unavailable("the plugin is shutting down"))??;
        let handle = Some(handle);
        Ok(Response::new(wire::StartTaskResponse { handle, ..Default::default() }))
    }

    async fn wait_task(
        &self,
        request: Request<wire::WaitTaskRequest>,
    ) -> Result<Response<wire::WaitTaskResponse>, Status> {
        let task = self.tasks().await?.task(&request.get_ref().task_id)?;
        let ended = tokio::select! {
            ended = task.wait_end() => ended,
            () = self.served.left.cancelled() => {
                return Err(Status::unavailable("the plugin is shutting down; the task keeps running"));
            }
        };
        let err = ended.result.error.clone().unwrap_or_default();
        Ok(Response::new(wire::WaitTaskResponse { result: Some(ended.to_wire()), err }))
    }

    async fn stop_task(
        &self,
        request: Request<wire::StopTaskRequest>,
    ) -> Result<Response<wire::StopTaskResponse>, Status> {
        let wire::StopTaskRequest { task_id, timeout, signal } = request.into_inner();
        let signal = Some(signal).filter(|signal| !signal.is_empty());
        self.tasks().await?.stop(&task_id, duration(timeout), signal).await?;
        Ok(Response::new(wire::StopTaskResponse {}))
    }

    async fn destroy_task(
        &self,
        request: Request<wire::DestroyTaskRequest>,
    ) -> Result<Response<wire::DestroyTaskResponse>, Status> {
        let wire::DestroyTaskRequest { task_id, force } = request.into_inner();
        self.tasks().await?.destroy(&task_id, force).await?;
        Ok(Response::new(wire::DestroyTaskResponse {}))
    }

    async fn inspect_task(
        &self,
        request: Request<wire::InspectTaskRequest>,
    ) -> Result<Response<wire::InspectTaskResponse>, Status> {
        let task = self.tasks().await?.task(&request.get_ref().task_id)?;
        let driver = Some(wire::TaskDriverStatus::default());
        Ok(Response::new(wire::InspectTaskResponse { task: Some(task.status()), driver }))
    }

    async fn task_stats(
        &self,
        request: Request<wire::TaskStatsRequest>,
    ) -> Result<Response<Self::TaskStatsStream>, Status> {
        let wire::TaskStatsRequest { task_id, collection_interval } = request.into_inner();
        let tasks = self.tasks().await?;
        let interval = duration(collection_interval).max(NOMAD_STATS_INTERVAL_MIN);
        let stats = usage::stream(&tasks, tasks.task(&task_id)?, interval);
        Ok(stream_until_shutdown(stats.map(Ok), self.served.left.clone()))
    }

    async fn task_events(
        &self,
        _request: Request<wire::TaskEventsRequest>,
    ) -> Result<Response<Self::TaskEventsStream>, Status> {
        let events = BroadcastStream::new(self.tasks().await?.events());
        // Events that were lost because Nomad does not read are left out.
        let events = events.filter_map(|event| std::future::ready(event.ok().map(Ok)));
        Ok(stream_until_shutdown(events, self.served.left.clone()))
    }

    async fn signal_task(
        &self,
        request: Request<wire::SignalTaskRequest>,
    ) -> Result<Response<wire::SignalTaskResponse>, Status> {
        let wire::SignalTaskRequest { task_id, signal } = request.into_inner();
        self.tasks().await?.signal(&task_id, signal).await?;
        Ok(Response::new(wire::SignalTaskResponse {}))
    }

    async fn exec_task(
        &self,
        request: Request<wire::ExecTaskRequest>,
    ) -> Result<Response<wire::ExecTaskResponse>, Status> {
        let wire::ExecTaskRequest { task_id, command, timeout } = request.into_inner();
        let tasks = self.tasks().await?;
        let session = tasks.exec(&task_id, command, None).await?;
        Ok(Response::new(exec::collect_output(session, duration(timeout)).await?))
    }

    async fn exec_task_streaming(
        &self,
        request: Request<Streaming<wire::ExecTaskStreamingRequest>>,
    ) -> Result<Response<Self::ExecTaskStreamingStream>, Status> {
        let mut asked = request.into_inner();
        let (task, command, terminal) = exec::setup(&mut asked).await?;
        let tasks = self.tasks().await?;
        let session = tasks.exec(&task, command, terminal).await?;
        Ok(stream_until_shutdown(exec::stream(session, asked), self.served.left.clone()))
    }

    async fn create_network(
        &self,
        _request: Request<wire::CreateNetworkRequest>,
    ) -> Result<Response<wire::CreateNetworkResponse>, Status> {
        Err(Status::unimplemented("drivers of Ostler make no networks"))
    }

    async fn destroy_network(
        &self,
        _request: Request<wire::DestroyNetworkRequest>,
    ) -> Result<Response<wire::DestroyNetworkResponse>, Status> {
        Err(Status::unimplemented("drivers of Ostler make no networks"))
    }
}
