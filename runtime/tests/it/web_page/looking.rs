//! What the page shows, and that it shows it as it happens.

use serde_json::{Value, json};

use super::{LIVE, Page, ROWS, on_command};
use crate::devices::{granted, sysfs};
use crate::support::browser::key;
use crate::support::front::Front;

#[tokio::test]
async fn the_page_shows_a_job_as_soon_as_it_runs() {
    let Some(page) = Page::open("").await else { return };
    page.show("jobs").await;
    page.browser.shows("No jobs").await;
    page.service("web", "exec sleep 600").await;
    page.browser.shows("running").await;
    assert_eq!(page.browser.value(ROWS).await, 1);
    page.browser.picture("jobs").await;
    page.browser.click(".list-row a").await;
    page.browser.shows("version 0").await;
    page.browser.picture("job").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn the_node_is_drawn_in_light_and_in_dark() {
    let Some(page) = Page::open("").await else { return };
    page.service("web", "exec sleep 600").await;
    page.show("").await;
    page.browser.until("document.querySelector('.uplot canvas') !== null").await;
    page.browser.shows("edge-07").await;
    let colour = "getComputedStyle(document.body).backgroundColor";
    let mut colours = Vec::new();
    for theme in ["light", "dark"] {
        page.browser
            .until(&format!(
                "document.documentElement.dataset.theme === '{theme}' || \
             (document.querySelector('[data-theme-switch]').click(), false)"
            ))
            .await;
        colours.push(page.browser.value(colour).await);
        page.browser.picture(&format!("node-{theme}")).await;
    }
    assert_ne!(colours[0], colours[1]);
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn output_of_a_task_is_followed() {
    let Some(page) = Page::open("").await else { return };
    let file = page.agent.data.path().join("say");
    let alloc = page.service("talks", &on_command(&file)).await;
    page.show(&format!("allocations/{alloc}/logs/t")).await;
    page.browser.shows("begun").await;
    std::fs::write(&file, "a line that came later").unwrap();
    page.browser.shows("a line that came later").await;
    page.browser.picture("logs").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn the_way_back_from_a_file_leads_to_its_directory_and_files_have_addresses() {
    let Some(page) = Page::open("").await else { return };
    let alloc = page.service("web", "echo ready; exec sleep 600").await;
    let files = format!("/ui/allocations/{alloc}/files");
    let at = async |path: &str| {
        page.browser
            .until(&format!("location.pathname === {}", json!(format!("{files}{path}"))))
            .await;
    };
    // From the tab, whatever task was shown before.
    page.show(&format!("allocations/{alloc}/logs/t")).await;
    page.browser.shows("ready").await;
    let tab =
        "[...document.querySelectorAll('[role=tab]')].find((tab) => tab.innerText === 'Files')";
    page.browser.value(&format!("{tab}.click()")).await;
    at("").await;
    for step in ["/alloc", "/alloc/logs", "/alloc/logs/t.stdout.0"] {
        page.browser.click(&format!(".list-row a[href='{files}{step}']")).await;
        at(step).await;
    }
    page.browser.shows("ready").await;
    page.browser.value("history.back()").await;
    at("/alloc/logs").await;
    page.browser.shows("t.stdout.0").await;
    page.browser.value("history.back()").await;
    at("/alloc").await;
    page.browser
        .until(&format!(
            "document.querySelector(\".list-row a[href='{files}/alloc/logs']\") !== null"
        ))
        .await;
    // The address of a file is one to come back to.
    page.show(&format!("allocations/{alloc}/files/alloc/logs/t.stdout.0")).await;
    page.browser.shows("ready").await;
    page.browser.click(".tools button").await;
    at("/alloc/logs").await;
    page.show(&format!("allocations/{alloc}/files/alloc/no-such-file")).await;
    page.browser.shows("That did not work").await;
    page.browser.close().await;
}

#[tokio::test]
async fn a_device_is_shown_with_its_holder_when_it_is_assigned() {
    let root = sysfs();
    let Some(page) = Page::open(&granted("pci", "root", root.path())).await else { return };
    page.show("devices").await;
    page.browser.shows("0000:3b:00.0").await;
    let of = "[...document.querySelectorAll('.list-row')].find((row) => row.innerText.includes('0000:3b:00.0')).innerText";
    let free = page.browser.value(of).await;
    assert!(free.as_str().unwrap().contains("free"), "{free}");
    let job = r#"job "gpu" {
  type = "batch"
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "exec sleep 600"]
      }
      resources {
        cpu    = 20
        memory = 64
        device "nvidia/display" {
          count = 1
        }
      }
    }
  }
}
"#;
    page.agent.submit(job).await.said(0, &[]);
    page.browser.until(&format!("{of}.includes('gpu · t')")).await;
    page.browser.picture("devices").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn an_allocation_has_its_tasks_on_a_line_of_time() {
    let Some(page) = Page::open("").await else { return };
    let alloc = page.service("web", "exec sleep 600").await;
    page.show(&format!("allocations/{alloc}")).await;
    page.browser.until("document.querySelectorAll('svg.timeline rect.run').length === 1").await;
    page.browser.shows("Task started by client").await;
    page.browser.picture("allocation").await;
    page.browser.press("Files").await;
    page.browser.shows("alloc/").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn a_terminal_runs_commands_inside_a_task() {
    let Some(page) = Page::open("").await else { return };
    let alloc = page.service("web", "exec sleep 600").await;
    page.show(&format!("allocations/{alloc}/terminal/t")).await;
    page.browser.click("[data-open-terminal]:not([disabled])").await;
    let screen = "document.querySelector('.terminal-lines').innerText";
    page.browser.until(&format!("{screen}.trim() !== ''")).await;
    page.browser.keys(&format!("echo $((6 * 7))-'<b>'{}", key::ENTER)).await;
    page.browser.until(&format!("{screen}.includes('42-<b>')")).await;
    page.browser.picture("terminal").await;
    page.browser.keys(&format!("exit 3{}", key::ENTER)).await;
    page.browser.shows("exit code 3").await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

/// Programs write to terminals in sequences; what is on the screen then.
#[tokio::test]
async fn the_terminal_knows_the_usual_sequences() {
    let Some(page) = Page::open("").await else { return };
    page.show("").await;
    for (what, written, lines) in [
        ("wrapping", "abcdefghijKL", ["abcdefghij", "KL", "", ""]),
        ("carriage return", "one\rtwo\r\nx\u{8}y", ["two", "y", "", ""]),
        ("scrolling", "1\r\n2\r\n3\r\n4\r\n5", ["2", "3", "4", "5"]),
        ("a place", "\u{1b}[2;3Hx\u{1b}[Hy\u{1b}[3dz", ["y", "  x", " z", ""]),
        ("erasing", "abc\u{1b}[2D\u{1b}[K\r\n123\u{1b}[1K\u{1b}[2J-", ["", "   -", "", ""]),
        ("inserted lines", "a\r\nb\u{1b}[1;1H\u{1b}[L0", ["0", "a", "b", ""]),
        ("a region", "a\r\nb\r\nc\r\nd\u{1b}[2;3r\u{1b}[3;1H\nX", ["a", "c", "X", "d"]),
        ("characters", "abcd\u{1b}[3D\u{1b}[P\u{1b}[2@", ["a  cd", "", "", ""]),
        ("the other screen", "a\u{1b}[?1049hfull\u{1b}[?1049lb", ["ab", "", "", ""]),
        ("titles", "\u{1b}]0;not shown\u{7}a\u{1b}]2;nor this\u{1b}\\b", ["ab", "", "", ""]),
        ("lines", "\u{1b}(0lqk\u{1b}(B q", ["┌─┐ q", "", "", ""]),
        ("wide ones", "日本\u{1b}[1;3Hx", ["日x", "", "", ""]),
        ("nonsense", "\u{1b}[999;999;x\u{1b}[?9999h\u{1b}[38;2mok", ["ok", "", "", ""]),
    ] {
        let script = format!(
            "import('../assets/js/vt/screen.js'.replace('..', new URL('.', document.querySelector('script[type=module]').src).href + '../..')).then(({{ Screen }}) => {{ \
             const screen = new Screen(4, 10); screen.write({}); return [0, 1, 2, 3].map((row) => screen.text(row)); }})",
            json!(written)
        );
        assert_eq!(page.browser.promised(&script).await, json!(lines), "{what}");
    }
    page.browser.close().await;
}

#[tokio::test]
async fn after_its_connection_was_cut_the_page_says_so_reads_again_and_goes_on() {
    let Some(page) = Page::open("").await else { return };
    let front = Front::with_prefix(page.at, "").await;
    page.browser.go(&format!("http://{}/ui/jobs", front.at)).await;
    page.is_live().await;
    front.cut(true);
    page.browser.until("document.querySelector('[data-feed=lost]') !== null").await;
    page.service("meanwhile", "exec sleep 600").await;
    front.cut(false);
    page.is_live().await;
    page.browser.shows("meanwhile").await;
    page.browser.close().await;
}

#[tokio::test]
async fn behind_a_proxy_with_a_prefix_everything_is_where_it_was() {
    let Some(page) = Page::open("").await else { return };
    page.service("web", "exec sleep 600").await;
    let front = Front::with_prefix(page.at, "/site/edge").await;
    page.browser.go(&format!("http://{}/site/edge/", front.at)).await;
    page.is_live().await;
    assert_eq!(page.browser.value("location.pathname").await, "/site/edge/ui/");
    page.browser.press("Jobs1").await;
    page.browser.click(".list-row a").await;
    page.browser.shows("version 0").await;
    assert_eq!(page.browser.value("location.pathname").await, "/site/edge/ui/jobs/web");
    // Read anew at a deeper address.
    page.browser.client.refresh().await.unwrap();
    page.browser.shows("version 0").await;
    page.browser.until(LIVE).await;
    page.browser.is_quiet().await;
    page.browser.close().await;
}

/// The page in front of ten thousand allocations, which are made up; bars are in the issue, limits here are wide.
#[tokio::test]
async fn ten_thousand_allocations_are_a_list_that_stays_quick() {
    let Some(page) = Page::open("").await else { return };
    page.service("web", "exec sleep 600").await;
    let front = Front::with_allocs(page.at, 10_000).await;
    page.browser.go(&format!("http://{}/ui/allocations", front.at)).await;
    let rows = "document.querySelectorAll('.list-row').length > 10 && performance.now()";
    let first = page.browser.until(rows).await.as_f64().unwrap();
    let ready = "performance.getEntriesByName('interactive')[0].startTime";
    let interactive = page.browser.value(ready).await.as_f64().unwrap();
    page.browser.until("document.querySelector('.list')?.getAttribute('aria-rowcount') === '10001' && performance.now()").await;
    page.is_live().await;
    let elements = page.browser.value(ROWS).await.as_u64().unwrap();
    assert!(elements < 80, "only the rows that are seen are there: {elements}");
    // To the end and back, and a filter: each from the key to the picture.
    let timed = |act: &str, seen: &str| {
        format!(
            "new Promise((resolve) => {{ const began = performance.now(); {act}; const look = () => \
             requestAnimationFrame(() => ({seen}) ? resolve(performance.now() - began) : look()); look(); }})"
        )
    };
    let last = "document.querySelector('.list-body').lastElementChild?.getAttribute('aria-rowindex') === '10001'";
    let scroll = timed("document.querySelector('.list').scrollTop = 1e9", last);
    let scrolled = page.browser.promised(&scroll).await.as_f64().unwrap();
    let act = "const box = document.querySelector('[data-filter]'); box.value = 'g[9999]'; box.dispatchEvent(new Event('input', { bubbles: true }))";
    let filter = timed(act, "document.querySelectorAll('.list-row').length === 1");
    let filtered = page.browser.promised(&filter).await.as_f64().unwrap();
    println!(
        "10,000 allocations: interactive {interactive:.0} ms, first rows {first:.0} ms, to the end {scrolled:.0} ms, \
         filter {filtered:.0} ms, {elements} rows as elements"
    );
    assert!(interactive < 5_000.0 && first < 10_000.0, "{interactive} {first}");
    assert!(scrolled < 1_000.0 && filtered < 2_000.0, "{scrolled} {filtered}");
    page.browser.is_quiet().await;
    page.browser.close().await;
}

#[tokio::test]
async fn the_stream_of_the_node_says_everything_and_then_what_changes() {
    let served = crate::support::http::Served::start().await;
    let mut stream = served.client.open("GET", "/v1/ostler/live", hyper::body::Bytes::new()).await;
    assert_eq!(stream.headers["content-type"], "application/x-ndjson");
    let first: Value = serde_json::from_str(stream.until("\n").await.trim()).unwrap();
    let keys: Vec<&String> = first.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["node", "use", "devices", "plugins"]);
    assert!(first["use"]["memory_total_mb"].as_u64().unwrap() > 0, "{first:#}");
    let id = served.run("once", "exec sleep 600").await;
    let purge = "/v1/job/once?purge=true";
    let answer = served.client.send("DELETE", purge, hyper::body::Bytes::new()).await;
    assert_eq!(answer.status, hyper::StatusCode::OK, "{}", answer.text());
    let later = stream.until(&id).await;
    let line = later.lines().find(|line| line.contains(&id)).unwrap();
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["gone"], json!([id]));
    assert_eq!(line["node"], Value::Null, "it did not change");
    drop(stream);
    served.stop().await;
}

