//! A real browser, driven over the `WebDriver` protocol: headless Chromium behind its own `chromedriver`.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    http::Call,
    program::eventually,
    tools::{node_module, tell},
};

/// How a `WebDriver` element is named in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The size of the window: wide enough for a page, high enough to see most of one at once.
const WINDOW: &str = "--window-size=1280,1640";

/// One browser with one empty profile. It ends when dropped.
pub struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    /// The profile and the driver's output.
    _directory: TempDir,
}

impl Browser {
    /// Starts the browser.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let log = directory.path().join("chromedriver.log");
        let (driver, port) = start_driver(&log).unwrap_or_else(|words| {
            // It chooses a port for IPv4 that another process may have for IPv6.
            tell(&format!("\nchromedriver has ended and is started again; it printed: {words}\n"));
            start_driver(&log).unwrap_or_else(|words| panic!("chromedriver ends at once: {words}"))
        });
        let profile = format!("--user-data-dir={}", directory.path().join("profile").display());
        let address = ([127, 0, 0, 1], port).into();
        let mut browser = Self { driver, address, session: String::new(), _directory: directory };
        let capabilities = json!({ "alwaysMatch": {
            "goog:chromeOptions": { "args": arguments(&profile) },
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        }});
        let session = eventually("the browser starts", || {
            browser.try_ask("POST", "/session", &json!({ "capabilities": capabilities })).ok()
        });
        session["sessionId"].as_str().expect("a session has an id").clone_into(&mut browser.session);
        browser
    }

    /// Loads a page.
    pub fn open(&self, url: &str) {
        self.command("POST", "url", &json!({ "url": url }));
    }

    /// Waits until an element is there.
    pub fn see(&self, selector: &str) {
        self.element(selector);
    }

    /// Clicks on an element as soon as it can be clicked.
    pub fn click(&self, selector: &str) {
        let element = self.element(selector);
        eventually(&format!("{selector} can be clicked"), || {
            self.try_command("POST", &format!("element/{element}/click"), &json!({})).ok()
        });
    }

    /// Types into an element.
    pub fn fill(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.command("POST", &format!("element/{element}/clear"), &json!({}));
        self.command("POST", &format!("element/{element}/value"), &json!({ "text": text }));
    }

    /// Types into whatever has the focus, as with a keyboard alone. `\u{e004}` is Tab, `\u{e007}` Enter,
    /// `\u{e00d}` Space.
    pub fn press(&self, keys: &str) {
        let active = self.command("GET", "element/active", &Value::Null);
        let element = active[ELEMENT].as_str().expect("something has the focus");
        self.command("POST", &format!("element/{element}/value"), &json!({ "text": keys }));
    }

    /// Waits until an element shows a text that holds `part`, and returns all of it.
    pub fn see_text(&self, selector: &str, part: &str) -> String {
        eventually(&format!("{selector} shows {part:?}"), || {
            let found = self.try_command("POST", "element", &by(selector)).ok()?;
            let path = format!("element/{}/text", found[ELEMENT].as_str()?);
            let text = self.try_command("GET", &path, &Value::Null).ok()?;
            text.as_str().filter(|text| text.contains(part)).map(str::to_owned)
        })
    }

    /// Pretends to be a screen of this size, dark or light.
    pub fn emulate(&self, width: u32, height: u32, colours: &str) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": colours }] });
        self.devtools("Emulation.setEmulatedMedia", &media);
    }

    /// Shows the page as it is now on a desktop and on a phone, light and dark: it never scrolls sideways and
    /// passes an accessibility check.
    pub fn check_every_screen(&self, name: &str) {
        let axe = fs::read_to_string(node_module("axe-core/axe.min.js")).expect("tests/run installs axe");
        let violations = "axe.run().then(({ violations }) => \
            done(violations.map((v) => [v.id, v.impact, v.nodes.map((n) => n.html)])))";
        for (width, height) in [(1280, 900), (320, 800)] {
            for colours in ["light", "dark"] {
                self.emulate(width, height, colours);
                let seen = format!("{name}-{width}-{colours}");
                let overflow = self.run("return document.documentElement.scrollWidth - window.innerWidth");
                let overflow = overflow.as_i64().expect("a number of pixels");
                assert!(overflow <= 0, "{seen} scrolls sideways by {overflow}");
                self.run(&axe);
                let script = format!("const done = arguments[arguments.length - 1]; {violations}");
                let found = self.command("POST", "execute/async", &json!({ "script": script, "args": [] }));
                assert_eq!(found, json!([]), "{seen}");
            }
        }
    }

    fn devtools(&self, command: &str, parameters: &Value) {
        self.command("POST", "goog/cdp/execute", &json!({ "cmd": command, "params": parameters }));
    }

    /// The text that an element shows.
    pub fn text(&self, selector: &str) -> String {
        let element = self.element(selector);
        let text = self.command("GET", &format!("element/{element}/text"), &Value::Null);
        text.as_str().expect("a text").to_owned()
    }

    /// How many elements there are now.
    pub fn count(&self, selector: &str) -> usize {
        let found = self.command("POST", "elements", &by(selector));
        found.as_array().expect("a list of elements").len()
    }

    /// What a piece of JavaScript returns.
    pub fn run(&self, script: &str) -> Value {
        self.command("POST", "execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// What the page has complained about since it was asked last: errors, warnings, violated policies. A request
    /// that failed is no complaint: the page sends it again.
    pub fn complaints(&self) -> Vec<String> {
        let entries = self.log("browser");
        let complaints = entries.iter().filter(|entry| {
            entry["level"] != "INFO" && entry["level"] != "DEBUG" && entry["source"] != "network"
        });
        complaints.map(|entry| entry["message"].to_string()).collect()
    }

    /// Every address that the browser has sent a request to since it was asked last. Its own pages are no
    /// addresses.
    pub fn requested(&self) -> Vec<String> {
        let events = self.log("performance");
        let events = events.iter().filter_map(|entry| {
            let event: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let event = &event["message"];
            let sent = event["method"] == "Network.requestWillBeSent";
            sent.then(|| event["params"]["request"]["url"].as_str().unwrap_or_default().to_owned())
        });
        events.filter(|url| !url.starts_with("chrome:")).collect()
    }

    fn element(&self, selector: &str) -> String {
        eventually(&format!("{selector} is on the page"), || {
            let found = self.try_command("POST", "element", &by(selector)).ok()?;
            found[ELEMENT].as_str().map(str::to_owned)
        })
    }

    fn log(&self, kind: &str) -> Vec<Value> {
        let entries = self.command("POST", "se/log", &json!({ "type": kind }));
        entries.as_array().expect("a list of entries").clone()
    }

    fn command(&self, method: &str, command: &str, parameters: &Value) -> Value {
        self.try_command(method, command, parameters)
            .unwrap_or_else(|error| panic!("the browser does {command}: {error}"))
    }

    fn try_command(&self, method: &str, command: &str, parameters: &Value) -> Result<Value, Value> {
        self.try_ask(method, &format!("/session/{}/{command}", self.session), parameters)
    }

    fn try_ask(&self, method: &str, path: &str, parameters: &Value) -> Result<Value, Value> {
        let call = Call::new(self.address, method, path);
        let call = if parameters.is_null() { call } else { call.json(parameters.to_string()) };
        let response = call.send();
        let value = response.json()["value"].take();
        if response.status == 200 { Ok(value) } else { Err(value) }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ending the session ends the browser; a test that failed may have lost it already.
        let path = format!("/session/{}", self.session);
        let _ = Call::new(self.address, "DELETE", &path).try_send();
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Starts chromedriver and returns it with its port, or what it has printed if it ends.
fn start_driver(log: &Path) -> Result<(Child, u16), String> {
    let mut driver = Command::new("chromedriver")
        .arg("--port=0")
        .stdin(Stdio::null())
        .stdout(File::create(log).expect("the directory can be written"))
        .stderr(Stdio::null())
        .spawn()
        .expect("chromedriver runs; tests/run installs it");
    let port = eventually("chromedriver tells its port or ends", || {
        let has_ended = driver.try_wait().expect("a child can be asked").is_some();
        let printed = fs::read_to_string(log).ok()?;
        let port = printed.split_once("successfully on port ").and_then(|(_, rest)| rest.split_once('.'));
        match port.and_then(|(port, _)| port.parse().ok()) {
            Some(port) => Some(Ok(port)),
            None => has_ended.then_some(Err(printed)),
        }
    })?;
    Ok((driver, port))
}

/// No sandbox, since tests may run as root; nothing that calls home.
fn arguments(profile: &str) -> Vec<&str> {
    let machine =
        "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --hide-scrollbars";
    let silence = "--no-first-run --disable-background-networking --disable-component-update --disable-sync";
    machine.split(' ').chain(silence.split(' ')).chain([WINDOW, profile]).collect()
}

fn by(selector: &str) -> Value {
    json!({ "using": "css selector", "value": selector })
}
