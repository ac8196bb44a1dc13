//! Keeps the services of an allocation in the list of the node, and asks their checks, for as long
//! as the services are up.
//!
//! The hook is level-triggered on the states of the tasks. What runs decides what is offered,
//! so nothing is saved and a new agent offers the same. The services leave the list before the
//! first task is told to stop, so that their users have the group's `shutdown_delay` to look
//! for another instance.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AllocHook, AllocScope, HookNews, HookResult};
use crate::alloc::checks::{CheckMeans, Checks};
use crate::alloc::health::CheckId;
use crate::alloc::services::offer;
use crate::alloc::services::resolve::{self, AskedCheck, Question, ServiceNetworks};
use crate::task::env::{EnvInput, TaskDirs, TaskEnv};
use crate::task::hooks::environment_of_task;
use crate::task::interpolate::UnknownReference;
use crate::task::{events, references};
use ostler_model::alloc::{AllocState, Allocation};
use ostler_model::causes::chain;
use ostler_model::ids::TaskName;
use ostler_model::job::{Check, CheckKind, Service, TaskGroup};
use ostler_model::network::{AllocNetwork, DriverNetwork};
use ostler_model::ports::{AllocUser, FsIsolation};
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;

const NAME: &str = "services";

pub(super) struct ServicesHook;

impl AllocHook for ServicesHook {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            start_offering(scope);
            Ok(())
        })
    }

    fn update<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.services.newest.send_replace(Arc::clone(&scope.allocation));
            start_offering(scope);
            Ok(())
        })
    }

    fn pre_kill<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.background.stop(NAME);
            scope.services.close(scope.allocation.id);
            Ok(())
        })
    }
}

/// Start the loop that offers services, unless it runs. The loop sees newer copies by itself.
/// Nothing runs for an allocation without services.
fn start_offering(scope: &AllocScope) {
    let offers = |group: &TaskGroup| !group.services.is_empty();
    if scope.allocation.task_group().is_some_and(offers) && !scope.background.is_running(NAME) {
        scope.background.run(NAME, OfferLoop::new(scope.clone()).run());
    }
}

/// Takes the services of an allocation off the list when it is dropped, in whatever way
/// the loop ends.
struct OfferGuard(AllocScope);

impl Drop for OfferGuard {
    fn drop(&mut self) {
        self.0.services.offer(self.0.allocation.id, Vec::new());
    }
}

struct OfferLoop {
    scope: OfferGuard,
    checks: Checks,
    /// The troubles of each service that were reported.
    said: BTreeMap<CheckId, Vec<ServiceTrouble>>,
}

/// A trouble of a service that people are told of.
#[derive(Debug, PartialEq, Eq)]
enum ServiceTrouble {
    /// The service cannot be listed, for this reason.
    NotListed(String),
    /// The service is listed with references that nobody knows; their text stays as it is.
    Unknown(Vec<UnknownReference>),
}

impl OfferLoop {
    fn new(scope: AllocScope) -> Self {
        let means = CheckMeans {
            places: scope.node.services.places(),
            tasks: scope.tasks.clone(),
            clock: scope.node.clock.clone(),
            rng: scope.node.rng.clone(),
        };
        Self { scope: OfferGuard(scope), checks: Checks::new(means), said: BTreeMap::new() }
    }

    async fn run(mut self) {
        let scope = &self.scope.0;
        let (mut states, mut newest) = (scope.state.clone(), scope.services.newest.subscribe());
        loop {
            // Marked as seen before the look, so that a later change wakes the wait below.
            let state = states.borrow_and_update().clone();
            let allocation = Arc::clone(&newest.borrow_and_update());
            self.offer_services(&allocation, &state).await;
            let gone = loop {
                tokio::select! {
                    biased;
                    changed = states.changed() => break changed.is_err(),
                    changed = newest.changed() => break changed.is_err(),
                    answered = self.checks.next() => {
                        if let Some(asked) = self.checks.take(answered) {
                            self.restart(&asked).await;
                        }
                        self.publish_results();
                    }
                }
            };
            if gone {
                return;
            }
        }
    }