#[tokio::test]
async fn one_stream_has_the_events_and_what_changes_of_the_node() {
    let served = crate::support::http::Served::start().await;
    let path = "/v1/event/stream?topic=Job&live=true";
    let mut stream = served.client.open("GET", path, hyper::body::Bytes::new()).await;
    let text = stream.until("\"Live\"").await;
    let mut text = text + &stream.until("\n").await;
    let line = text.lines().find(|line| line.contains("Live")).unwrap();
    let first: Value = serde_json::from_str(line).unwrap();
    assert_eq!(first["Live"]["node"]["Drain"], false, "{first:#}");
    assert!(first["Live"]["use"]["memory_total_mb"].as_u64().unwrap() > 0, "{first:#}");
    let id = served.run("once", "exec sleep 600").await;
    let purge = "/v1/job/once?purge=true";
    let answer = served.client.send("DELETE", purge, hyper::body::Bytes::new()).await;
    assert_eq!(answer.status, hyper::StatusCode::OK, "{}", answer.text());
    text.push_str(&stream.until(&id).await);
    text.push_str(&stream.until("\n").await);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<Value> = lines.collect();
    assert!(lines.iter().any(|line| line["Events"][0]["Key"] == "once"), "{text}");
    let gone = |line: &Value| line["Live"]["gone"] == json!([id]);
    assert!(lines.iter().any(gone), "{text}");
    drop(stream);
    served.stop().await;
}
