//! The routes of the API: each is described here once.
//!
//! ```text
//! routes! ─► Route ─┬─► server/router.rs: the handler of each, behind its gate
//!                   ├─► server/access.rs: what a request needs
//!                   └─► docs/api.md (tests)
//! ```
//! A route without a need or without a handler does not compile. The paths are Nomad's, but for those below
//! `/v1/ostler/`.

use std::collections::HashMap;
use std::sync::LazyLock;

use hyper::Method;

use ostler_model::access::AccessLevel;
use ostler_model::access::AccessLevel::{Admin, Operate, Read, Submit};

/// The methods of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMethods {
    /// `GET` and `HEAD`.
    Get,
    /// `PUT` and `POST`, which mean the same.
    Put,
    /// `DELETE`.
    Delete,
    /// `PUT`, `POST` and `DELETE`.
    PutDelete,
    /// Any method.
    Any,
}

impl RouteMethods {
    /// Is this method one of them?
    #[must_use]
    pub fn contains(self, method: &Method) -> bool {
        let put = *method == Method::PUT || *method == Method::POST;
        let delete = *method == Method::DELETE;
        match self {
            Self::Get => *method == Method::GET || *method == Method::HEAD,
            Self::Put => put,
            Self::Delete => delete,
            Self::PutDelete => put || delete,
            Self::Any => true,
        }
    }
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Anybody may send it, also without a token.
    Open,
    /// It needs any token.
    Token,
    /// It must come over the agent's socket.
    Socket,
    /// It needs this level in this scope.
    Level(AccessLevel, AccessScope),
}

/// The place in which a level is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessScope {
    /// In all namespaces, and for the node itself.
    Node,
    /// In the namespace that the query names. With `*`, only what may be seen is shown.
    Named,
    /// In any namespace. The handler shows only what may be seen, or checks again when it knows the
    /// namespace.
    Shown,
    /// In the namespace of the allocation that the path names.
    Alloc,
    /// As `Alloc`, but the token may come after the upgrade to a WebSocket.
    Session,
    /// In the namespace of the deployment that the path names.
    Deployment,
    /// In the namespace of the job of the evaluation that the path names.
    Evaluation,
}

/// What must be loaded before a request is handled, and what is checked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteGate {
    /// It is answered from the beginning, while the agent starts.
    Open,
    /// It is answered from the beginning; a change must name a namespace that exists.
    Namespace,
    /// It waits, for a while, until all jobs and allocations are restored; a change must name a namespace
    /// that exists.
    Restored,
    /// It waits, for a while, until all plugins are loaded.
    Loaded,
}

use AccessScope::{Alloc, Deployment, Evaluation, Named, Node, Session, Shown};
use Need::{Level, Open, Socket, Token};

/// Make [`Route`] from a table: the description, the name, the methods, the path as a router reads it, the need
/// and the gate of each.
macro_rules! routes {
    ($($(#[doc = $doc:literal])+ $name:ident: $methods:ident $path:literal, $need:expr, $gate:ident;)*) => {
        /// A route: one path with the methods that do the same there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Route {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Route {
            /// All routes, in the order of `docs/api.md`.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The path, with the names of its variable parts in braces.
            #[must_use]
            pub const fn path(self) -> &'static str {
                match self { $(Self::$name => $path,)* }
            }

            /// The methods.
            #[must_use]
            pub const fn methods(self) -> RouteMethods {
                match self { $(Self::$name => RouteMethods::$methods,)* }
            }

            /// What a request with a method of the route needs; see [`Self::need_of`] for others.
            #[must_use]
            pub const fn need(self) -> Need {
                match self { $(Self::$name => $need,)* }
            }

            /// What comes before the handler.
            #[must_use]
            pub const fn gate(self) -> RouteGate {
                match self { $(Self::$name => RouteGate::$gate,)* }
            }

            /// What it is for, as a sentence.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)* }
            }
        }
    };
}

/// The routes of each path.
static BY_PATH: LazyLock<HashMap<&'static str, Vec<Route>>> = LazyLock::new(|| {
    let mut by_path: HashMap<&str, Vec<Route>> = HashMap::new();
    for route in Route::ALL {
        by_path.entry(route.path()).or_default().push(*route);
    }
    by_path
});

