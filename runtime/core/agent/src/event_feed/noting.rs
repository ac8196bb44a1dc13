//! Finds the new events of jobs, deployments, plugins and devices since the last look. Pure.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::allocs::NotedAlloc;
use crate::events::{EventNote, EventTopic};
use ostler_control::JobView;
use ostler_health::policy::Quarantine;
use ostler_model::device::{Health, HealthState};
use ostler_model::ids::{AllocId, JobId};
use ostler_model::rollout::{Deployment, DeploymentPhase};
use ostler_model::saved::JobOrigin;
use ostler_model::time::Timestamp;
use ostler_node::NodeView;

/// The time within which an agent starts: plugins are loaded one after the other, and each finds
/// its devices.
const STARTING: Duration = Duration::from_secs(60);

/// The last noted state of everything on the node.
#[derive(Debug, Default)]
pub(super) struct NotedState {
    /// The time of the newest event of an earlier agent. Nothing up to it is noted again.
    pub(super) floor: Timestamp,
    /// The time at which the agent began to note events.
    began: Timestamp,
    pub(super) allocs: HashMap<AllocId, NotedAlloc>,
    jobs: HashMap<JobId, NotedJob>,
    deployments: HashMap<Box<str>, (DeploymentPhase, String)>,
    /// The health of drivers, device plugins and devices.
    health: BTreeMap<(EventTopic, String), Health>,
    quarantines: BTreeMap<String, Quarantine>,
    refused: BTreeMap<String, String>,
}

/// The last noted state of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NotedJob {
    version: u64,
    stopped: bool,
    /// What the job waits for, without the numbers in the text.
    waits_for: Option<String>,
}

fn job_event(id: &JobId, kind: &str, message: String) -> EventNote {
    EventNote {
        topic: EventTopic::Job,
        kind: kind.to_owned(),
        namespace: id.namespace().to_owned(),
        job: id.as_str().to_owned(),
        message,
        ..EventNote::default()
    }
}

/// The text that says who stopped a job: only whoever gave the job may stop it.
fn stop_cause(origin: &JobOrigin) -> String {
    match origin {
        JobOrigin::Api => "it was stopped by a command or over the API".to_owned(),
        JobOrigin::File(path) => {
            format!("its file {} in the jobs directory no longer contains it", path.display())
        }
        JobOrigin::Run => "the `ostler run` that submitted it has ended".to_owned(),
    }
}

impl NotedState {
    pub fn new(floor: Timestamp, began: Timestamp) -> Self {
        Self { floor, began, ..Self::default() }
    }

    /// The new events of a job. `view` is `None` if the job is gone.
    pub fn job(
        &mut self,
        id: &JobId,
        view: Option<&JobView>,
        now: Timestamp,
    ) -> Vec<(Timestamp, EventNote)> {
        let Some(view) = view else {
            let known = self.jobs.remove(id);
            return known
                .map(|_| (now, job_event(id, "removed", "the job was removed".to_owned())))
                .into_iter()
                .collect();
        };
        let waits = view
            .blocked
            .iter()
            .find(|place| !place.soon)
            .map(|place| format!("group {} waits: {}", place.group, place.refusal.problems()));
        // The amount of free resources changes all the time, so numbers are left out of the
        // comparison.
        let numberless = |text: &String| text.replace(|c: char| c.is_ascii_digit(), "");
        let waits_for = waits.as_ref().map(numberless);
        let (version, stopped) = (view.record.version, view.record.stopped);
        let is = NotedJob { version, stopped, waits_for };
        let before = self.jobs.insert(id.clone(), is.clone());
        let first = before.is_none();
        let before = before.unwrap_or_default();
        let submitted = view.record.submitted_at;
        let mut noted = Vec::new();
        let new = if first { submitted > self.floor } else { before.version != is.version };
        if new {
            noted.push((
                submitted,
                job_event(id, "registered", format!("version {version} was registered")),
            ));
        }
        if is.stopped != before.stopped && (!first || submitted > self.floor) {
            let (kind, text) = if is.stopped {
                ("stopped", stop_cause(&view.record.origin))
            } else {
                ("started", "it was started again".to_owned())
            };
            noted.push((now, job_event(id, kind, text)));
        }
        if is.waits_for != before.waits_for {
            noted.push(match &waits {
                Some(why) => {
                    (now, EventNote { trouble: true, ..job_event(id, "waits", why.clone()) })
                }
                None => (
                    now,
                    job_event(
                        id,
                        "placed",
                        "nothing of it is waiting to be placed any longer".to_owned(),
                    ),
                ),
            });
        }
        noted
    }

