//! The handler of each route. Everything else about a route is in [`crate::routes`].

use std::future::{Ready, ready};
use std::sync::Arc;

use axum::extract::State;
use axum::handler::Handler;
use axum::response::Response;
use axum::routing::{MethodFilter, MethodRouter, any, on};
use serde::Serialize;

use super::error::RequestFailure;
use super::params::Params;
use super::router::{Api, ApiState};
use super::{
    agent, allocs, blocked, client, debug, deployments, evaluations, event_stream, events, exec,
    fs, fs_stream, host, jobs, json, live, logs, metrics, monitor, namespaces, nodes, plugins,
    reply, scaling, search, servers, services, snapshot, tokens, ui, variables,
};
use crate::routes::{Route, RouteMethods};

/// Make [`handler`] from a table.
macro_rules! handlers {
    ($($name:ident: $handler:expr,)*) => {
        /// What answers the requests of a route.
        pub(super) fn handler(route: Route) -> MethodRouter<Arc<Api>> {
            match route { $(Route::$name => with_methods(route, $handler),)* }
        }
    };
}

fn with_methods<H, T>(route: Route, handler: H) -> MethodRouter<Arc<Api>>
where
    H: Handler<T, Arc<Api>>,
    T: 'static,
{
    let put = MethodFilter::PUT.or(MethodFilter::POST);
    match route.methods() {
        RouteMethods::Any => any(handler),
        RouteMethods::Get => on(MethodFilter::GET, handler),
        RouteMethods::Put => on(put, handler),
        RouteMethods::Delete => on(MethodFilter::DELETE, handler),
        RouteMethods::PutDelete => on(put.or(MethodFilter::DELETE), handler),
    }
}

/// Answer with a view of the agent, as JSON.
fn view<T: Serialize>(
    look: impl Fn(&Api) -> T + Clone + Send + Sync + 'static,
) -> impl Fn(ApiState, Params) -> Ready<Result<Response, RequestFailure>> + Clone + Send + Sync + 'static
{
    move |State(api), params| ready(reply::json(&params, &look(&api)))
}

