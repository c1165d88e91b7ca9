//! `goblin secret`: sets, lists and removes secrets of the vault.
//!
//! A value comes from stdin only, because other users see the arguments of a process. No command prints a value.

use std::io::{BufRead, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;
use goblin_client::environment::environment;
use goblin_client::runtime::RecordDirectories;
use goblin_config::secret::{Secret, is_valid_name};
use goblin_config::{file, mask};
use goblin_telemetry::clean;
use goblin_vault::{EntryKind, EntryName, MAX_VALUE_BYTES, Vault, VaultError};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::signal::unix::{SignalKind, signal};

use crate::catalog::complete;
use crate::cli::CliError;
use crate::style::{print, print_json};
use crate::vault;

/// The length from which a terminal may have cut a line.
const MAX_TYPED_LINE: usize = 4095;

pub(crate) const LONG_ABOUT: &str = "\
Set, list and remove secrets in the encrypted vault.

A configuration uses a secret as ${secret:NAME}. The vault is in the goblin directory of your state directory \
($XDG_STATE_HOME or ~/.local/state). No command prints the value of a secret.";

#[derive(Debug, Args)]
pub(crate) struct Secrets {
    #[command(subcommand)]
    command: SecretCommand,
}

#[derive(Debug, Subcommand)]
enum SecretCommand {
    /// Set a secret to the text on stdin, or prompt for it
    #[command(
        after_help = "Without a pipe, the command prompts and shows nothing of the value: goblin secret set NAME\n\
                            A file can have several lines: goblin secret set NAME < FILE"
    )]
    Set(Set),
    /// List the names of all secrets
    List(List),
    /// Remove a secret
    Remove(Remove),
}

#[derive(Debug, Args)]
struct Set {
    /// The name: letters, digits, "_", "." and "-"
    #[arg(value_parser = secret_name, add = ArgValueCompleter::new(complete::secrets))]
    name: String,
}

