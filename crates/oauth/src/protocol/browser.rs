//! Opens a page in the browser of this desktop.

/// Opens a URL in the user's browser, without a shell. Checks the URL: http or https, no control or shell character.
pub fn open_browser(_url: &str) -> std::io::Result<()> {
    todo!()
}
