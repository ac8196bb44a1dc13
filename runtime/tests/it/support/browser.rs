//! A real browser, headless, driven by WebDriver: Debian's Chromium.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::wd::WebDriverCompatibleCommand;
use fantoccini::{Client, ClientBuilder, Locator};
use hyper::Method;
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use url::Url;

use super::http::within;
use super::needs::{Need, skipped};
use super::system::{kill, processes_of};

const CHROMIUM: &str = "/usr/bin/chromium";
const DRIVER: &str = "/usr/bin/chromedriver";

/// So that it does nothing of its own accord, and runs as root and with little shared memory.
const ARGUMENTS: [&str; 10] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1360,860",
];

/// From one look at the page to the next.
const PAUSE: Duration = Duration::from_millis(40);

/// One window. What was started ends with it.
pub struct Browser {
    pub client: Client,
    driver: Child,
    profile: TempDir,
}

/// What pages and the browser wrote to the console since somebody asked.
#[derive(Debug)]
struct Console;

impl WebDriverCompatibleCommand for Console {
    fn endpoint(&self, base: &Url, session: Option<&str>) -> Result<Url, url::ParseError> {
        base.join(&format!("session/{}/se/log", session.unwrap_or_default()))
    }

    fn method_and_body(&self, _: &Url) -> (Method, Option<String>) {
        (Method::POST, Some(json!({ "type": "browser" }).to_string()))
    }
}

impl Browser {
    /// Absent where there is none: then the test was skipped.
    pub async fn open() -> Option<Self> {
        if let Some(missing) = [CHROMIUM, DRIVER].into_iter().find(|path| !Path::new(path).exists())
        {
            skipped(Need::Browser, format!("no {missing} (Debian: chromium, chromium-driver)"));
            return None;
        }
        let profile = tempfile::Builder::new().prefix("ostler-browser-").tempdir().unwrap();
        let mut driver = Command::new(DRIVER)
            // Named, or it says the port that it has on ::1, which is 0 where there is no IPv6.
            .args(["--port=0", "--allowed-ips=127.0.0.1"])
            .env("HOME", profile.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port: u16 = within(async {
            loop {
                let line = lines.next_line().await.unwrap().expect("the driver says its port");
                if let Some((_, port)) = line.split_once("successfully on port ") {
                    return port.trim_end_matches('.').parse().unwrap();
                }
            }
        })
        .await;
        let mut arguments: Vec<String> = ARGUMENTS.map(str::to_owned).to_vec();
        arguments.push(format!("--user-data-dir={}", profile.path().join("data").display()));
        let wanted = json!({
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "binary": CHROMIUM, "args": arguments },
        });
        let Value::Object(wanted) = wanted else { unreachable!() };
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(wanted);
        let driver_at = format!("http://127.0.0.1:{port}");
        let connecting = builder.connect(&driver_at);
        let client = within(connecting).await.expect("the browser starts");
        Some(Self { client, driver, profile })
    }

    pub async fn go(&self, url: &str) {
        within(self.client.goto(url)).await.unwrap();
    }

    /// What an expression is in the page.
    pub async fn value(&self, expression: &str) -> Value {
        let script = format!("return ({expression});");
        let value = within(self.client.execute(&script, Vec::new())).await;
        value.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    /// What a promise becomes.
    pub async fn promised(&self, expression: &str) -> Value {
        let script = format!(
            "const done = arguments[arguments.length - 1]; \
             Promise.resolve({expression}).then((value) => done({{ value }}), (error) => done({{ error: String(error) }}));"
        );
        let mut said = within(self.client.execute_async(&script, Vec::new())).await.unwrap();
        assert_eq!(said["error"], Value::Null, "{expression}");
        said["value"].take()
    }

    /// Wait until an expression is true in the page; what it is then.
    pub async fn until(&self, expression: &str) -> Value {
        let mut last = Value::Null;
        let seen = ostler_model::clock::timeout(super::PATIENCE / 2, async {
            loop {
                last = self.value(expression).await;
                if !matches!(&last, Value::Null | Value::Bool(false))
                    && last != json!("")
                    && last != json!(0)
                {
                    return;
                }
                ostler_model::clock::sleep(PAUSE).await;
            }
        });
        if seen.await.is_none() {
            let text = self.value("document.body.innerText").await;
            let console = self.console().await;
            self.picture("failed").await;
            panic!("{expression} stays {last}; the page says:\n{text}\nconsole: {console:#?}");
        }
        last
    }

    /// Wait until the page shows a text.
    pub async fn shows(&self, text: &str) {
        self.until(&format!("document.body.innerText.includes({})", json!(text))).await;
    }

    /// Click what a selector names, as soon as it is there.
    pub async fn click(&self, selector: &str) {
        self.until(&format!("document.querySelector({}) !== null", json!(selector))).await;
        let element = self.client.find(Locator::Css(selector)).await.unwrap();
        element.click().await.unwrap_or_else(|error| panic!("{selector}: {error}"));
    }

    /// Click the button or link of this text.
    pub async fn press(&self, text: &str) {
        let path = format!("//*[self::button or self::a][normalize-space()={text:?}]");
        let find = format!(
            "document.evaluate({}, document, null, XPathResult.BOOLEAN_TYPE).booleanValue",
            json!(path)
        );
        self.until(&find).await;
        let element = self.client.find(Locator::XPath(&path)).await.unwrap();
        element.click().await.unwrap_or_else(|error| panic!("{text}: {error}"));
    }

    /// Press keys, one after the other. Those without a character are in Unicode's private area, see [`key`].
    pub async fn keys(&self, text: &str) {
        let mut keys = KeyActions::new("keys".to_owned());
        for value in text.chars() {
            keys = keys.then(KeyAction::Down { value }).then(KeyAction::Up { value });
        }
        within(self.client.perform_actions(keys)).await.unwrap();
    }

    /// Texts of the console since the last question, errors and warnings alone.
    pub async fn console(&self) -> Vec<String> {
        let said = within(self.client.issue_cmd(Console)).await.unwrap();
        let bad = |entry: &&Value| matches!(entry["level"].as_str(), Some("SEVERE" | "WARNING"));
        let text = |entry: &Value| entry["message"].as_str().unwrap().to_owned();
        said.as_array().unwrap().iter().filter(bad).map(text).collect()
    }

    /// The page complained of nothing.
    pub async fn is_quiet(&self) {
        let console = self.console().await;
        assert!(console.is_empty(), "{console:#?}");
    }

    /// Keep what is seen, in `target/web-page/NAME.png`.
    pub async fn picture(&self, name: &str) -> PathBuf {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("web-page");
        std::fs::create_dir_all(&dir).unwrap();
        let file = dir.join(format!("{name}.png"));
        std::fs::write(&file, within(self.client.screenshot()).await.unwrap()).unwrap();
        file
    }

    pub async fn close(self) {
        let _gone = within(self.client.clone().close()).await;
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ended_already = self.driver.start_kill();
        processes_of(self.profile.path()).into_iter().for_each(kill);
    }
}

/// Keys without a character, as WebDriver names them.
pub mod key {
    pub const ENTER: &str = "\u{e007}";
    pub const ESCAPE: &str = "\u{e00c}";
    pub const DOWN: &str = "\u{e015}";
    pub const END: &str = "\u{e010}";
    pub const TAB: &str = "\u{e004}";
    pub const RIGHT: &str = "\u{e014}";
}