    /// The new event of a deployment, if there is one.
    pub fn deployment(
        &mut self,
        job: &JobId,
        one: &Deployment,
        now: Timestamp,
    ) -> Option<(Timestamp, EventNote)> {
        let is = (one.phase, one.description.clone());
        let before = if one.phase.is_active() {
            self.deployments.insert(one.id.clone(), is.clone())
        } else {
            // Deployments that are over do not change any more.
            self.deployments.remove(&one.id)
        };
        if before.as_ref() == Some(&is) {
            return None;
        }
        let kind = match one.phase {
            DeploymentPhase::Running => "running",
            DeploymentPhase::Paused => "paused",
            DeploymentPhase::Successful => "successful",
            DeploymentPhase::Failed => "failed",
            DeploymentPhase::Cancelled => "cancelled",
        };
        let message = format!("version {}: {}", one.version, one.description);
        let what = EventNote {
            topic: EventTopic::Deployment,
            name: one.id.to_string(),
            trouble: one.phase == DeploymentPhase::Failed,
            ..job_event(job, kind, message)
        };
        Some((now, what))
    }

    /// The new events of plugins and devices.
    pub fn view(&mut self, view: &NodeView, now: Timestamp) -> Vec<(Timestamp, EventNote)> {
        let drivers = view.drivers.iter().map(|(name, driver)| (name, &driver.health));
        let plugins = drivers.chain(view.device_plugins.iter());
        let plugins =
            plugins.map(|(name, health)| ((EventTopic::Plugin, name.to_string()), health.clone()));
        let devices = view.devices.iter().flat_map(|group| {
            group.instances.iter().map(|one| {
                ((EventTopic::Device, format!("{}/{}", group.key, one.id)), one.health.clone())
            })
        });
        let is: BTreeMap<(EventTopic, String), Health> = plugins.chain(devices).collect();
        let before = std::mem::replace(&mut self.health, is);
        let starting = now.since(self.began) < STARTING;
        let mut noted = Vec::new();
        for ((topic, name), health) in &self.health {
            let known = before.get(&(*topic, name.clone()));
            let well = health.state == HealthState::Healthy;
            // What is healthy while the agent starts is no news.
            let silent = starting || *topic == EventTopic::Plugin;
            if known == Some(health) || known.is_none() && silent && well {
                continue;
            }
            noted.push((now, health_event(*topic, name, health)));
        }
        for (topic, name) in before.keys().filter(|key| !self.health.contains_key(*key)) {
            let what = EventNote {
                topic: *topic,
                kind: "gone".to_owned(),
                name: name.clone(),
                message: "it is no longer reported".to_owned(),
                trouble: true,
                ..EventNote::default()
            };
            noted.push((now, what));
        }
        for (name, why) in &view.refused_plugins {
            if self.refused.get(name) != Some(why) {
                noted.push((
                    now,
                    EventNote {
                        topic: EventTopic::Plugin,
                        kind: "refused".to_owned(),
                        name: name.clone(),
                        message: why.clone(),
                        trouble: true,
                        ..EventNote::default()
                    },
                ));
            }
        }
        self.refused.clone_from(&view.refused_plugins);
        noted
    }