    fn publish_results(&self) {
        let results = self.checks.results();
        self.scope.0.services.results.send_if_modified(|known| {
            let differs = **known != *results;
            if differs {
                *known = results;
            }
            differs
        });
    }

    /// List the services that are up now and ask their checks.
    async fn offer_services(&mut self, allocation: &Allocation, state: &AllocState) {
        let Some(group) = allocation.task_group() else { return };
        let (mut instances, mut wanted, mut told) = (Vec::new(), Vec::new(), Vec::new());
        let mut around =
            ServiceEnvs { scope: &self.scope.0, allocation, group, envs: BTreeMap::new() };
        let own = self.scope.0.context.network.get();
        for service in &group.services {
            let Some(started) = offer::offered_since(service, group, state) else { continue };
            let of_task = service.task.as_ref();
            let of_driver = of_task.and_then(|task| self.scope.0.context.network.of_driver(task));
            let networks = service_networks(
                &self.scope.0,
                allocation,
                own.as_deref(),
                of_driver.as_deref(),
                service,
            );
            let env = around.env(service.task.as_ref()).await;
            let called = |check: &Check| match &env {
                Ok(env) => resolve::check_name(check, env),
                Err(_) => check.name.clone(),
            };
            let names: Vec<String> = service.checks.iter().map(called).collect();
            let instance = env.and_then(|env| {
                let unknown = references::unknown_of_service(service, env);
                if !unknown.is_empty() {
                    told.push((service, ServiceTrouble::Unknown(unknown)));
                }
                resolve::instance(service, allocation, env, networks).map_err(|error| chain(&error))
            });
            let name = instance.as_ref().map_or(&service.name, |instance| &instance.name).clone();
            for (check, called) in service.checks.iter().zip(names) {
                wanted.push(AskedCheck {
                    id: CheckId::from_check(service, check),
                    check: Arc::new(check.clone()),
                    service: name.clone(),
                    name: called,
                    question: match &instance {
                        Ok(_) => around.question(service, check, networks).await,
                        Err(why) => Err(why.clone()),
                    },
                    started,
                });
            }
            match instance {
                Ok(instance) => instances.push(instance),
                Err(why) => told.push((service, ServiceTrouble::NotListed(why))),
            }
        }
        self.checks.set(wanted);
        self.scope.0.services.offer(allocation.id, instances);
        self.publish_results();
        for (service, trouble) in told {
            self.report_trouble(allocation, service, trouble).await;
        }
    }

    /// Report a trouble of a service, unless it was reported before.
    async fn report_trouble(
        &mut self,
        allocation: &Allocation,
        service: &Service,
        trouble: ServiceTrouble,
    ) {
        let event = match &trouble {
            ServiceTrouble::NotListed(why) => {
                tracing::warn!(alloc = %allocation.id, service = %service.name, why, "service not listed");
                events::service_not_listed(self.now(), &service.name, why)
            }
            ServiceTrouble::Unknown(unknown) => events::unknown_references(self.now(), unknown),
        };
        let id = CheckId {
            task: service.task.clone(),
            service: service.name.clone(),
            port: service.port.clone(),
            check: String::new(),
        };
        let said = self.said.entry(id).or_default();
        if said.contains(&trouble) {
            return;
        }
        // Of each kind of trouble only the newest is remembered.
        let same =
            |one: &ServiceTrouble| std::mem::discriminant(one) == std::mem::discriminant(&trouble);
        said.retain(|one| !same(one));
        said.push(trouble);
        let news = match service.task.as_ref().or(service.runs_in.as_ref()) {
            Some(task) => HookNews::SayTo(task.clone(), event),
            None => HookNews::Say(event),
        };
        self.scope.0.tell(news).await;
    }

    fn now(&self) -> Timestamp {
        self.scope.0.node.clock.now()
    }

