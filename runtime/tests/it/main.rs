//! Integration tests, by behaviour. Guests are the real compiled ones of `examples/`; agents are
//! real agents in a temporary data directory; where the binary is what is tested, it is run.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests"
)]

mod support;

mod access;
mod advice;
mod agent;
mod agent_command;
mod agent_command_allocs;
mod agent_command_jobs;
mod alloc_exec;
mod alloc_files;
mod alloc_users;
mod answers;
mod api_answers;
mod api_jobs;
mod api_stock;
mod api_streams;
mod architecture;
mod artifacts;
mod bad_input;
mod circles;
mod clock_steps;
mod cluster;
mod cluster_access;
mod cluster_commands;
mod cluster_deploy;
mod cluster_disk;
mod cluster_doc;
mod cluster_exec;
mod cluster_jobs;
mod cluster_kills;
mod cluster_trouble;
mod cluster_trust;
mod compiled_once;
mod computing;
mod crash;
mod crash_matrix;
mod deployments;
mod device_crash;
mod device_faces;
mod device_hotplug;
mod device_plugins;
mod devices;
mod disk_size;
mod docs;
mod ended_places;
mod exits;
mod explained;
mod fifty_tasks;
mod given_back;
mod golden;
mod grants;
mod hangs;
mod histories;
mod hostile;
mod in_memory;
mod isolation;
mod job_run;
mod leaks;
mod lost_files;
mod machine;
mod namespaces;
mod networks;
mod node_trouble;
mod nomad_plugin;
mod nomad_plugin_kills;
mod operating;
mod placement;
mod plugin_check;
mod plugin_containment;
mod plugin_faults;
mod plugin_replay;
mod plugin_secrets;
mod plugin_status;
mod plugin_texts;
mod plugins;
mod polled;
mod private_dirs;
mod quarantine;
mod real_programs;
mod recorded_requests;
mod rescheduling;
mod run_command;
mod said;
mod service_checks;
mod services;
mod starting;
mod state_back;
mod state_damage;
mod state_kill;
mod state_records;
mod state_tools;
mod steps;
mod stock_commands;
mod stock_table;
mod supervise;
mod task_places;
mod tasks;
mod templates;
mod texts;
mod traces;
mod trust;
mod upgrade;
mod variables;
mod volumes;
mod web_page;
mod wire;
mod worker;
