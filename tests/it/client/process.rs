//! A child process that implements the protocol on its pipes.

use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStderr, ChildStdin, Command};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::client::inbox::{Inbox, Way};
use crate::harness::{Scratch, TIMEOUT};

/// The handle of a process. Its tasks own the process and its pipes.
pub struct Process {
    pub pid: u32,
    input: Mutex<Option<mpsc::Sender<Write>>>,
    stderr: Mutex<Option<ChildStderr>>,
    status: watch::Receiver<Option<ExitStatus>>,
}

/// Bytes for the input, and the confirmation that the process took them.
type Write = (Vec<u8>, oneshot::Sender<()>);

impl Process {
    /// Starts a command. Returns its handle and its tasks; when they are aborted, the process is killed. The output
    /// goes into the inbox. The files in `scratch` live as long as the process.
    pub fn start(mut command: Command, scratch: Option<Scratch>, inbox: &Arc<Inbox>) -> (Process, [JoinHandle<()>; 3]) {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("goblin starts");
        let (pid, stderr) = (child.id().expect("the process runs"), child.stderr.take());
        let mut output = BufReader::new(child.stdout.take().expect("stdout is piped")).lines();
        let inbox = Arc::clone(inbox);
        let reader = tokio::spawn(async move {
            while let Some(line) = output.next_line().await.expect("text") {
                inbox.push(Way::Session, line);
            }
            inbox.close();
        });
        let (input, writes) = mpsc::channel(1);
        let writer = tokio::spawn(write_all(child.stdin.take().expect("stdin is piped"), writes));
        let (ended, status) = watch::channel(None);
        let owner = tokio::spawn(async move {
            let _scratch = scratch;
            ended.send_replace(Some(child.wait().await.expect("the exit status is known")));
        });
        let process = Process { pid, input: Mutex::new(Some(input)), stderr: Mutex::new(stderr), status };
        (process, [reader, writer, owner])
    }

    pub async fn write(&self, bytes: &[u8]) {
        let input = self.input.lock().expect("no test panics here").clone().expect("the input is open");
        let (confirm, confirmed) = oneshot::channel();
        input.send((bytes.to_vec(), confirm)).await.expect("goblin reads");
        confirmed.await.expect("goblin reads");
    }

    pub fn close_input(&self) {
        drop(self.input.lock().expect("no test panics here").take());
    }

    /// Waits for the end.
    pub async fn ended(&self) -> ExitStatus {
        let mut status = self.status.clone();
        let ended = status.wait_for(Option::is_some);
        let ended =
            tokio::time::timeout(TIMEOUT, ended).await.expect("the process ends").expect("the exit status is known");
        ended.expect("it has ended")
    }

    /// Returns the exit status if the process has ended.
    pub fn try_ended(&self) -> Option<ExitStatus> {
        *self.status.borrow()
    }

    /// Returns the pipe of the error output, once.
    pub fn stderr(&self) -> ChildStderr {
        self.stderr.lock().expect("no test panics here").take().expect("stderr is piped")
    }
}

async fn write_all(mut input: ChildStdin, mut writes: mpsc::Receiver<Write>) {
    while let Some((bytes, confirm)) = writes.recv().await {
        if input.write_all(&bytes).await.is_err() || input.flush().await.is_err() {
            return;
        }
        // An error means that the test no longer waits.
        let _ = confirm.send(());
    }
}