handlers! {
    ListJobs: jobs::list,
    RegisterJob: jobs::register,
    ParseJob: jobs::parse,
    ValidateJob: jobs::validate,
    ReadJob: jobs::read,
    UpdateJob: jobs::update,
    StopJob: jobs::stop,
    PlanJob: jobs::plan,
    SummarizeJob: jobs::summary,
    EvaluateJob: jobs::evaluate,
    ListJobVersions: jobs::versions,
    ListJobAllocs: allocs::list_of_job,
    ListJobEvaluations: evaluations::list_of_job,
    ListJobDeployments: deployments::list_of_job,
    ReadJobDeployment: deployments::newest_of_job,
    RevertJob: deployments::revert,
    MarkJobStable: deployments::stable,
    ReadJobScale: scaling::status,
    ScaleJob: scaling::scale,
    ListScalingPolicies: scaling::policies,
    ReadScalingPolicy: scaling::policy,
    ListEvaluations: evaluations::list,
    ReadEvaluation: evaluations::read,
    ListEvaluationAllocs: evaluations::allocations,
    ReadBlockedJob: blocked::read,
    ListDeployments: deployments::list,
    ReadDeployment: deployments::read,
    ListDeploymentAllocs: deployments::allocations,
    PromoteDeployment: deployments::promote,
    FailDeployment: deployments::fail,
    PauseDeployment: deployments::pause,
    UnblockDeployment: deployments::unblock,
    SetAllocHealth: deployments::judge,
    ListAllocs: allocs::list,
    ReadAlloc: allocs::read,
    StopAlloc: allocs::stop,
    ReadAllocUsage: client::stats,
    ListAllocChecks: services::checks,
    ExecInAlloc: exec::run,
    RestartAlloc: client::restart,
    SignalAlloc: client::signal,
    CollectAlloc: client::collect_one,
    ReadAllocSnapshot: snapshot::read,
    CollectNodeAllocs: client::collect_all,
    ReadLogs: logs::read,
    ListFiles: fs::list,
    StatFile: fs::stat,
    ReadFile: fs::cat,
    ReadFileAt: fs::read_at,
    StreamFile: fs_stream::read,
    ListNodeAllocs: allocs::list_of_node,
    Search: search::search,
    StreamEvents: event_stream::read,
    ListServices: services::list,
    ReadService: services::read,
    CollectGarbage: agent::collect,
    ReadMetrics: metrics::read,
    LiftQuarantine: plugins::lift,
    RecordPlugin: plugins::record,
    UpgradePlugin: plugins::upgrade,
    ReadNodeUsage: host::stats,
    ReadAgent: agent::agent_self,
    ReadHealth: agent::health,
    StreamAgentLog: monitor::read,
    ReadNodeView: view(|api| api.agent.node()),
    ListPlugins: view(|api| api.agent.plugins_now()),
    ListPluginStates: view(|api| api.agent.plugins_status()),
    ListWatches: view(|api| api.agent.watch_report()),
    ListDevices: view(|api| api.agent.devices()),
    ReadState: view(|api| api.agent.state_stats()),
    ListHeldRuns: view(|api| api.agent.held_report()),
    EndHeldRun: agent::end_run,
    StreamNode: live::read,
    ReadAgentLog: monitor::last_lines,
    ListNodeEvents: events::read,
    ReadReadiness: view(|api| api.agent.readiness()),
    ReadReload: view(|api| api.agent.last_reload()),
    ReadJobsDir: view(|api| api.agent.jobs_dir()),
    ListVariables: variables::list,
    ReadVariable: variables::read,
    PutVariable: variables::put,
    DeleteVariable: variables::delete,
    ReadHost: debug::machine,
    ProfileAgent: debug::refuse_profile,
    ListNodes: nodes::list,
    ReadNode: nodes::read,
    SetEligibility: nodes::eligibility,
    DrainNode: nodes::drain,
    EvaluateNode: nodes::evaluate,
    PurgeNode: nodes::purge,
    ListNamespaces: namespaces::list,
    CreateNamespace: namespaces::make,
    ReadNamespace: namespaces::read,
    ChangeNamespace: namespaces::change,
    DeleteNamespace: namespaces::remove,
    ReadLeader: view(|_| agent::SELF_ADDRESS),
    ListPeers: view(|_| [agent::SELF_ADDRESS]),
    ListRegions: view(|_| [json::REGION]),
    ListMembers: servers::members,
    ListServers: view(|_| [agent::SELF_ADDRESS]),
    SetServers: servers::refuse_alone,
    JoinCluster: servers::refuse_alone,
    ForceLeave: servers::force_leave,
    ReadRaft: servers::raft,
    RemoveRaftPeer: servers::refuse_without_cluster,
    ReadAutopilot: servers::autopilot,
    SetAutopilot: servers::refuse_without_cluster,
    ReadAutopilotHealth: servers::refuse_without_cluster,
    ReadScheduler: servers::scheduler,
    SetScheduler: servers::refuse_without_cluster,
    SnapshotServers: servers::refuse_without_cluster,
    ManageKeyring: servers::refuse_without_cluster,
    DispatchJob: servers::refuse_without_cluster,
    ForcePeriodicJob: servers::refuse_without_cluster,
    ListCsiPlugins: view(|_| servers::NOTHING),
    ListCsiVolumes: view(|_| servers::NOTHING),
    ReadCsiPlugin: servers::no_csi_plugin,
    ReadCsiVolume: servers::no_volume,
    DeleteCsiVolume: servers::no_volume,
    RegisterCsiVolume: servers::no_csi,
    DetachCsiVolume: servers::no_volume,
    ReconcileSummaries: servers::reconcile_summaries,
    ListQuotas: servers::refuse_enterprise,
    CreateQuota: servers::refuse_enterprise,
    ReadQuota: servers::refuse_enterprise,
    ListQuotaUsages: servers::refuse_enterprise,
    ManageSentinel: servers::refuse_enterprise,
    CreateRecommendation: servers::refuse_enterprise,
    ReadRecommendation: servers::refuse_enterprise,
    ListRecommendations: servers::refuse_enterprise,
    ApplyRecommendations: servers::refuse_enterprise,
    ReadLicense: servers::no_license,
    SetLicense: servers::refuse_enterprise,
    BootstrapTokens: tokens::bootstrap,
    ListTokens: tokens::list,
    CreateToken: tokens::create,
    ReadOwnToken: tokens::own_token,
    ReadToken: tokens::read,
    UpdateToken: tokens::update,
    DeleteToken: tokens::delete,
    ListPolicies: tokens::policies,
    ReadPolicy: tokens::policy,
    ChangePolicy: tokens::refuse_policy_change,
    ManageAcl: tokens::refuse_other_path,
    OpenRoot: ui::redirect,
    OpenPage: ui::redirect,
    ReadPage: ui::page,
    ReadPageFile: ui::page,
}
