//! The table of the routes: everything about a route stands in its row.
//!
//! ```text
//! for_each_route! ─┬─► routes.rs: Route, with path, methods, need, gate and query
//!                  ├─► routes/endpoints.rs: requests of the typed client
//!                  ├─► server/handlers.rs: the handler of each
//!                  └─► tests: docs/api.md, docs/openapi.json
//! ```
//! A row has the name, the methods, the path, the keys of the query in brackets, the type of the body (none
//! without one) and that of the answer, the need, the gate and the handler. The paths are Nomad's, but for those
//! below `/v1/ostler/`. Every route takes the keys `region` and `pretty` too, and one whose need is in the
//! namespace of the query takes `namespace`.

/// Call another macro with all rows.
macro_rules! for_each_route {
    ($callback:ident) => {
        $callback! {
            /// The jobs of a namespace.
            ListJobs: Get "/v1/jobs" [Prefix PerPage NextToken Index Wait] => Vec<JobStub<'static>>,
                Level(Read, Named), Restored, jobs::list;
            /// Register a job, or a new version of it.
            RegisterJob: Put "/v1/jobs" [Namespace] JobRequest<Value> => JobRegisterResponse,
                Level(Submit, Shown), Restored, jobs::register;
            /// Read the text of a job file, and answer with the job as JSON.
            ParseJob: Put "/v1/jobs/parse" [Namespace] ParseRequest => WireJob<'static>,
                Level(Read, Shown), Restored, jobs::parse;
            /// Check a job without registering it.
            ValidateJob: Put "/v1/validate/job" [Namespace] JobRequest<Value> => JobValidateResponse,
                Level(Read, Shown), Restored, jobs::validate;
            /// A job.
            ReadJob: Get "/v1/job/{id}" [Index Wait] => WireJob<'static>,
                Level(Read, Named), Restored, jobs::read;
            /// Register a new version of a job.
            UpdateJob: Put "/v1/job/{id}" [Namespace] JobRequest<Value> => JobRegisterResponse,
                Level(Submit, Shown), Restored, jobs::update;
            /// Stop a job, or forget it with `purge`.
            StopJob: Delete "/v1/job/{id}" [Purge NoShutdownDelay] => JobDeregisterResponse,
                Level(Submit, Named), Restored, jobs::stop;
            /// What registering a job would change.
            PlanJob: Put "/v1/job/{id}/plan" [Namespace] JobRequest<Value> => JobPlanResponse<'static, Vec<Value>>,
                Level(Submit, Shown), Restored, jobs::plan;
            /// How many allocations of a job are in which state, for each task group.
            SummarizeJob: Get "/v1/job/{id}/summary" [Index Wait] => JobSummary<'static>,
                Level(Read, Named), Restored, jobs::summary;
            /// Replace the failed allocations of a job at once where the body asks for it; what waits is tried anyway.
            EvaluateJob: Put "/v1/job/{id}/evaluate" [] EvaluateRequest => JobRegisterResponse,
                Level(Submit, Named), Restored, jobs::evaluate;
            /// The versions of a job that are kept.
            ListJobVersions: Get "/v1/job/{id}/versions" [Diffs Index Wait] => JobVersionsResponse<WireJob<'static>>,
                Level(Read, Named), Restored, jobs::versions;
            /// The allocations of a job.
            ListJobAllocs: Get "/v1/job/{id}/allocations" [Resources PerPage NextToken Index Wait] => Vec<Alloc<'static>>,
                Level(Read, Named), Restored, allocs::list_of_job;
            /// The evaluations of a job.
            ListJobEvaluations: Get "/v1/job/{id}/evaluations" [Prefix] => Vec<Evaluation<'static>>,
                Level(Read, Named), Restored, evaluations::list_of_job;
            /// The deployments of a job.
            ListJobDeployments: Get "/v1/job/{id}/deployments" [PerPage NextToken Index Wait] => Vec<WireDeployment<'static>>,
                Level(Read, Named), Restored, deployments::list_of_job;
            /// The newest deployment of a job.
            ReadJobDeployment: Get "/v1/job/{id}/deployment" [Index Wait] => Option<WireDeployment<'static>>,
                Level(Read, Named), Restored, deployments::newest_of_job;
            /// Run an earlier version of a job again.
            RevertJob: Put "/v1/job/{id}/revert" [] RevertRequest => JobRegisterResponse,
                Level(Submit, Named), Restored, deployments::revert;
            /// Say of a version of a job whether it is stable.
            MarkJobStable: Put "/v1/job/{id}/stable" [] StableRequest => JobStabilityResponse,
                Level(Submit, Named), Restored, deployments::stable;
            /// The counts of the task groups of a job.
            ReadJobScale: Get "/v1/job/{id}/scale" [Index Wait] => JobScaleStatus<'static>,
                Level(Read, Named), Restored, scaling::status;
            /// Change the count of a task group.
            ScaleJob: Put "/v1/job/{id}/scale" [] ScalingRequest => JobRegisterResponse,
                Level(Submit, Named), Restored, scaling::scale;
            /// The scaling policies of the jobs of a namespace.
            ListScalingPolicies: Get "/v1/scaling/policies" [Prefix PolicyType Job Index Wait] => Vec<ScalingPolicyStub<'static>>,
                Level(Read, Named), Restored, scaling::policies;
            /// A scaling policy.
            ReadScalingPolicy: Get "/v1/scaling/policy/{id}" [Index Wait] => WireScalingPolicy<'static>,
                Level(Read, Node), Restored, scaling::policy;
            /// The evaluations of a namespace.
            ListEvaluations: Get "/v1/evaluations" [Prefix] => Vec<Evaluation<'static>>,
                Level(Read, Named), Restored, evaluations::list;
            /// An evaluation.
            ReadEvaluation: Get "/v1/evaluation/{id}" [Index Wait] => Evaluation<'static>,
                Level(Read, Evaluation), Restored, evaluations::read;
            /// The allocations that an evaluation changed.
            ListEvaluationAllocs: Get "/v1/evaluation/{id}/allocations" [Resources PerPage NextToken Index Wait] => Vec<Alloc<'static>>,
                Level(Read, Evaluation), Restored, evaluations::allocations;
            /// Why allocations of a job are not placed.
            ReadBlockedJob: Get "/v1/ostler/job/{id}/blocked" [] => Value,
                Level(Read, Named), Restored, blocked::read;
            /// The deployments of a namespace.
            ListDeployments: Get "/v1/deployments" [Prefix PerPage NextToken Index Wait] => Vec<WireDeployment<'static>>,
                Level(Read, Named), Restored, deployments::list;
            /// A deployment.
            ReadDeployment: Get "/v1/deployment/{id}" [Index Wait] => WireDeployment<'static>,
                Level(Read, Deployment), Restored, deployments::read;
            /// The allocations of a deployment.
            ListDeploymentAllocs: Get "/v1/deployment/allocations/{id}" [Resources PerPage NextToken Index Wait] => Vec<Alloc<'static>>,
                Level(Read, Deployment), Restored, deployments::allocations;
            /// Accept the canaries of a deployment.
            PromoteDeployment: Put "/v1/deployment/promote/{id}" [] PromoteRequest => DeploymentUpdateResponse,
                Level(Submit, Deployment), Restored, deployments::promote;
            /// End a deployment as failed.
            FailDeployment: Put "/v1/deployment/fail/{id}" [] => DeploymentUpdateResponse,
                Level(Submit, Deployment), Restored, deployments::fail;
            /// Pause a deployment, or let it go on.
            PauseDeployment: Put "/v1/deployment/pause/{id}" [] PauseRequest => DeploymentUpdateResponse,
                Level(Submit, Deployment), Restored, deployments::pause;
            /// Let a deployment of several regions go on, which is refused: here none is blocked.
            UnblockDeployment: Put "/v1/deployment/unblock/{id}" [] => RefusalOnly,
                Level(Submit, Deployment), Restored, deployments::unblock;
            /// Say which allocations of a deployment are healthy and which are not.
            SetAllocHealth: Put "/v1/deployment/allocation-health/{id}" [] AllocHealthRequest => DeploymentUpdateResponse,
                Level(Submit, Deployment), Restored, deployments::judge;
            /// The allocations of a namespace.
            ListAllocs: Get "/v1/allocations" [Prefix Resources PerPage NextToken Index Wait] => Vec<Alloc<'static>>,
                Level(Read, Named), Restored, allocs::list;
            /// An allocation.
            ReadAlloc: Get "/v1/allocation/{id}" [Index Wait] => Alloc<'static>,
                Level(Read, Alloc), Restored, allocs::read;
            /// Stop an allocation; another one takes its place.
            StopAlloc: Put "/v1/allocation/{id}/stop" [NoShutdownDelay] => AllocStopResponse,
                Level(Submit, Alloc), Restored, allocs::stop;
            /// What an allocation and its tasks use of processor and memory.
            ReadAllocUsage: Get "/v1/client/allocation/{id}/stats" [Task] => AllocUsage<'static>,
                Level(Read, Alloc), Restored, client::stats;
            /// The results of the service checks of an allocation.
            ListAllocChecks: Get "/v1/client/allocation/{id}/checks" [] => BTreeMap<String, CheckQueryResult<'static>>,
                Level(Read, Alloc), Restored, services::checks;
            /// Run a command inside a task, over a WebSocket.
            ExecInAlloc: Get "/v1/client/allocation/{id}/exec" [Task Command Tty WsHandshake] => WebSocketBody,
                Level(Operate, Session), Restored, exec::run;
            /// Restart the tasks of an allocation, or one of them.
            RestartAlloc: Put "/v1/client/allocation/{id}/restart" [] RestartRequest<'static> => GenericResponse,
                Level(Submit, Alloc), Restored, client::restart;
            /// Send a signal to the tasks of an allocation, or to one of them.
            SignalAlloc: Put "/v1/client/allocation/{id}/signal" [] SignalRequest<'static> => GenericResponse,
                Level(Submit, Alloc), Restored, client::signal;
            /// Remove an allocation that has ended.
            CollectAlloc: Get "/v1/client/allocation/{id}/gc" [] => NoBody,
                Level(Submit, Alloc), Restored, client::collect_one;
            /// The data of an allocation as a tar archive.
            ReadAllocSnapshot: Get "/v1/client/allocation/{id}/snapshot" [] => ByteBody,
                Level(Submit, Alloc), Restored, snapshot::read;
            /// Remove all allocations of the node that have ended.
            CollectNodeAllocs: Get "/v1/client/gc" [] => NoBody,
                Level(Operate, Node), Restored, client::collect_all;
            /// The log of a task, from any place, also as it grows.
            ReadLogs: Get "/v1/client/fs/logs/{id}" [Task StreamType Origin Offset Follow Plain] => FrameBody,
                Level(Submit, Alloc), Restored, logs::read;
            /// The entries of a directory of an allocation.
            ListFiles: Get "/v1/client/fs/ls/{id}" [Path] => Vec<FileInfo<'static>>,
                Level(Submit, Alloc), Restored, fs::list;
            /// The facts about a file of an allocation.
            StatFile: Get "/v1/client/fs/stat/{id}" [Path] => FileInfo<'static>,
                Level(Submit, Alloc), Restored, fs::stat;
            /// A file of an allocation.
            ReadFile: Get "/v1/client/fs/cat/{id}" [Path] => ByteBody,
                Level(Submit, Alloc), Restored, fs::cat;
            /// A part of a file of an allocation.
            ReadFileAt: Get "/v1/client/fs/readat/{id}" [Path Offset Limit] => ByteBody,
                Level(Submit, Alloc), Restored, fs::read_at;
            /// A file of an allocation as it grows.
            StreamFile: Get "/v1/client/fs/stream/{id}" [Path Origin Offset Limit Follow Plain] => FrameBody,
                Level(Submit, Alloc), Restored, fs_stream::read;
            /// The allocations of the node.
            ListNodeAllocs: Get "/v1/node/{id}/allocations" [Index Wait] => Vec<Alloc<'static>>,
                Level(Read, Node), Restored, allocs::list_of_node;
            /// Find objects by the beginning of their id.
            Search: Put "/v1/search" [Namespace] SearchRequest => SearchAnswer<'static>,
                Level(Read, Shown), Restored, search::search;
            /// Each change of the node, as it happens.
            StreamEvents: Get "/v1/event/stream" [Namespace Topic Index Live] => LineBody,
                Level(Read, Shown), Restored, event_stream::read;
            /// The services of a namespace.
            ListServices: Get "/v1/services" [Index Wait] => Vec<ServiceNamespace<'static>>,
                Level(Read, Named), Restored, services::list;
            /// The instances of a service.
            ReadService: Get "/v1/service/{name}" [Index Wait] => Vec<ServiceRegistration<'static>>,
                Level(Read, Named), Restored, services::read;
            /// Remove what has ended: jobs, evaluations, deployments and allocations.
            CollectGarbage: Put "/v1/system/gc" [] => NoBody,
                Level(Operate, Node), Restored, agent::collect;
            /// The metrics of the agent, as JSON or for Prometheus.
            ReadMetrics: Get "/v1/metrics" [Format] => MetricsSummary<'static>,
                Level(Read, Node), Restored, metrics::read;
            /// Let a plugin that was put into quarantine run again.
            LiftQuarantine: Put "/v1/ostler/plugin/{name}/lift" [] => Vec<LiftReport>,
                Level(Operate, Node), Loaded, plugins::lift;
            /// Write the last calls of a plugin to a file.
            RecordPlugin: Put "/v1/ostler/plugin/{name}/record" [] => Vec<RecordReport>,
                Level(Operate, Node), Loaded, plugins::record;
            /// Replace a plugin by another version, or say what that needs consent for.
            UpgradePlugin: Put "/v1/ostler/plugin/{name}/upgrade" [] UpgradeOptions => UpgradeReport,
                Level(Operate, Node), Loaded, plugins::upgrade;
            /// What the machine uses of processor, memory and disk.
            ReadNodeUsage: Get "/v1/client/stats" [NodeId] => HostStats<'static>,
                Level(Read, Node), Open, host::stats;
            /// The configuration and the figures of the agent.
            ReadAgent: Get "/v1/agent/self" [] => AgentSelf<'static>,
                Level(Read, Node), Open, agent::agent_self;
            /// Whether the agent takes jobs, also by the status of the answer.
            ReadHealth: Get "/v1/agent/health" [] => AgentHealth<'static>,
                Open, Open, agent::health;
            /// The log of the agent, as it is written.
            StreamAgentLog: Get "/v1/agent/monitor" [LogLevel LogJson Plain NodeId ServerId] => FrameBody,
                Level(Operate, Node), Open, monitor::read;
            /// The node, in Ostler's own form.
            ReadNodeView: Get "/v1/ostler/node" [] => NodeView,
                Level(Read, Node), Open, view(|api| api.agent.node());
            /// The plugins of the node.
            ListPlugins: Get "/v1/ostler/plugins" [] => Vec<PluginEntry>,
                Level(Read, Node), Open, view(|api| api.agent.plugins_now());
            /// The state of each plugin, with its counts.
            ListPluginStates: Get "/v1/ostler/plugins/status" [] => Vec<PluginStatusReport>,
                Level(Read, Node), Open, view(|api| api.agent.plugins_status());
            /// What the node looks at in order to see changes.
            ListWatches: Get "/v1/ostler/watches" [] => WatchReport,
                Level(Read, Node), Open, view(|api| api.agent.watch_report());
            /// The devices of the node, and who holds them.
            ListDevices: Get "/v1/ostler/devices" [] => Vec<DeviceGroupReport>,
                Level(Read, Node), Open, view(|api| api.agent.devices());
            /// The figures of the state file.
            ReadState: Get "/v1/ostler/state" [] => StateStats,
                Level(Read, Node), Open, view(|api| api.agent.state_stats());
            /// The runs that live and that nobody owns.
            ListHeldRuns: Get "/v1/ostler/runs" [] => HeldReport,
                Level(Read, Node), Open, view(|api| api.agent.held_report());
            /// End a run that nobody owns.
            EndHeldRun: Put "/v1/ostler/run/{run}/end" [] => HeldRun,
                Level(Operate, Node), Open, agent::end_run;
            /// The whole node, and then what changes of it.
            StreamNode: Get "/v1/ostler/live" [] => LineBody,
                Level(Read, Node), Open, live::read;
            /// The last lines of the log of the agent.
            ReadAgentLog: Get "/v1/ostler/log" [Lines LogJson] => ByteBody,
                Level(Operate, Node), Open, monitor::last_lines;
            /// What happened on the node; with `follow`, also what happens.
            ListNodeEvents: Get "/v1/ostler/events" [Namespace After Since Topic Job Alloc Task Name Trouble Follow] => EventsPage,
                Level(Read, Shown), Open, events::read;
            /// How far the start of the agent has come.
            ReadReadiness: Get "/v1/ostler/readiness" [] => Readiness,
                Level(Read, Node), Open, view(|api| api.agent.readiness());
            /// The result of the last time that the configuration was read again.
            ReadReload: Get "/v1/ostler/reload" [] => Option<ReloadReport>,
                Level(Read, Node), Open, view(|api| api.agent.last_reload());
            /// What became of the files of the directory of jobs.
            ReadJobsDir: Get "/v1/ostler/jobs-dir" [] => Option<JobsDirReport>,
                Level(Read, Node), Open, view(|api| api.agent.jobs_dir());
            /// The variables of a namespace, without their values.
            ListVariables: Get "/v1/vars" [Prefix PerPage NextToken Index Wait] => Vec<VariableMetadata<'static>>,
                Level(Submit, Named), Namespace, variables::list;
            /// A variable.
            ReadVariable: Get "/v1/var/{*path}" [Index Wait] => WireVariable<'static>,
                Level(Submit, Named), Namespace, variables::read;
            /// Write a variable.
            PutVariable: Put "/v1/var/{*path}" [Cas] WireVariable<'static> => WireVariable<'static>,
                Level(Submit, Named), Namespace, variables::put;
            /// Remove a variable.
            DeleteVariable: Delete "/v1/var/{*path}" [Cas] => NoBody,
                Level(Submit, Named), Namespace, variables::delete;
            /// Facts about the machine, without the environment.
            ReadHost: Get "/v1/agent/host" [] => Value,
                Level(Admin, Node), Open, debug::machine;
            /// Profiles of the agent, which Ostler does not have.
            ProfileAgent: Any "/v1/agent/pprof/{*what}" [] => RefusalOnly,
                Level(Admin, Node), Open, debug::refuse_profile;
            /// The node as a list of one.
            ListNodes: Get "/v1/nodes" [Prefix Resources Index Wait] => Vec<NodeStub<'static>>,
                Level(Read, Node), Open, nodes::list;
            /// The node with its resources, drivers and devices.
            ReadNode: Get "/v1/node/{id}" [Index Wait] => WireNode<'static>,
                Level(Read, Node), Open, nodes::read;
            /// Let the node take new allocations, or not.
            SetEligibility: Put "/v1/node/{id}/eligibility" [] EligibilityRequest => NodeUpdateResponse,
                Level(Operate, Node), Open, nodes::eligibility;
            /// Begin a drain of the node, or end it.
            DrainNode: Put "/v1/node/{id}/drain" [] DrainRequest => NodeUpdateResponse,
                Level(Operate, Node), Open, nodes::drain;
            /// Look at the jobs of the node again, which happens at each change anyway.
            EvaluateNode: Put "/v1/node/{id}/evaluate" [] => NodeUpdateResponse,
                Level(Operate, Node), Open, nodes::evaluate;
            /// Forget the node, which it refuses for itself.
            PurgeNode: Put "/v1/node/{id}/purge" [] => RefusalOnly,
                Level(Operate, Node), Open, nodes::purge;
            /// The namespaces that may be seen.
            ListNamespaces: Get "/v1/namespaces" [Prefix Index Wait] => Vec<WireNamespace<'static>>,
                Level(Read, Shown), Open, namespaces::list;
            /// Create a namespace, or change it.
            CreateNamespace: Put "/v1/namespace" [] NamespaceRequest => NoBody,
                Level(Admin, Node), Open, namespaces::make;
            /// A namespace.
            ReadNamespace: Get "/v1/namespace/{name}" [] => WireNamespace<'static>,
                Level(Read, Shown), Open, namespaces::read;
            /// Change a namespace, or create it.
            ChangeNamespace: Put "/v1/namespace/{name}" [] NamespaceRequest => NoBody,
                Level(Admin, Node), Open, namespaces::change;
            /// Remove a namespace in which there is nothing.
            DeleteNamespace: Delete "/v1/namespace/{name}" [] => NoBody,
                Level(Admin, Node), Open, namespaces::remove;
            /// The address of the leader, which is the agent itself.
            ReadLeader: Get "/v1/status/leader" [] => String,
                Token, Open, view(|_| agent::SELF_ADDRESS);
            /// The addresses of the servers, which is that of the agent itself.
            ListPeers: Get "/v1/status/peers" [] => Vec<String>,
                Token, Open, view(|_| [agent::SELF_ADDRESS]);
            /// The regions, of which there is one.
            ListRegions: Get "/v1/regions" [] => Vec<String>,
                Token, Open, view(|_| [json::REGION]);
            /// The members of the cluster, which is the agent itself.
            ListMembers: Get "/v1/agent/members" [] => AgentMembers<'static>,
                Token, Open, servers::members;
            /// The servers that the agent knows, which is itself.
            ListServers: Get "/v1/agent/servers" [] => Vec<String>,
                Level(Admin, Node), Open, view(|_| [agent::SELF_ADDRESS]);
            /// Name other servers, which an agent alone refuses.
            SetServers: Put "/v1/agent/servers" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::refuse_alone;
            /// Join a cluster, which an agent alone refuses.
            JoinCluster: Put "/v1/agent/join" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::refuse_alone;
            /// Let a member leave, which an agent alone refuses.
            ForceLeave: Put "/v1/agent/force-leave" [Node] => NoBody,
                Level(Admin, Node), Open, servers::force_leave;
            /// The configuration of the servers' consensus, with the agent alone in it.
            ReadRaft: Get "/v1/operator/raft/configuration" [] => Value,
                Level(Read, Node), Open, servers::raft;
            /// Remove a server, which only a cluster has.
            RemoveRaftPeer: Delete "/v1/operator/raft/peer" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::refuse_without_cluster;
            /// The configuration of the servers' autopilot.
            ReadAutopilot: Get "/v1/operator/autopilot/configuration" [] => Value,
                Level(Read, Node), Open, servers::autopilot;
            /// Change the autopilot, which only a cluster has.
            SetAutopilot: Put "/v1/operator/autopilot/configuration" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::refuse_without_cluster;
            /// The health of the servers, which only a cluster has.
            ReadAutopilotHealth: Get "/v1/operator/autopilot/health" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_without_cluster;
            /// The configuration of the scheduler.
            ReadScheduler: Get "/v1/operator/scheduler/configuration" [] => Value,
                Level(Read, Node), Open, servers::scheduler;
            /// Change the scheduler, which only a cluster has.
            SetScheduler: Put "/v1/operator/scheduler/configuration" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::refuse_without_cluster;
            /// A snapshot of the servers' state, which only a cluster has.
            SnapshotServers: Any "/v1/operator/snapshot" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_without_cluster;
            /// The servers' keys, which only a cluster has.
            ManageKeyring: Any "/v1/agent/keyring/{*what}" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::refuse_without_cluster;
            /// Run a parameterized job, which only a cluster can.
            DispatchJob: Put "/v1/job/{id}/dispatch" [] => RefusalOnly,
                Level(Submit, Named), Open, servers::refuse_without_cluster;
            /// Run a periodic job now, which only a cluster can.
            ForcePeriodicJob: Put "/v1/job/{id}/periodic/force" [] => RefusalOnly,
                Level(Submit, Named), Open, servers::refuse_without_cluster;
            /// The plugins of CSI volumes; there are none.
            ListCsiPlugins: Get "/v1/plugins" [] => Vec<Value>,
                Level(Read, Node), Open, view(|_| servers::NOTHING);
            /// The CSI volumes; there are none.
            ListCsiVolumes: Get "/v1/volumes" [] => Vec<Value>,
                Level(Read, Node), Open, view(|_| servers::NOTHING);
            /// A plugin of CSI volumes; there are none.
            ReadCsiPlugin: Get "/v1/plugin/csi/{id}" [] => RefusalOnly,
                Level(Read, Node), Open, servers::no_csi_plugin;
            /// A CSI volume; there are none.
            ReadCsiVolume: Get "/v1/volume/csi/{id}" [] => RefusalOnly,
                Level(Read, Node), Open, servers::no_volume;
            /// Remove a CSI volume; there are none.
            DeleteCsiVolume: Delete "/v1/volume/csi/{id}" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::no_volume;
            /// Register a CSI volume, which Ostler does not have.
            RegisterCsiVolume: Put "/v1/volume/csi/{id}" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::no_csi;
            /// Detach a CSI volume; there are none.
            DetachCsiVolume: Delete "/v1/volume/csi/{id}/detach" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::no_volume;
            /// Count the allocations of all jobs again, which happens at each request anyway.
            ReconcileSummaries: Put "/v1/system/reconcile/summaries" [] => NoBody,
                Level(Operate, Node), Open, servers::reconcile_summaries;
            /// Quotas, which only Nomad Enterprise has.
            ListQuotas: Any "/v1/quotas" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// Create a quota, which only Nomad Enterprise has.
            CreateQuota: Any "/v1/quota" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// A quota, which only Nomad Enterprise has.
            ReadQuota: Any "/v1/quota/{*name}" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// The use of quotas, which only Nomad Enterprise has.
            ListQuotaUsages: Any "/v1/quota-usages" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// Sentinel policies, which only Nomad Enterprise has.
            ManageSentinel: Any "/v1/sentinel/{*what}" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// Make a recommendation, which only Nomad Enterprise has.
            CreateRecommendation: Any "/v1/recommendation" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// A recommendation, which only Nomad Enterprise has.
            ReadRecommendation: Any "/v1/recommendation/{id}" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// Recommendations, which only Nomad Enterprise has.
            ListRecommendations: Any "/v1/recommendations" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// Apply recommendations, which only Nomad Enterprise has.
            ApplyRecommendations: Any "/v1/recommendations/apply" [] => RefusalOnly,
                Level(Read, Node), Open, servers::refuse_enterprise;
            /// The licence, which only Nomad Enterprise has.
            ReadLicense: Get "/v1/operator/license" [] => NoBody,
                Level(Read, Node), Open, servers::no_license;
            /// Set the licence, which only Nomad Enterprise has.
            SetLicense: Put "/v1/operator/license" [] => RefusalOnly,
                Level(Admin, Node), Open, servers::refuse_enterprise;
            /// Create the first token.
            BootstrapTokens: Put "/v1/acl/bootstrap" [] => AclToken<'static>,
                Socket, Open, tokens::bootstrap;
            /// The tokens, without their secrets.
            ListTokens: Get "/v1/acl/tokens" [Prefix] => Vec<AclToken<'static>>,
                Level(Admin, Node), Open, tokens::list;
            /// Create a token.
            CreateToken: Put "/v1/acl/token" [] AclTokenRequest => AclToken<'static>,
                Level(Admin, Node), Open, tokens::create;
            /// The token that was sent.
            ReadOwnToken: Get "/v1/acl/token/self" [] => AclToken<'static>,
                Token, Open, tokens::own_token;
            /// A token.
            ReadToken: Get "/v1/acl/token/{id}" [] => AclToken<'static>,
                Level(Admin, Node), Open, tokens::read;
            /// Change a token.
            UpdateToken: Put "/v1/acl/token/{id}" [] AclTokenRequest => AclToken<'static>,
                Level(Admin, Node), Open, tokens::update;
            /// Remove a token.
            DeleteToken: Delete "/v1/acl/token/{id}" [] => NoBody,
                Level(Admin, Node), Open, tokens::delete;
            /// The policies that tokens can have.
            ListPolicies: Get "/v1/acl/policies" [Prefix] => Vec<AclPolicy>,
                Level(Admin, Node), Open, tokens::policies;
            /// A policy.
            ReadPolicy: Get "/v1/acl/policy/{id}" [] => AclPolicy,
                Level(Admin, Node), Open, tokens::policy;
            /// Change a policy, which is refused: the policies are fixed.
            ChangePolicy: PutDelete "/v1/acl/policy/{id}" [] => RefusalOnly,
                Level(Admin, Node), Open, tokens::refuse_policy_change;
            /// Any other part of Nomad's access control, which Ostler does not have.
            ManageAcl: Any "/v1/acl/{*what}" [] => RefusalOnly,
                Level(Admin, Node), Open, tokens::refuse_other_path;
            /// Lead to the web page.
            OpenRoot: Get "/" [] => NoBody,
                Open, Open, ui::redirect;
            /// Lead to the web page, for a path without its last slash.
            OpenPage: Get "/ui" [] => NoBody,
                Open, Open, ui::redirect;
            /// The web page.
            ReadPage: Get "/ui/" [] => ByteBody,
                Open, Open, ui::page;
            /// A file of the web page.
            ReadPageFile: Get "/ui/{*path}" [] => ByteBody,
                Open, Open, ui::page;
        }
    };
}

pub(crate) use for_each_route;

/// The types of bodies and answers that the rows name.
pub(crate) mod types {
    pub(crate) use std::collections::BTreeMap;

    pub(crate) use ostler_agent::catalogue::PluginEntry;
    pub(crate) use ostler_agent::reload::ReloadReport;
    pub(crate) use ostler_agent::upgrade::{UpgradeOptions, UpgradeReport};
    pub(crate) use ostler_agent::{
        DeviceGroupReport, EventsPage, HeldReport, HeldRun, JobsDirReport, LiftReport,
        PluginStatusReport, Readiness, RecordReport,
    };
    pub(crate) use ostler_node::NodeView;
    pub(crate) use ostler_node::watch::WatchReport;
    pub(crate) use ostler_state::Stats as StateStats;
    pub(crate) use ostler_wire::*;
    pub(crate) use serde_json::Value;

    pub(crate) use crate::request::{
        ByteBody, FrameBody, LineBody, NoBody, RefusalOnly, WebSocketBody,
    };
}