impl Route {
    /// The route of a request, by the path as the router names it. A method that the path does not have is
    /// judged as the last one that it has. `None` for a path that is not here.
    #[must_use]
    pub fn find(method: &Method, path: &str) -> Option<Self> {
        let here = BY_PATH.get(path)?;
        here.iter().find(|route| route.methods().contains(method)).or(here.last()).copied()
    }

    /// What a request with this method needs. Whoever may only read sends nothing but reads: another method is
    /// for `admin` where the route takes any, or does not have it.
    #[must_use]
    pub fn need_of(self, method: &Method) -> Need {
        let reads = RouteMethods::Get.contains(method);
        match (self.methods(), self.need()) {
            (RouteMethods::Get | RouteMethods::Any, Level(Read, _)) if !reads => Level(Admin, Node),
            (_, need) => need,
        }
    }
}

routes! {
    /// The jobs of a namespace.
    ListJobs: Get "/v1/jobs", Level(Read, Named), Restored;
    /// Register a job, or a new version of it.
    RegisterJob: Put "/v1/jobs", Level(Submit, Shown), Restored;
    /// Read the text of a job file, and answer with the job as JSON.
    ParseJob: Put "/v1/jobs/parse", Level(Read, Shown), Restored;
    /// Check a job without registering it.
    ValidateJob: Put "/v1/validate/job", Level(Read, Shown), Restored;
    /// A job.
    ReadJob: Get "/v1/job/{id}", Level(Read, Named), Restored;
    /// Register a new version of a job.
    UpdateJob: Put "/v1/job/{id}", Level(Submit, Shown), Restored;
    /// Stop a job, or forget it with `purge`.
    StopJob: Delete "/v1/job/{id}", Level(Submit, Named), Restored;
    /// What registering a job would change.
    PlanJob: Put "/v1/job/{id}/plan", Level(Submit, Shown), Restored;
    /// How many allocations of a job are in which state, for each task group.
    SummarizeJob: Get "/v1/job/{id}/summary", Level(Read, Named), Restored;
    /// Replace the failed allocations of a job at once where the body asks for it; what waits is tried anyway.
    EvaluateJob: Put "/v1/job/{id}/evaluate", Level(Submit, Named), Restored;
    /// The versions of a job that are kept.
    ListJobVersions: Get "/v1/job/{id}/versions", Level(Read, Named), Restored;
    /// The allocations of a job.
    ListJobAllocs: Get "/v1/job/{id}/allocations", Level(Read, Named), Restored;
    /// The evaluations of a job.
    ListJobEvaluations: Get "/v1/job/{id}/evaluations", Level(Read, Named), Restored;
    /// The deployments of a job.
    ListJobDeployments: Get "/v1/job/{id}/deployments", Level(Read, Named), Restored;
    /// The newest deployment of a job.
    ReadJobDeployment: Get "/v1/job/{id}/deployment", Level(Read, Named), Restored;
    /// Run an earlier version of a job again.
    RevertJob: Put "/v1/job/{id}/revert", Level(Submit, Named), Restored;
    /// Say of a version of a job whether it is stable.
    MarkJobStable: Put "/v1/job/{id}/stable", Level(Submit, Named), Restored;
    /// The counts of the task groups of a job.
    ReadJobScale: Get "/v1/job/{id}/scale", Level(Read, Named), Restored;
    /// Change the count of a task group.
    ScaleJob: Put "/v1/job/{id}/scale", Level(Submit, Named), Restored;
    /// The scaling policies of the jobs of a namespace.
    ListScalingPolicies: Get "/v1/scaling/policies", Level(Read, Named), Restored;
    /// A scaling policy.
    ReadScalingPolicy: Get "/v1/scaling/policy/{id}", Level(Read, Node), Restored;
    /// The evaluations of a namespace.
    ListEvaluations: Get "/v1/evaluations", Level(Read, Named), Restored;
    /// An evaluation.
    ReadEvaluation: Get "/v1/evaluation/{id}", Level(Read, Evaluation), Restored;
    /// The allocations that an evaluation changed.
    ListEvaluationAllocs: Get "/v1/evaluation/{id}/allocations", Level(Read, Evaluation), Restored;
    /// Why allocations of a job are not placed.
    ReadBlockedJob: Get "/v1/ostler/job/{id}/blocked", Level(Read, Named), Restored;
    /// The deployments of a namespace.
    ListDeployments: Get "/v1/deployments", Level(Read, Named), Restored;
    /// A deployment.
    ReadDeployment: Get "/v1/deployment/{id}", Level(Read, Deployment), Restored;
    /// The allocations of a deployment.
    ListDeploymentAllocs: Get "/v1/deployment/allocations/{id}", Level(Read, Deployment), Restored;
    /// Accept the canaries of a deployment.
    PromoteDeployment: Put "/v1/deployment/promote/{id}", Level(Submit, Deployment), Restored;
    /// End a deployment as failed.
    FailDeployment: Put "/v1/deployment/fail/{id}", Level(Submit, Deployment), Restored;
    /// Pause a deployment, or let it go on.
    PauseDeployment: Put "/v1/deployment/pause/{id}", Level(Submit, Deployment), Restored;
    /// Let a deployment of several regions go on, which is refused: here none is blocked.
    UnblockDeployment: Put "/v1/deployment/unblock/{id}", Level(Submit, Deployment), Restored;
    /// Say which allocations of a deployment are healthy and which are not.
    SetAllocHealth: Put "/v1/deployment/allocation-health/{id}", Level(Submit, Deployment), Restored;
    /// The allocations of a namespace.
    ListAllocs: Get "/v1/allocations", Level(Read, Named), Restored;
    /// An allocation.
    ReadAlloc: Get "/v1/allocation/{id}", Level(Read, Alloc), Restored;
    /// Stop an allocation; another one takes its place.
    StopAlloc: Put "/v1/allocation/{id}/stop", Level(Submit, Alloc), Restored;
    /// What an allocation and its tasks use of processor and memory.
    ReadAllocUsage: Get "/v1/client/allocation/{id}/stats", Level(Read, Alloc), Restored;
    /// The results of the service checks of an allocation.
    ListAllocChecks: Get "/v1/client/allocation/{id}/checks", Level(Read, Alloc), Restored;
    /// Run a command inside a task, over a WebSocket.
    ExecInAlloc: Get "/v1/client/allocation/{id}/exec", Level(Operate, Session), Restored;
    /// Restart the tasks of an allocation, or one of them.
    RestartAlloc: Put "/v1/client/allocation/{id}/restart", Level(Submit, Alloc), Restored;
    /// Send a signal to the tasks of an allocation, or to one of them.
    SignalAlloc: Put "/v1/client/allocation/{id}/signal", Level(Submit, Alloc), Restored;
    /// Remove an allocation that has ended.
    CollectAlloc: Get "/v1/client/allocation/{id}/gc", Level(Submit, Alloc), Restored;
    /// The data of an allocation as a tar archive.
    ReadAllocSnapshot: Get "/v1/client/allocation/{id}/snapshot", Level(Submit, Alloc), Restored;
    /// Remove all allocations of the node that have ended.
    CollectNodeAllocs: Get "/v1/client/gc", Level(Operate, Node), Restored;
    /// The log of a task, from any place, also as it grows.
    ReadLogs: Get "/v1/client/fs/logs/{id}", Level(Submit, Alloc), Restored;
    /// The entries of a directory of an allocation.
    ListFiles: Get "/v1/client/fs/ls/{id}", Level(Submit, Alloc), Restored;
    /// The facts about a file of an allocation.
    StatFile: Get "/v1/client/fs/stat/{id}", Level(Submit, Alloc), Restored;
    /// A file of an allocation.
    ReadFile: Get "/v1/client/fs/cat/{id}", Level(Submit, Alloc), Restored;
    /// A part of a file of an allocation.
    ReadFileAt: Get "/v1/client/fs/readat/{id}", Level(Submit, Alloc), Restored;
    /// A file of an allocation as it grows.
    StreamFile: Get "/v1/client/fs/stream/{id}", Level(Submit, Alloc), Restored;
    /// The allocations of the node.
    ListNodeAllocs: Get "/v1/node/{id}/allocations", Level(Read, Node), Restored;
    /// Find objects by the beginning of their id.
    Search: Put "/v1/search", Level(Read, Shown), Restored;
    /// Each change of the node, as it happens.
    StreamEvents: Get "/v1/event/stream", Level(Read, Shown), Restored;
    /// The services of a namespace.
    ListServices: Get "/v1/services", Level(Read, Named), Restored;
    /// The instances of a service.
    ReadService: Get "/v1/service/{name}", Level(Read, Named), Restored;
    /// Remove what has ended: jobs, evaluations, deployments and allocations.
    CollectGarbage: Put "/v1/system/gc", Level(Operate, Node), Restored;
    /// The metrics of the agent, as JSON or for Prometheus.
    ReadMetrics: Get "/v1/metrics", Level(Read, Node), Restored;
    /// Let a plugin that was put into quarantine run again.
    LiftQuarantine: Put "/v1/ostler/plugin/{name}/lift", Level(Operate, Node), Loaded;
    /// Write the last calls of a plugin to a file.
    RecordPlugin: Put "/v1/ostler/plugin/{name}/record", Level(Operate, Node), Loaded;
    /// Replace a plugin by another version, or say what that needs consent for.
    UpgradePlugin: Put "/v1/ostler/plugin/{name}/upgrade", Level(Operate, Node), Loaded;
    /// What the machine uses of processor, memory and disk.
    ReadNodeUsage: Get "/v1/client/stats", Level(Read, Node), Open;
    /// The configuration and the figures of the agent.
    ReadAgent: Get "/v1/agent/self", Level(Read, Node), Open;
    /// Whether the agent takes jobs, also by the status of the answer.
    ReadHealth: Get "/v1/agent/health", Open, Open;
    /// The log of the agent, as it is written.
    StreamAgentLog: Get "/v1/agent/monitor", Level(Operate, Node), Open;
    /// The node, in Ostler's own form.
    ReadNodeView: Get "/v1/ostler/node", Level(Read, Node), Open;
    /// The plugins of the node.
    ListPlugins: Get "/v1/ostler/plugins", Level(Read, Node), Open;
    /// The state of each plugin, with its counts.
    ListPluginStates: Get "/v1/ostler/plugins/status", Level(Read, Node), Open;
    /// What the node looks at in order to see changes.
    ListWatches: Get "/v1/ostler/watches", Level(Read, Node), Open;
    /// The devices of the node, and who holds them.
    ListDevices: Get "/v1/ostler/devices", Level(Read, Node), Open;
    /// The figures of the state file.
    ReadState: Get "/v1/ostler/state", Level(Read, Node), Open;
    /// The runs that live and that nobody owns.
    ListHeldRuns: Get "/v1/ostler/runs", Level(Read, Node), Open;
    /// End a run that nobody owns.
    EndHeldRun: Put "/v1/ostler/run/{run}/end", Level(Operate, Node), Open;
    /// The whole node, and then what changes of it.
    StreamNode: Get "/v1/ostler/live", Level(Read, Node), Open;
    /// The last lines of the log of the agent.
    ReadAgentLog: Get "/v1/ostler/log", Level(Operate, Node), Open;
    /// What happened on the node; with `follow`, also what happens.
    ListNodeEvents: Get "/v1/ostler/events", Level(Read, Shown), Open;
    /// How far the start of the agent has come.
    ReadReadiness: Get "/v1/ostler/readiness", Level(Read, Node), Open;
    /// The result of the last time that the configuration was read again.
    ReadReload: Get "/v1/ostler/reload", Level(Read, Node), Open;
    /// What became of the files of the directory of jobs.
    ReadJobsDir: Get "/v1/ostler/jobs-dir", Level(Read, Node), Open;
    /// The variables of a namespace, without their values.
    ListVariables: Get "/v1/vars", Level(Submit, Named), Namespace;
    /// A variable.
    ReadVariable: Get "/v1/var/{*path}", Level(Submit, Named), Namespace;
    /// Write a variable.
    PutVariable: Put "/v1/var/{*path}", Level(Submit, Named), Namespace;
    /// Remove a variable.
    DeleteVariable: Delete "/v1/var/{*path}", Level(Submit, Named), Namespace;
    /// Facts about the machine, without the environment.
    ReadHost: Get "/v1/agent/host", Level(Admin, Node), Open;
    /// Profiles of the agent, which Ostler does not have.
    ProfileAgent: Any "/v1/agent/pprof/{*what}", Level(Admin, Node), Open;
    /// The node as a list of one.
    ListNodes: Get "/v1/nodes", Level(Read, Node), Open;
    /// The node.
    ReadNode: Get "/v1/node/{id}", Level(Read, Node), Open;
    /// Let the node take new allocations, or not.
    SetEligibility: Put "/v1/node/{id}/eligibility", Level(Operate, Node), Open;
    /// Begin a drain of the node, or end it.
    DrainNode: Put "/v1/node/{id}/drain", Level(Operate, Node), Open;
    /// Look at the jobs of the node again, which happens at each change anyway.
    EvaluateNode: Put "/v1/node/{id}/evaluate", Level(Operate, Node), Open;
    /// Forget the node, which it refuses for itself.
    PurgeNode: Put "/v1/node/{id}/purge", Level(Operate, Node), Open;
    /// The namespaces.
    ListNamespaces: Get "/v1/namespaces", Level(Read, Shown), Open;
    /// Create a namespace, or change it.
    CreateNamespace: Put "/v1/namespace", Level(Admin, Node), Open;
    /// A namespace.
    ReadNamespace: Get "/v1/namespace/{name}", Level(Read, Shown), Open;
    /// Change a namespace, or create it.
    ChangeNamespace: Put "/v1/namespace/{name}", Level(Admin, Node), Open;
    /// Remove a namespace in which there is nothing.
    DeleteNamespace: Delete "/v1/namespace/{name}", Level(Admin, Node), Open;
    /// The address of the leader, which is the agent itself.
    ReadLeader: Get "/v1/status/leader", Token, Open;
    /// The addresses of the servers, which is that of the agent itself.
    ListPeers: Get "/v1/status/peers", Token, Open;
    /// The regions.
    ListRegions: Get "/v1/regions", Token, Open;
    /// The members of the cluster, which is the agent itself.
    ListMembers: Get "/v1/agent/members", Token, Open;
    /// The servers that the agent knows, which is itself.
    ListServers: Get "/v1/agent/servers", Level(Admin, Node), Open;
    /// Name other servers, which an agent alone refuses.
    SetServers: Put "/v1/agent/servers", Level(Admin, Node), Open;
    /// Join a cluster, which an agent alone refuses.
    JoinCluster: Put "/v1/agent/join", Level(Admin, Node), Open;
    /// Let a member leave, which an agent alone refuses.
    ForceLeave: Put "/v1/agent/force-leave", Level(Admin, Node), Open;
    /// The configuration of the servers' consensus, with the agent alone in it.
    ReadRaft: Get "/v1/operator/raft/configuration", Level(Read, Node), Open;
    /// Remove a server, which only a cluster has.
    RemoveRaftPeer: Delete "/v1/operator/raft/peer", Level(Admin, Node), Open;
    /// The configuration of the servers' autopilot.
    ReadAutopilot: Get "/v1/operator/autopilot/configuration", Level(Read, Node), Open;
    /// Change the autopilot, which only a cluster has.
    SetAutopilot: Put "/v1/operator/autopilot/configuration", Level(Admin, Node), Open;
    /// The health of the servers, which only a cluster has.
    ReadAutopilotHealth: Get "/v1/operator/autopilot/health", Level(Read, Node), Open;
    /// The configuration of the scheduler.
    ReadScheduler: Get "/v1/operator/scheduler/configuration", Level(Read, Node), Open;
    /// Change the scheduler, which only a cluster has.
    SetScheduler: Put "/v1/operator/scheduler/configuration", Level(Admin, Node), Open;
    /// A snapshot of the servers' state, which only a cluster has.
    SnapshotServers: Any "/v1/operator/snapshot", Level(Read, Node), Open;
    /// The servers' keys, which only a cluster has.
    ManageKeyring: Any "/v1/agent/keyring/{*what}", Level(Admin, Node), Open;
    /// Run a parameterized job, which only a cluster can.
    DispatchJob: Put "/v1/job/{id}/dispatch", Level(Submit, Named), Open;
    /// Run a periodic job now, which only a cluster can.
    ForcePeriodicJob: Put "/v1/job/{id}/periodic/force", Level(Submit, Named), Open;
    /// The plugins of CSI volumes; there are none.
    ListCsiPlugins: Get "/v1/plugins", Level(Read, Node), Open;
    /// The CSI volumes; there are none.
    ListCsiVolumes: Get "/v1/volumes", Level(Read, Node), Open;
    /// A plugin of CSI volumes; there are none.
    ReadCsiPlugin: Get "/v1/plugin/csi/{id}", Level(Read, Node), Open;
    /// A CSI volume; there are none.
    ReadCsiVolume: Get "/v1/volume/csi/{id}", Level(Read, Node), Open;
    /// Remove a CSI volume; there are none.
    DeleteCsiVolume: Delete "/v1/volume/csi/{id}", Level(Admin, Node), Open;
    /// Register a CSI volume, which Ostler does not have.
    RegisterCsiVolume: Put "/v1/volume/csi/{id}", Level(Admin, Node), Open;
    /// Detach a CSI volume; there are none.
    DetachCsiVolume: Delete "/v1/volume/csi/{id}/detach", Level(Admin, Node), Open;
    /// Count the allocations of all jobs again, which happens at each request anyway.
    ReconcileSummaries: Put "/v1/system/reconcile/summaries", Level(Operate, Node), Open;
    /// Quotas, which only Nomad Enterprise has.
    ListQuotas: Any "/v1/quotas", Level(Read, Node), Open;
    /// Create a quota, which only Nomad Enterprise has.
    CreateQuota: Any "/v1/quota", Level(Read, Node), Open;
    /// A quota, which only Nomad Enterprise has.
    ReadQuota: Any "/v1/quota/{*name}", Level(Read, Node), Open;
    /// The use of quotas, which only Nomad Enterprise has.
    ListQuotaUsages: Any "/v1/quota-usages", Level(Read, Node), Open;
    /// Sentinel policies, which only Nomad Enterprise has.
    ManageSentinel: Any "/v1/sentinel/{*what}", Level(Read, Node), Open;
    /// Make a recommendation, which only Nomad Enterprise has.
    CreateRecommendation: Any "/v1/recommendation", Level(Read, Node), Open;
    /// A recommendation, which only Nomad Enterprise has.
    ReadRecommendation: Any "/v1/recommendation/{id}", Level(Read, Node), Open;
    /// Recommendations, which only Nomad Enterprise has.
    ListRecommendations: Any "/v1/recommendations", Level(Read, Node), Open;
    /// Apply recommendations, which only Nomad Enterprise has.
    ApplyRecommendations: Any "/v1/recommendations/apply", Level(Read, Node), Open;
    /// The licence, which only Nomad Enterprise has.
    ReadLicense: Get "/v1/operator/license", Level(Read, Node), Open;
    /// Set the licence, which only Nomad Enterprise has.
    SetLicense: Put "/v1/operator/license", Level(Admin, Node), Open;
    /// Create the first token.
    BootstrapTokens: Put "/v1/acl/bootstrap", Socket, Open;
    /// The tokens, without their secrets.
    ListTokens: Get "/v1/acl/tokens", Level(Admin, Node), Open;
    /// Create a token.
    CreateToken: Put "/v1/acl/token", Level(Admin, Node), Open;
    /// The token that was sent.
    ReadOwnToken: Get "/v1/acl/token/self", Token, Open;
    /// A token.
    ReadToken: Get "/v1/acl/token/{id}", Level(Admin, Node), Open;
    /// Change a token.
    UpdateToken: Put "/v1/acl/token/{id}", Level(Admin, Node), Open;
    /// Remove a token.
    DeleteToken: Delete "/v1/acl/token/{id}", Level(Admin, Node), Open;
    /// The policies that tokens can have.
    ListPolicies: Get "/v1/acl/policies", Level(Admin, Node), Open;
    /// A policy.
    ReadPolicy: Get "/v1/acl/policy/{id}", Level(Admin, Node), Open;
    /// Change a policy, which is refused: the policies are fixed.
    ChangePolicy: PutDelete "/v1/acl/policy/{id}", Level(Admin, Node), Open;
    /// Any other part of Nomad's access control, which Ostler does not have.
    ManageAcl: Any "/v1/acl/{*what}", Level(Admin, Node), Open;
    /// Lead to the web page.
    OpenRoot: Get "/", Open, Open;
    /// Lead to the web page, for a path without its last slash.
    OpenPage: Get "/ui", Open, Open;
    /// The web page.
    ReadPage: Get "/ui/", Open, Open;
    /// A file of the web page.
    ReadPageFile: Get "/ui/{*path}", Open, Open;
}

#[cfg(test)]
#[path = "routes_tests.rs"]
mod tests;
