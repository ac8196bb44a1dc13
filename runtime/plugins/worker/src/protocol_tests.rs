//! Tests of the bytes of version 1, as every build since has written and read them. These texts never
//! change; a new field gets a test of its own.

use super::*;

/// Check that the message is written as `text`, and that `text` is read as the same message.
fn frozen<T>(message: &T, text: &str)
where
    T: Serialize + for<'a> Deserialize<'a> + PartialEq + std::fmt::Debug,
{
    assert_eq!(serde_json::to_string(message).unwrap(), text);
    assert_eq!(serde_json::from_str::<T>(text).unwrap(), *message);
}

const RUN: &str = "5f4c1a2e-0d5b-4e61-9c1f-2b7a64b0a001/web/0000002a";

fn run() -> String {
    RUN.to_owned()
}

#[test]
fn what_an_agent_says_has_the_bytes_of_version_1() {
    frozen(&ToWorker::Hello { version: 1 }, r#"{"type":"hello","version":1}"#);
    let text = |text: &str| text.to_owned();
    let named = |kind: &str| format!(r#"{{"type":"{kind}","run":"{RUN}"}}"#);
    frozen(&ToWorker::Release { run: run(), note: None }, &named("release"));
    let noted = ToWorker::Release { run: run(), note: Some(text("{\"alloc\":1}")) };
    let note = r#","note":"{\"alloc\":1}"}"#;
    frozen(&noted, &named("release").replace('}', note));
    let made = |error: Option<&str>| ToWorker::DirsMade { run: run(), error: error.map(text) };
    frozen(&made(None), &named("dirs_made"));
    frozen(&made(Some("full")), &named("dirs_made").replace('}', r#","error":"full"}"#));
    frozen(&ToWorker::KillRun { run: run() }, &named("kill_run"));
    frozen(&ToWorker::ForgetRun { run: run() }, &named("forget_run"));
    let kill = format!(r#"{{"type":"kill","run":"{RUN}","id":"wasm-1"}}"#);
    frozen(&ToWorker::Kill { run: run(), id: "wasm-1".to_owned() }, &kill);
    frozen(&ToWorker::List { n: 3 }, r#"{"type":"list","n":3}"#);
    let usage = format!(r#"{{"type":"usage","n":4,"run":"{RUN}","id":"wasm-1"}}"#);
    frozen(&ToWorker::Usage { n: 4, run: run(), id: "wasm-1".to_owned() }, &usage);
    frozen(&ToWorker::Retire, r#"{"type":"retire"}"#);
}

#[test]
fn the_order_of_a_start_has_the_bytes_of_version_1() {
    let text = |text: &str| text.to_owned();
    let order = StartOrder {
        run: run(),
        id: None,
        alloc: text("5f4c1a2e-0d5b-4e61-9c1f-2b7a64b0a001"),
        job: text("shop"),
        group: text("g"),
        task: text("web"),
        code: OrderCode { digest: text("ab"), component: true },
        path: text("/srv/web.wasm"),
        args: vec![text("web")],
        env: vec![(text("A"), text("1"))],
        dirs: vec![Dir { host: text("/a"), guest: text("/local"), read_only: false }],
        stdin: Stdin::Text(text("in")),
        listen: true,
        connect: vec![text("127.0.0.1:1")],
        cpu_mhz: 100,
        task_dir: text("/a"),
        alloc_dir: text("/b"),
        late_dirs: false,
        mounts: vec![OrderMount { host: text("/m"), task: text("/n"), read_only: true }],
        ports: vec![Port { label: text("http"), value: 80, to: 81, host_ip: text("127.0.0.1") }],
        limits: OrderLimits {
            memory_bytes: 1,
            table_elements: 2,
            transfer_bytes: 3,
            handles: 4,
            random_bytes: 5,
            disk_bytes: 6,
        },
        stdout: Some(StreamFiles {
            dir: None,
            fresh: false,
            prefix: text("web.stdout."),
            files_max: 10,
            file_bytes_max: 9,
        }),
        stderr: None,
    };
    let expected = concat!(
        r#"{"type":"start","n":7,"order":{"run":"5f4c1a2e-0d5b-4e61-9c1f-2b7a64b0a001/web/0000002a","#,
        r#""alloc":"5f4c1a2e-0d5b-4e61-9c1f-2b7a64b0a001","job":"shop","group":"g","task":"web","#,
        r#""code":{"digest":"ab","component":true},"path":"/srv/web.wasm","args":["web"],"#,
        r#""env":[["A","1"]],"dirs":[{"host":"/a","guest":"/local","read_only":false}],"#,
        r#""stdin":{"text":"in"},"listen":true,"connect":["127.0.0.1:1"],"cpu_mhz":100,"#,
        r#""task_dir":"/a","alloc_dir":"/b","mounts":[{"host":"/m","task":"/n","read_only":true}],"#,
        r#""ports":[{"label":"http","value":80,"to":81,"host_ip":"127.0.0.1"}],"#,
        r#""limits":{"memory_bytes":1,"table_elements":2,"transfer_bytes":3,"handles":4,"#,
        r#""random_bytes":5,"disk_bytes":6},"#,
        r#""stdout":{"prefix":"web.stdout.","files_max":10,"file_bytes_max":9}}}"#,
    );
    frozen(&ToWorker::Start { n: 7, order: Box::new(order) }, expected);
    frozen(&Stdin::Nothing, r#""nothing""#);
    frozen(&Stdin::File(text("/f")), r#"{"file":"/f"}"#);
}

#[test]
fn what_a_worker_says_has_the_bytes_of_version_1() {
    let welcome = FromWorker::Welcome { version: 1, tasks_max: 9, notices: vec!["n".to_owned()] };
    frozen(&welcome, r#"{"type":"welcome","version":1,"tasks_max":9,"notices":["n"]}"#);
    frozen(&FromWorker::Held { n: 1, id: "w".to_owned() }, r#"{"type":"held","n":1,"id":"w"}"#);
    let refused = FromWorker::Refused { n: 1, text: "no".to_owned(), invalid: true };
    frozen(&refused, r#"{"type":"refused","n":1,"text":"no","invalid":true}"#);
    let exit = TaskExit { code: Some(3), finished_at: 5, ..TaskExit::default() };
    let exited = FromWorker::Exited { run: run(), id: "w".to_owned(), exit: exit.clone() };
    let text = format!(
        r#"{{"type":"exited","run":"{RUN}","id":"w","exit":{{"code":3,"oom_killed":false,"finished_at":5}}}}"#
    );
    frozen(&exited, &text);
    let listed = FromWorker::Listed {
        n: 2,
        tasks: vec![
            ListedTask {
                run: run(),
                id: "w".to_owned(),
                released: true,
                exit: None,
                cpu_mhz: None,
                place: None,
            },
            ListedTask {
                run: run(),
                id: "v".to_owned(),
                released: true,
                exit: Some(exit),
                cpu_mhz: None,
                place: None,
            },
        ],
    };
    let text = format!(
        concat!(
            r#"{{"type":"listed","n":2,"tasks":[{{"run":"{run}","id":"w","released":true}},"#,
            r#"{{"run":"{run}","id":"v","released":true,"exit":"#,
            r#"{{"code":3,"oom_killed":false,"finished_at":5}}}}]}}"#,
        ),
        run = RUN
    );
    frozen(&listed, &text);
    let said = FromWorker::Said { run: run(), text: "waits".to_owned() };
    frozen(&said, &format!(r#"{{"type":"said","run":"{RUN}","text":"waits"}}"#));
    let used = FromWorker::Used { n: 4, cpu_nanos: Some(1), memory_bytes: None, taken_at: 2 };
    frozen(&used, r#"{"type":"used","n":4,"cpu_nanos":1,"memory_bytes":null,"taken_at":2}"#);
}

#[test]
fn a_listed_task_may_say_what_it_reserved() {
    let (run, id) = (run(), "w".to_owned());
    let task = ListedTask { run, id, released: true, exit: None, cpu_mhz: Some(20), place: None };
    let text = format!(r#"{{"run":"{RUN}","id":"w","released":true,"cpu_mhz":20}}"#);
    frozen(&task, &text);
}

#[test]
fn a_listed_task_may_say_what_it_is_of() {
    let (run, id) = (run(), "w".to_owned());
    let place = TaskPlace { job: "shop".to_owned(), group: "g".to_owned(), index: 2 };
    let place = Some(place);
    let task = ListedTask { run, id, released: true, exit: None, cpu_mhz: None, place };
    let text = format!(
        r#"{{"run":"{RUN}","id":"w","released":true,"place":{{"job":"shop","group":"g","index":2}}}}"#
    );
    frozen(&task, &text);
}

#[test]
fn what_is_new_in_a_later_version_is_passed_over() {
    let unknown: ToWorker = serde_json::from_str(r#"{"type":"freeze","run":"x"}"#).unwrap();
    assert_eq!(unknown, ToWorker::Unknown);
    let more: ToWorker = serde_json::from_str(r#"{"type":"list","n":3,"after":"x"}"#).unwrap();
    assert_eq!(more, ToWorker::List { n: 3 });
    let unknown: FromWorker = serde_json::from_str(r#"{"type":"paused"}"#).unwrap();
    assert_eq!(unknown, FromWorker::Unknown);
}
