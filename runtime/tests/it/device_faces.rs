//! Devices as people and programs see them: the command line, the API, the plan.

use serde_json::{Value, json};

use crate::devices::{granted, sysfs};
use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home, ask};
use crate::support::http::{Client, within};
use crate::support::jobs::{SOON_HEALTHY, batch, wasm};

/// Two graphics cards on two NUMA nodes and a network card, all of them made up.
const FIRST: &str = "0000:3b:00.0";
const SECOND: &str = "0000:5e:00.0";
const NETWORK: &str = "0000:01:00.0";

async fn agent() -> (AgentProcess, tempfile::TempDir) {
    let root = sysfs();
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    std::fs::write(&config, format!("{KEEPS}{}", granted("pci", "root", root.path()))).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    (agent, root)
}

/// A service that holds `count` graphics cards.
fn holder(count: u32, numa: &str) -> String {
    format!(
        r#"job "gpu" {{
  group "g" {{
    {SOON_HEALTHY}
    task "t" {{
      driver = "raw_exec"
      config {{
        command = "/bin/sh"
        args = ["-c", "exec sleep 600"]
      }}
      resources {{
        cpu = 20
        memory = 64
        device "nvidia/display" {{
          count = {count}
          affinity {{
            attribute = "${{device.attr.driver}}"
            value = "nvidia"
            weight = 30
          }}
        }}
        numa {{
          affinity = "{numa}"
          devices = ["nvidia/display"]
        }}
      }}
    }}
  }}
}}
"#
    )
}

fn instance<'a>(groups: &'a Value, id: &str) -> &'a Value {
    let mut all =
        groups.as_array().unwrap().iter().flat_map(|g| g["instances"].as_array().unwrap());
    all.find(|one| one["id"] == id).unwrap_or_else(|| panic!("no {id} in {groups:#}"))
}

#[tokio::test]
async fn a_assigned_device_is_shown_with_its_holder_by_the_command_line_and_the_api() {
    let (agent, _root) = agent().await;
    let groups = agent.json(&["device", "list", "--json"]).await;
    assert_eq!(instance(&groups, FIRST)["holder"], Value::Null);
    let kind = groups.as_array().unwrap().iter().find(|g| g["group"]["vendor"] == "nvidia");
    assert_eq!(kind.unwrap()["group"]["type"], "display", "{groups:#}");

    agent.run(&holder(1, "none")).await.said(0, &["job gpu runs"]);
    let alloc = agent.alloc("gpu").await;
    let groups = agent.json(&["device", "list", "--json"]).await;
    let held = json!({ "alloc": alloc, "task": "t", "job": "gpu", "note": null });
    assert_eq!(instance(&groups, FIRST)["holder"], held);
    assert_eq!(instance(&groups, SECOND)["holder"], Value::Null);
    let client = Client(agent.data.path().join("ostler.sock"));
    assert_eq!(client.get("/v1/ostler/devices").await.json(), groups);

    let text = agent.ask(&["device", "list"]).await.stdout;
    let line = text.lines().find(|line| line.contains(FIRST)).unwrap();
    for part in ["healthy", &alloc[..8], "numa 0", "pci"] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    let status = agent.ask(&["device", "status", FIRST]).await;
    let holder = format!("held by     task t of allocation {alloc} of job gpu");
    for part in ["health      healthy", "locality    0000:3b:00.0 numa 0", &holder, "driver"] {
        assert!(status.stdout.contains(part), "no {part} in {}", status.stdout);
    }
    let one = agent.json(&["device", "status", "--json", FIRST]).await;
    assert_eq!(one["instances"].as_array().unwrap().len(), 1);
    assert_eq!(one["instances"][0]["id"], FIRST);
    agent.ask(&["device", "status", "0000:"]).await.said(2, &["3 devices", NETWORK]);
    agent.ask(&["device", "status", "ffff"]).await.said(2, &["no device ffff"]);
}