#[derive(Debug, Args)]
struct List {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct Remove {
    /// The name of the secret
    #[arg(value_parser = secret_name, add = ArgValueCompleter::new(complete::secrets))]
    name: String,
}

pub(crate) async fn run(arguments: Secrets) -> Result<ExitCode> {
    let vault = vault::of_user()
        .ok_or_else(|| CliError::Usage("there is no place for the vault (set XDG_STATE_HOME or HOME)".to_owned()))?;
    match arguments.command {
        SecretCommand::Set(Set { name }) => {
            let value = value_of(read_value(&name).await?).map_err(CliError::Usage)?;
            print(&set(&vault, &name, value)?)?;
        }
        SecretCommand::List(List { json }) => list(&vault, json)?,
        SecretCommand::Remove(Remove { name }) => print(&remove(&vault, &name)?)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn secret_name(text: &str) -> Result<String, String> {
    match is_valid_name(text) {
        true => Ok(text.to_owned()),
        false => Err("use 1 to 128 letters, digits, \"_\", \".\" and \"-\"".to_owned()),
    }
}

fn set(vault: &Vault, name: &str, value: Secret) -> Result<String, CliError> {
    let entry = EntryName::new(name).map_err(failed)?;
    let is_new = vault.version(EntryKind::Secret, &entry) == Default::default();
    vault.write(EntryKind::Secret, &entry, &value).map_err(failed)?;
    let (verb, place) = (if is_new { "set" } else { "replaced" }, vault.directory().display());
    Ok(format!("{verb} {name} in {place}\nuse it in the configuration as ${{secret:{name}}}\n{}", users(name)))
}

fn list(vault: &Vault, json: bool) -> Result<(), CliError> {
    let names = vault.names(EntryKind::Secret).map_err(failed)?;
    let names: Vec<String> = names.iter().map(|name| clean(name.as_str())).collect();
    if json {
        let document = serde_json::json!({ "vault": vault.directory(), "secrets": names });
        print_json(&document.to_string())?;
    } else if names.is_empty() {
        print(&format!("no secrets in {} (goblin secret set NAME)\n", vault.directory().display()))?;
    } else {
        print(&names.iter().map(|name| format!("{name}\n")).collect::<String>())?;
    }
    Ok(())
}

fn remove(vault: &Vault, name: &str) -> Result<String, CliError> {
    let place = vault.directory().display();
    let entry = EntryName::new(name).map_err(failed)?;
    match vault.remove(EntryKind::Secret, &entry).map_err(failed)? {
        true => Ok(format!("removed {name} from {place}\n{}", users(name))),
        false => Err(CliError::Refused(format!("there is no secret {name} in {place} (goblin secret list)"))),
    }
}

fn failed(error: VaultError) -> CliError {
    CliError::Refused(error.to_string())
}

/// Returns a line for each running gateway with a configuration that uses the secret.
fn users(name: &str) -> String {
    let reference = format!("${{secret:{name}}}");
    let uses = |config: &Path| file::read(config).is_ok_and(|(text, _)| text.contains(&reference));
    let running = RecordDirectories::of(&environment).running();
    let users = running.iter().filter(|record| record.identity.config.as_deref().is_some_and(uses));
    users.map(|record| format!("the gateway at {} uses it and reloads now\n", mask::url(&record.url))).collect()
}

/// Checks the bytes of stdin. Removes one line end, which editors and `echo` add.
fn value_of(bytes: Vec<u8>) -> Result<Secret, String> {
    let text = String::from_utf8(bytes).map_err(|_| "the value is not UTF-8 (encode it, for example as base64)")?;
    let text = text.strip_suffix('\n').map_or(text.as_str(), |text| text.strip_suffix('\r').unwrap_or(text));
    match text {
        "" => Err("the value is empty".to_owned()),
        text if text.contains('\0') => Err("the value has a NUL character".to_owned()),
        text if text.len() > MAX_VALUE_BYTES => Err(format!("the value has more than {MAX_VALUE_BYTES} bytes")),
        text => Ok(Secret::new(text)),
    }
}

/// Reads stdin to its end, or one hidden line of a terminal.
async fn read_value(name: &str) -> Result<Vec<u8>, CliError> {
    if !std::io::stdin().is_terminal() {
        let read = || {
            let mut bytes = Vec::new();
            // The line end may have two bytes. One more byte shows that the value is too large.
            std::io::stdin().take(MAX_VALUE_BYTES as u64 + 3).read_to_end(&mut bytes).map(|_| bytes)
        };
        return tokio::task::spawn_blocking(read).await.map_err(std::io::Error::from)?.map_err(CliError::from);
    }
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let _hidden = HiddenInput::begin()?;
    write!(std::io::stderr(), "value of {name} (hidden): ")?;
    let read = || {
        let mut line = Vec::new();
        std::io::stdin().lock().take(MAX_VALUE_BYTES as u64 + 3).read_until(b'\n', &mut line).map(|_| line)
    };
    let line = tokio::select! {
        line = tokio::task::spawn_blocking(read) => line.map_err(std::io::Error::from)??,
        _ = interrupt.recv() => return Err(CliError::Interrupted),
        _ = terminate.recv() => return Err(CliError::Interrupted),
    };
    match line.len() < MAX_TYPED_LINE {
        true => Ok(line),
        false => Err(CliError::Usage(format!("the value is too long for a terminal: goblin secret set {name} < FILE"))),
    }
}

/// A terminal that does not show the input. Dropping the value restores the terminal.
struct HiddenInput(Termios);

impl HiddenInput {
    fn begin() -> std::io::Result<HiddenInput> {
        let before = tcgetattr(std::io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO | LocalModes::ECHONL);
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(HiddenInput(before))
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // Nothing else can be done for a terminal that was closed.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0);
        let _ = writeln!(std::io::stderr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oauth7_a_value_is_text_without_its_last_line_end() {
        for (bytes, expected) in [
            (&b"s3cret"[..], "s3cret"),
            (b"s3cret\n", "s3cret"),
            (b"s3cret\r\n", "s3cret"),
            (b"one\ntwo\n\n", "one\ntwo\n"),
            (b" s ", " s "),
        ] {
            assert_eq!(value_of(bytes.to_vec()).unwrap().expose(), expected);
        }
        let largest = "v".repeat(MAX_VALUE_BYTES);
        assert!(value_of(format!("{largest}\r\n").into_bytes()).is_ok());
        for (bytes, expected) in [
            (vec![], "the value is empty"),
            (b"\r\n".to_vec(), "the value is empty"),
            (b"a\0b".to_vec(), "the value has a NUL character"),
            (vec![0xff], "the value is not UTF-8 (encode it, for example as base64)"),
            (format!("{largest}v").into_bytes(), "the value has more than 65536 bytes"),
        ] {
            assert_eq!(value_of(bytes).unwrap_err(), expected);
        }
    }
}
