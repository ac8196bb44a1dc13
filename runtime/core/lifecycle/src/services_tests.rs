#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use super::*;
use ostler_model::clock;
use ostler_model::ids::JobId;
use ostler_model::rng::Rng;

fn alloc(seed: u64) -> AllocId {
    AllocId::new(Rng::from_seed(seed).uuid())
}

fn service(alloc: AllocId, name: &str, port: u16) -> ServiceInstance {
    ServiceInstance {
        id: format!("{alloc}-{name}"),
        name: name.to_owned(),
        namespace: "default".to_owned(),
        job: JobId::new("j").unwrap(),
        alloc,
        tags: Vec::new(),
        meta: BTreeMap::new(),
        address: "127.0.0.1".to_owned(),
        port,
        create_index: 0,
        modify_index: 0,
    }
}

fn shown(services: &NodeServices) -> Vec<(String, u16, u64, u64)> {
    let list = services.list();
    let one =
        |of: &Arc<ServiceInstance>| (of.name.clone(), of.port, of.create_index, of.modify_index);
    list.instances.iter().map(one).collect()
}

#[test]
fn what_comes_changes_and_goes_has_its_index() {
    let services = NodeServices::new(10);
    let (a, b) = (alloc(1), alloc(2));
    services.set(a, vec![service(a, "web", 1)]);
    services.set(b, vec![service(b, "api", 2), service(b, "web", 3)]);
    let row = |name: &str, port, create, modify| (name.to_owned(), port, create, modify);
    assert_eq!(
        shown(&services),
        [row("api", 2, 12, 12), row("web", 1, 11, 11), row("web", 3, 12, 12)].map(|row| row)
    );
    services.set(b, vec![service(b, "api", 2), service(b, "web", 4)]);
    assert_eq!(services.list().index, 13);
    services.set(b, vec![service(b, "api", 2), service(b, "web", 4)]);
    assert_eq!(services.list().index, 13, "nothing changed");
    services.remove(a);
    services.remove(a);
    assert_eq!(shown(&services), [row("api", 2, 12, 12), row("web", 4, 12, 13)]);
    assert_eq!(services.list().index, 14);
    assert_eq!(services.list().find_by_name("default", "web").count(), 1);
    assert_eq!(services.list().find_by_name("other", "web").count(), 0);
}

#[tokio::test]
async fn who_waits_is_told_of_a_change_and_of_one_that_came_before() {
    let services = NodeServices::default();
    let first = services.list().index;
    let none = clock::timeout(Duration::from_millis(10), services.wait_for_change(first)).await;
    assert!(none.is_none(), "nothing changed");
    let waits = services.wait_for_change(first);
    services.set(alloc(1), vec![service(alloc(1), "web", 1)]);
    clock::timeout(Duration::from_secs(20), waits).await.unwrap();
    let late = services.wait_for_change(first);
    clock::timeout(Duration::from_secs(20), late).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_expected_of_an_earlier_agent_is_waited_for_and_not_for_ever() {
    let services = NodeServices::default();
    clock::timeout(Duration::from_secs(1), services.wait_until_restored()).await.unwrap();
    let (a, b, c) = (alloc(1), alloc(2), alloc(3));
    services.expect([a, b]);
    services.set(a, vec![service(a, "web", 1)]);
    services.set(c, vec![service(c, "web", 3)]);
    assert!(clock::timeout(Duration::from_secs(1), services.wait_until_restored()).await.is_none());
    services.remove(b);
    clock::timeout(Duration::from_secs(1), services.wait_until_restored()).await.unwrap();
    services.expect([a]);
    let late = SERVICES_RESTORED_WALL_MAX + Duration::from_secs(1);
    clock::timeout(late, services.wait_until_restored()).await.unwrap();
}

#[tokio::test]
async fn the_list_stays_as_it_is_when_the_agent_leaves() {
    let services = NodeServices::default();
    services.set(alloc(1), vec![service(alloc(1), "web", 1)]);
    let index = services.list().index;
    services.freeze();
    services.remove(alloc(1));
    assert_eq!((services.list().index, services.list().instances.len()), (index, 1));
}