#[tokio::test]
async fn a_plan_says_of_every_device_group_why_it_is_taken_or_not() {
    let (agent, _root) = agent().await;
    let plan = async |job: &str| {
        let file = agent.file("plan.hcl", job);
        let args = ["job", "plan", file.to_str().unwrap()];
        let json = agent.ask(&[args[0], args[1], "--json", args[2]]).await.stdout;
        let json: Value = serde_json::from_str(&json).unwrap();
        (agent.ask(&args).await, json["Devices"][0].clone())
    };
    let of = |told: &Value, vendor: &str| {
        let all = told["candidates"].as_array().unwrap();
        all.iter().find(|one| one["group"]["vendor"] == vendor).unwrap().clone()
    };
    let (text, told) = plan(&holder(1, "prefer")).await;
    assert_eq!((&told["task"], &told["numa_node"]), (&json!("t"), &json!(0)));
    assert_eq!(told["chosen"]["ids"], json!([FIRST]));
    let taken = of(&told, "nvidia");
    assert_eq!((&taken["outcome"], &taken["score"]), (&json!("chosen"), &json!(80)));
    let other = told["candidates"].as_array().unwrap().iter();
    assert!(other.clone().any(|one| one["outcome"] == "other-name"), "{told:#}");
    let line = format!("assigns {FIRST}, NUMA node 0 (score 80 of 80)");
    for part in ["group g[0], task t: nvidia/display, 1 instance", &line, "not asked for:"] {
        assert!(text.stdout.contains(part), "no {part:?} in\n{}", text.stdout);
    }

    let (text, told) = plan(&holder(2, "prefer")).await;
    assert_eq!(told["chosen"]["ids"], json!([FIRST, SECOND]), "better two nodes than none");
    assert_eq!((&told["numa_node"], &of(&told, "nvidia")["score"]), (&Value::Null, &json!(30)));
    assert!(text.stdout.contains("on no one NUMA node (score 30 of 80)"), "{}", text.stdout);

    let (text, told) = plan(&holder(2, "require")).await;
    assert_eq!((&told["chosen"], text.code), (&Value::Null, Some(3)));
    assert!(text.stdout.contains("free are 1 on node 0, 1 on node 1"), "{}", text.stdout);

    agent.run(&holder(1, "none")).await.said(0, &["job gpu runs"]);
    let more = holder(2, "none").replace("job \"gpu\"", "job \"more\"");
    let (text, told) = plan(&more).await;
    assert_eq!(of(&told, "nvidia")["outcome"], "unfit");
    assert!(text.stdout.contains("2 healthy, 1 free"), "{}", text.stdout);
    assert!(text.stdout.contains("is held by task t of allocation"), "{}", text.stdout);
}