    /// The events of quarantines that began or ended.
    pub fn quarantines(
        &mut self,
        all: Vec<(String, Option<Quarantine>)>,
        now: Timestamp,
    ) -> Vec<(Timestamp, EventNote)> {
        let of = |name: &str, kind: &str, message: String, trouble: bool| EventNote {
            topic: EventTopic::Plugin,
            kind: kind.to_owned(),
            name: name.to_owned(),
            message,
            trouble,
            ..EventNote::default()
        };
        let mut noted = Vec::new();
        for (name, is) in all {
            let before = self.quarantines.get(&name).cloned();
            match (&before, &is) {
                (_, Some(is)) if before.as_ref().is_none_or(|before| before.since != is.since) => {
                    noted.push((is.since, of(&name, "quarantined", is.reason.clone(), true)));
                }
                (Some(_), None) => {
                    let text = "it is in use again".to_owned();
                    noted.push((now, of(&name, "lifted", text, false)));
                }
                _ => {}
            }
            match is {
                Some(is) => drop(self.quarantines.insert(name, is)),
                None => drop(self.quarantines.remove(&name)),
            }
        }
        noted.retain(|(at, _)| *at > self.floor);
        noted
    }
}

fn health_event(topic: EventTopic, name: &str, health: &Health) -> EventNote {
    let kind = match health.state {
        HealthState::Healthy => "healthy",
        HealthState::Unhealthy => "unhealthy",
        HealthState::Undetected => "undetected",
    };
    EventNote {
        topic,
        kind: kind.to_owned(),
        name: name.to_owned(),
        message: health.reason.clone(),
        trouble: health.state == HealthState::Unhealthy,
        ..EventNote::default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    fn quarantine(since: u64) -> Option<Quarantine> {
        Some(Quarantine {
            since: at(since),
            until: None,
            reason: "it traps".to_owned(),
            relapses: 0,
        })
    }

    fn kinds(noted: Vec<(Timestamp, EventNote)>) -> Vec<String> {
        noted.into_iter().map(|(_, what)| what.kind).collect()
    }

    #[test]
    fn a_quarantine_is_noted_when_it_begins_and_when_it_ends() {
        let mut seen = NotedState::new(at(5), at(0));
        let name = || "gpu".to_owned();
        assert_eq!(
            kinds(seen.quarantines(vec![(name(), quarantine(3))], at(9))),
            [""; 0],
            "known to an earlier agent"
        );
        assert_eq!(kinds(seen.quarantines(vec![(name(), quarantine(7))], at(9))), ["quarantined"]);
        assert_eq!(kinds(seen.quarantines(vec![(name(), quarantine(7))], at(9))), [""; 0]);
        assert_eq!(kinds(seen.quarantines(vec![(name(), None)], at(9))), ["lifted"]);
    }

    #[test]
    fn a_job_that_is_stopped_says_by_whom() {
        assert!(stop_cause(&JobOrigin::Api).contains("it was stopped by a command"));
        let file = stop_cause(&JobOrigin::File("/jobs/web.hcl".into()));
        assert_eq!(file, "its file /jobs/web.hcl in the jobs directory no longer contains it");
        assert!(stop_cause(&JobOrigin::Run).contains("`ostler run`"));
    }

    #[test]
    fn a_deployment_is_noted_each_time_that_it_is_another() {
        let mut seen = NotedState::new(at(0), at(0));
        let job = JobId::new("web").unwrap();
        let mut one = Deployment {
            id: "d".into(),
            version: 1,
            job_create_index: 0,
            job_modify_index: 0,
            phase: DeploymentPhase::Running,
            description: "it goes on".to_owned(),
            groups: BTreeMap::new(),
            create_index: 0,
            modify_index: 0,
        };
        assert_eq!(kinds(seen.deployment(&job, &one, at(1)).into_iter().collect()), ["running"]);
        assert_eq!(seen.deployment(&job, &one, at(1)), None);
        one.phase = DeploymentPhase::Failed;
        let (_, what) = seen.deployment(&job, &one, at(2)).unwrap();
        assert_eq!((what.kind.as_str(), what.trouble), ("failed", true));
    }
}
