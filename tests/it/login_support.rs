//! Helpers of the login tests: a home with a server that needs a login, `goblin login`, and the state of the server.

use std::process::Stdio;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::JoinHandle;

use crate::admin_client::{bearer, get_admin};
use crate::client::Client;
use crate::harness::{Gateway, TIMEOUT, eventually, servers_only};
use crate::home::{Home, Ran};
use crate::login_browser::Browser;
use crate::login_server::{ACCOUNT, LoginServer};

/// The time after which a server must be ready again after a login.
pub const RECOVERY: Duration = Duration::from_secs(1);
/// The tools of the fixture behind the gateway.
pub const TOOLS: [&str; 2] = ["p_admin", "p_whoami"];
pub const COMMAND: &str = "goblin login p";

/// A home whose configuration has the server `p`, which needs a login.
pub struct LoginHome {
    pub home: Home,
    pub server: LoginServer,
}

impl LoginHome {
    pub async fn new() -> LoginHome {
        let server = LoginServer::start().await;
        let entry = server.entry();
        LoginHome::with(server, entry)
    }

    /// Returns a home with this entry of the server.
    pub fn with(server: LoginServer, entry: Value) -> LoginHome {
        let config = servers_only(json!({ "mcpServers": { "p": entry } }));
        LoginHome { home: Home::new(&config), server }
    }

    /// Returns a home with a login, without a running gateway.
    pub async fn logged_in() -> LoginHome {
        let home = LoginHome::new().await;
        home.log_in().await;
        home
    }

    /// Starts a gateway. A further one shares the vault of the first.
    pub async fn gateway(&self) -> Gateway {
        Gateway::of(self.home.serve(0)).await
    }

    /// Starts a gateway after a login, and returns it with a client that sees the tools.
    pub async fn ready_gateway(&self) -> (Gateway, Client) {
        self.home.gateway("p_whoami").await
    }

    /// Logs in with a browser. Returns the outcome of the command, which must succeed.
    pub async fn log_in(&self) -> Ran {
        let login = self.begin(&[]).await;
        let page = Browser::default().visit(&login.url).await;
        assert_eq!(page.status, StatusCode::OK, "{page:?}");
        let ran = login.end().await;
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran
    }

    /// Starts `goblin login` and waits for the URL.
    pub async fn begin(&self, flags: &[&str]) -> RunningLogin {
        RunningLogin::start(self.login_command(flags)).await
    }

    pub fn login_command(&self, flags: &[&str]) -> Command {
        let arguments = [&["login", "p", "--no-browser", "--config", self.home.config()], flags].concat();
        self.home.goblin(&arguments)
    }

    /// Runs `goblin login`, which must fail before it prints a URL.
    pub async fn refused_login(&self, flags: &[&str]) -> Ran {
        self.home.run(&[&["login", "p", "--no-browser", "--config", self.home.config()], flags].concat()).await
    }

    pub async fn log_out(&self) -> Ran {
        self.home.run(&["logout", "p", "--config", self.home.config()]).await
    }

    /// Returns the bytes of every file below the home.
    pub fn all_files(&self) -> Vec<(String, Vec<u8>)> {
        let files = files_below(self.home.scratch.path()).into_iter();
        files.map(|path| (path.clone(), std::fs::read(&path).unwrap_or_default())).collect()
    }
}

/// Returns the paths of all regular files below a directory.
pub fn files_below(directory: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => open.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path().display().to_string()),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// A `goblin login` that has printed the URL of the login page.
pub struct RunningLogin {
    pub url: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
    stderr: JoinHandle<String>,
}

impl RunningLogin {
    pub async fn start(mut command: Command) -> RunningLogin {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("goblin starts");
        let mut stdout = BufReader::new(child.stdout.take().expect("the stream is piped")).lines();
        let mut errors = child.stderr.take().expect("the stream is piped");
        let stderr = tokio::spawn(async move {
            let mut text = String::new();
            errors.read_to_string(&mut text).await.expect("text");
            text
        });
        let line = tokio::time::timeout(TIMEOUT, stdout.next_line()).await.expect("a line in time").expect("text");
        let stdin = child.stdin.take();
        match line {
            Some(url) => RunningLogin { url, child, stdin, stdout, stderr },
            None => panic!("goblin login printed no URL: {}", stderr.await.expect("no panic")),
        }
    }

    /// Types a line into the command.
    pub async fn paste(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("the stream is piped");
        stdin.write_all(format!("{line}\n").as_bytes()).await.expect("the command reads");
    }

    /// Waits for the end of the command.
    pub async fn end(mut self) -> Ran {
        let status =
            tokio::time::timeout(TIMEOUT, self.child.wait()).await.expect("the process ends").expect("a status");
        let mut stdout = String::new();
        while let Ok(Some(line)) = self.stdout.next_line().await {
            stdout.push_str(&format!("{line}\n"));
        }
        let stderr = self.stderr.await.expect("no panic");
        Ran { code: status.code(), stdout: stdout.into_bytes(), stderr }
    }

    pub fn pid(&self) -> u32 {
        self.child.id().expect("the process runs")
    }

    /// Reports whether the command still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a status").is_none()
    }
}

/// Returns the status of the server `p`.
pub async fn status(gateway: &Gateway) -> Value {
    get_admin(&Client::new(gateway.address), "/api/servers/p").await.json()
}

pub async fn state(gateway: &Gateway) -> String {
    status(gateway).await["state"].as_str().expect("a state").to_owned()
}

/// Waits until the server `p` has this state. Returns its status.
pub async fn await_state(gateway: &Gateway, wanted: &str) -> Value {
    eventually(&format!("the server is {wanted}"), || async {
        let status = status(gateway).await;
        (status["state"] == wanted).then_some(status)
    })
    .await
}

/// Waits until the server `p` is ready, and asserts that this takes at most [`RECOVERY`].
pub async fn recovers_in_time(gateway: &Gateway) {
    let begun = Instant::now();
    await_state(gateway, "ready").await;
    assert!(begun.elapsed() <= RECOVERY, "the server was ready only after {:?}", begun.elapsed());
}

/// Asserts that a call fails with 1407 and names the command. Returns its message.
pub async fn needs_login(client: &Client, tool: &str) -> String {
    let answer = client.try_call(tool, json!({})).await;
    assert_login_needed(&answer)
}

pub fn assert_login_needed(answer: &Value) -> String {
    let data = crate::support::assert_error(answer, 1407, "LOGIN_NEEDED");
    assert_eq!((&data["serverId"], &data["command"]), (&json!("p"), &json!(COMMAND)), "{answer}");
    answer["error"]["message"].as_str().expect("a message").to_owned()
}

/// Calls `whoami` and returns the scopes of the token. The token must be that of the account.
pub async fn scopes(client: &Client) -> Vec<String> {
    scopes_of(&client.try_call("p_whoami", json!({})).await)
}

/// Returns the scopes in the response of `whoami`.
pub fn scopes_of(answer: &Value) -> Vec<String> {
    let holder: Value = serde_json::from_str(&crate::client::text_of(answer)).expect("JSON");
    assert_eq!(holder["subject"], ACCOUNT, "{answer}");
    let mut scopes: Vec<String> = holder["scopes"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|scope| scope.as_str().expect("text").to_owned())
        .collect();
    scopes.sort();
    scopes
}

/// POSTs to a route of the admin API.
pub async fn post_admin(gateway: &Gateway, path: &str, body: &Value) -> (StatusCode, Value) {
    let client = Client::new(gateway.address);
    let bearer = bearer(client.address).await;
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let answer = client.send(Method::POST, path, &headers, body.to_string()).await;
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_default())
}