#[tokio::test]
async fn every_plugin_says_how_it_does_and_what_its_calls_cost() {
    let (agent, _root) = agent().await;
    let all = agent.json(&["plugin", "status", "--json"]).await;
    let pci = all.as_array().unwrap().iter().find(|one| one["name"] == "pci").unwrap().clone();
    assert_eq!((&pci["status"]["state"], &pci["kind"]), (&json!("loaded"), &json!("device")));
    assert_eq!(
        (&pci["activity"]["state"], &pci["activity"]["strikes"]),
        (&json!("running"), &json!(0))
    );
    let calls = &pci["activity"]["calls"]["fingerprint"];
    assert!(calls["calls"].as_u64().unwrap() >= 1, "{pci:#}");
    assert!(calls["p99_nanos"].as_u64().unwrap() >= calls["p50_nanos"].as_u64().unwrap());
    assert!(calls["bytes_out"].as_u64().unwrap() > 100, "three devices were described: {pci:#}");
    let client = Client(agent.data.path().join("ostler.sock"));
    let told = client.get("/v1/ostler/plugins/status").await.json();
    assert_eq!(told.as_array().unwrap().len(), all.as_array().unwrap().len());

    let text = agent.ask(&["plugin", "status"]).await.stdout;
    let line = text.lines().find(|line| line.starts_with("pci ")).unwrap();
    assert!(line.contains("running"), "{line}");
    let text = agent.ask(&["plugin", "status", "pci"]).await.stdout;
    for part in ["state       running", "strikes     0", "FUNCTION", "fingerprint"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    agent.ask(&["plugin", "status", "nope"]).await.said(2, &["no plugin nope"]);
}

#[tokio::test]
async fn what_assigned_devices_measure_is_told_for_the_task_the_node_and_each_of_them() {
    let (dir, data) = (tempfile::tempdir().unwrap(), Home::new());
    for (name, size) in [("one", 11), ("two", 22), ("three", 33)] {
        std::fs::write(dir.path().join(name), "x".repeat(size)).unwrap();
    }
    let config = data.path().join("ostler.hcl");
    let text =
        format!("{KEEPS}device_stats_interval = \"1s\"\n{}", granted("files", "dir", dir.path()));
    std::fs::write(&config, text).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    // Two requests that one group serves.
    let devices = "device \"ostler/file\" {\n constraint {\n attribute = \"${device.ids}\"\n \
                   operator = \"regexp\"\n value = \"^(one|two)$\"\n }\n }\n ";
    let resources = format!("resources {{\n cpu = 20\n memory = 32\n {}\n }}", devices.repeat(2));
    let job = batch(&wasm("t", "guest:toolbox", &["spin"], &resources));
    agent.run(&job).await.said(0, &["job j runs"]);
    let alloc = agent.alloc("j").await;

    let client = Client(agent.data.path().join("ostler.sock"));
    within(async {
        loop {
            let groups = client.get("/v1/ostler/devices").await.json();
            let measured = |id| !instance(&groups, id)["stats"].is_null();
            if ["one", "two", "three"].into_iter().all(measured) {
                break;
            }
        }
    })
    .await;
    let stats =
        agent.json(&["alloc", "status", "--json", "--stats", &alloc]).await["stats"].clone();
    for usage in [&stats["ResourceUsage"], &stats["Tasks"]["t"]["ResourceUsage"]] {
        let groups = usage["DeviceStats"].as_array().unwrap();
        assert_eq!(groups.len(), 1, "merged: {usage:#}");
        let instances = groups[0]["InstanceStats"].as_object().unwrap();
        let sizes = |id: &str| instances[id]["Summary"]["IntNumeratorVal"].as_u64();
        assert_eq!(instances.keys().collect::<Vec<_>>(), ["one", "two"], "its own only");
        assert_eq!((sizes("one"), sizes("two")), (Some(11), Some(22)));
    }
    let text = agent.ask(&["alloc", "status", "--stats", &alloc]).await.stdout;
    assert!(text.contains("devices in use\n"), "{text}");
    let text = agent.ask(&["device", "status", "one"]).await.stdout;
    assert!(text.contains("statistics\n") && text.contains("size"), "{text}");

    let node = agent.json(&["node", "status", "--json", "--stats"]).await;
    let groups = node["stats"]["DeviceStats"].as_array().unwrap();
    let files = groups.iter().find(|group| group["Type"] == "file").unwrap();
    assert_eq!(files["InstanceStats"].as_object().unwrap().len(), 3);
    assert!(node["stats"]["Memory"]["Total"].as_u64().unwrap() > 0);
    let text = agent.ask(&["node", "status", "--stats"]).await.stdout;
    for part in ["processors\n", "disks\n", "devices measured\n", "attributes\n"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

#[tokio::test]
async fn statistics_of_the_node_need_an_agent_that_runs() {
    let data = Home::new();
    ask(data.path(), &["node", "status", "--stats"]).await.said(3, &["ostler.sock"]);
}

#[tokio::test]
async fn nomads_node_has_the_devices_with_health_and_place() {
    let (agent, _root) = agent().await;
    let client = Client(agent.data.path().join("ostler.sock"));
    let id = client.get("/v1/nodes").await.json()[0]["ID"].as_str().unwrap().to_owned();
    let node = client.get(&format!("/v1/node/{id}")).await.json();
    let groups = node["NodeResources"]["Devices"].as_array().unwrap();
    let cards = groups.iter().find(|group| group["Vendor"] == "nvidia").unwrap();
    let first = cards["Instances"].as_array().unwrap().iter().find(|one| one["ID"] == FIRST);
    let first = first.unwrap();
    assert_eq!((&first["Healthy"], &first["Locality"]["PciBusID"]), (&json!(true), &json!(FIRST)));
    assert!(node["Attributes"]["cpu.usablecompute"].is_string(), "{}", node["Attributes"]);
}
