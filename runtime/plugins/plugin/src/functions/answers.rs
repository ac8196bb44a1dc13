//! How the answers of calls are checked.

use std::sync::Arc;

use super::{AnswerSource, CallAnswer, dev, drv};
use crate::convert::{self, AnswerError, DriverFingerprint};
use ostler_device::source::DeviceFingerprint;
use ostler_model::clock::Timestamp;
use ostler_model::device::Reservation;
use ostler_model::limits::HANDLE_BYTES_MAX;
use ostler_model::ports::{InspectResult, StartedTask};
use ostler_model::session::ExecPlan;
use ostler_model::stats::DeviceGroupStats;
use ostler_model::task::{DriverHandle, ExitResult, RawExit, Workload};

fn broken_answer(place: &str, problem: String) -> AnswerError {
    AnswerError { place: place.to_owned(), problem }
}

impl CallAnswer for () {
    type Contract = ();

    fn check((): (), _source: &AnswerSource<'_>) -> Result<(), AnswerError> {
        Ok(())
    }
}

impl CallAnswer for StartedTask {
    type Contract = drv::Started;

    fn check(given: drv::Started, source: &AnswerSource<'_>) -> Result<Self, AnswerError> {
        let data = given.handle.data;
        if data.len() > HANDLE_BYTES_MAX {
            let problem = format!("has {} bytes; at most {HANDLE_BYTES_MAX}", data.len());
            return Err(broken_answer("handle", problem));
        }
        let network = given.network.map(convert::driver_network).transpose()?.map(Arc::new);
        let id = |id| convert::name("workload id", id);
        let workload = match given.workload {
            drv::Workload::Process(process) => Workload::Process(id(process)?),
            drv::Workload::WasmTask(task) => Workload::WasmTask(id(task)?),
            drv::Workload::Poll(interval) => Workload::Poll(interval),
        };
        let (plugin, version) = (source.plugin.to_string(), given.handle.version);
        Ok(Self { handle: DriverHandle { plugin, version, data }, workload, network })
    }
}

impl CallAnswer for ExitResult {
    type Contract = drv::ExitResult;

    fn scrub(given: &mut drv::ExitResult, scrub: &mut dyn FnMut(&mut String)) {
        given.error.as_mut().into_iter().for_each(scrub);
    }

    fn check(given: drv::ExitResult, _source: &AnswerSource<'_>) -> Result<Self, AnswerError> {
        Ok(Self {
            exit_code: given.exit_code,
            signal: given.signal,
            oom_killed: given.oom_killed,
            error: given.error.map(|text| convert::text("error", text)).transpose()?,
        })
    }
}

impl CallAnswer for InspectResult {
    type Contract = drv::Status;

    fn scrub(given: &mut drv::Status, scrub: &mut dyn FnMut(&mut String)) {
        given.exit.as_mut().and_then(|exit| exit.error.as_mut()).into_iter().for_each(scrub);
    }

    fn check(given: drv::Status, _source: &AnswerSource<'_>) -> Result<Self, AnswerError> {
        match (given.state, given.exit) {
            (drv::RunState::Running, _) => Ok(Self::Running),
            (drv::RunState::Unknown, _) => Ok(Self::Unknown),
            (drv::RunState::Exited, Some(exit)) => Ok(Self::Exited(RawExit {
                exit_code: exit.exit_code,
                signal: exit.signal,
                oom_killed: exit.oom_killed,
                error: exit.error.map(|text| convert::text("error", text)).transpose()?,
                finished_at: Timestamp::from_nanos(exit.finished_at),
            })),
            (drv::RunState::Exited, None) => {
                Err(broken_answer("state", "exited without an exit".to_owned()))
            }
        }
    }
}

impl CallAnswer for ExecPlan {
    type Contract = drv::ExecPlan;

    fn check(given: drv::ExecPlan, _source: &AnswerSource<'_>) -> Result<Self, AnswerError> {
        let env = given.env.into_iter().map(|var| (var.name, var.value)).collect();
        Ok(Self { argv: given.argv, env: Some(env), cwd: Some(given.cwd), user: given.user })
    }
}

impl CallAnswer for DriverFingerprint {
    type Contract = drv::DriverFingerprint;

    fn scrub(given: &mut drv::DriverFingerprint, scrub: &mut dyn FnMut(&mut String)) {
        scrub(&mut given.health.reason);
    }

    fn check(
        given: drv::DriverFingerprint,
        _source: &AnswerSource<'_>,
    ) -> Result<Self, AnswerError> {
        convert::driver_fingerprint(given)
    }
}

impl CallAnswer for DeviceFingerprint {
    type Contract = dev::DeviceFingerprint;

    fn scrub(given: &mut dev::DeviceFingerprint, scrub: &mut dyn FnMut(&mut String)) {
        let instances = given.groups.iter_mut().flat_map(|group| &mut group.instances);
        let healths = instances.map(|instance| &mut instance.health);
        for health in std::iter::once(&mut given.health).chain(healths) {
            scrub(&mut health.reason);
        }
    }

    fn check(
        given: dev::DeviceFingerprint,
        source: &AnswerSource<'_>,
    ) -> Result<Self, AnswerError> {
        convert::device_fingerprint(source.plugin, given)
    }
}

impl CallAnswer for Reservation {
    type Contract = dev::Reservation;

    fn check(given: dev::Reservation, _source: &AnswerSource<'_>) -> Result<Self, AnswerError> {
        convert::reservation(given)
    }
}

impl CallAnswer for Vec<DeviceGroupStats> {
    type Contract = Vec<dev::GroupStats>;

    fn check(given: Self::Contract, source: &AnswerSource<'_>) -> Result<Self, AnswerError> {
        convert::device_stats(given, source.clock.now())
    }
}