    /// Restart what a check demands: the task of the service, or all tasks that run.
    async fn restart(&self, asked: &AskedCheck) {
        let Some(tasks) = self.scope.0.tasks.upgrade() else { return };
        let reason = events::unhealthy_reason(&asked.name);
        let such = |name: &TaskName| asked.id.task.as_ref().is_none_or(|task| task == name);
        let targets: Vec<_> = tasks.iter().filter(|(name, _)| such(name)).collect();
        for (name, task) in targets {
            if task.state().status != TaskStatus::Running {
                continue;
            }
            if let Err(error) = task.restart_unhealthy(&reason).await {
                // Somebody else is ending the task.
                tracing::debug!(task = %name, %error, "not restarted for its check");
            }
        }
    }
}

/// The variables that texts of services may refer to, built once for each task.
struct ServiceEnvs<'a> {
    scope: &'a AllocScope,
    allocation: &'a Allocation,
    group: &'a TaskGroup,
    envs: BTreeMap<Option<&'a TaskName>, Result<TaskEnv, String>>,
}

impl<'a> ServiceEnvs<'a> {
    /// The variables of a task, or of the group as a whole.
    async fn env(&mut self, task: Option<&'a TaskName>) -> Result<&TaskEnv, String> {
        let (scope, allocation) = (self.scope, self.allocation);
        let task = task.filter(|name| self.group.task(name).is_some());
        let built = match self.envs.remove(&task) {
            Some(built) => built,
            None => match task {
                None => {
                    let network = scope.context.network.get();
                    let of_group =
                        TaskEnv::of_group(allocation, &scope.context.facts, network.as_deref());
                    of_group.map_err(|error| chain(&error))
                }
                Some(name) => build_task_env(scope, allocation, self.group, name).await,
            },
        };
        self.envs.entry(task).or_insert(built).as_ref().map_err(Clone::clone)
    }

    async fn question(
        &mut self,
        service: &'a Service,
        check: &'a Check,
        networks: ServiceNetworks<'_>,
    ) -> Result<Question, String> {
        let task = match check.kind {
            CheckKind::Script { .. } => resolve::script_task(check, service),
            _ => service.task.as_ref(),
        };
        let env = self.env(task).await?;
        resolve::question(check, service, env, networks).map_err(|error| chain(&error))
    }
}

async fn build_task_env(
    scope: &AllocScope,
    allocation: &Allocation,
    group: &TaskGroup,
    name: &TaskName,
) -> Result<TaskEnv, String> {
    let Some(task) = group.task(name) else { return Err(format!("there is no task {name}")) };
    let dir = scope.node.alloc_root.join(allocation.id.to_string());
    let driver = scope.node.drivers.dispense(&task.driver).ok();
    let isolation = driver.as_ref().map(|driver| driver.capabilities().fs_isolation);
    let isolation = isolation.unwrap_or(FsIsolation::None);
    let dirs = TaskDirs::new(isolation, &dir.join("alloc"), &dir.join(name.as_str()));
    let dirs = dirs.map_err(|error| chain(&error))?;
    let network = scope.context.network.get();
    let input = EnvInput {
        alloc: allocation,
        task,
        node: &scope.context.facts,
        dirs: &dirs,
        of_driver: &[],
        hook_env: &[],
        network: network.as_deref(),
    };
    // The user of the allocation's tasks is not known here.
    let of_alloc = AllocUser::NotKnown;
    environment_of_task(input, driver.as_deref(), of_alloc).await.map_err(|error| chain(&error))
}

fn service_networks<'a>(
    scope: &'a AllocScope,
    allocation: &'a Allocation,
    own: Option<&'a AllocNetwork>,
    of_driver: Option<&'a DriverNetwork>,
    service: &'a Service,
) -> ServiceNetworks<'a> {
    ServiceNetworks {
        ports: &allocation.ports,
        task: service.task.as_ref(),
        host_ip: &scope.context.host_ip,
        alloc_ip: own.map(|own| own.status.address.as_str()).filter(|ip| !ip.is_empty()),
        of_driver,
    }
}
