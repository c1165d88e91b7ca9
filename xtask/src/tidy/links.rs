//! Finds the links and headings of a Markdown document. This is not a full Markdown parser; it covers the syntax that
//! tidy needs.

/// A link to a file or heading of the repository. Lines count from 1.
#[derive(Debug, PartialEq, Eq)]
pub struct Link {
    pub line: usize,
    pub target: String,
}

/// Returns all links into the repository. Links to other sites are not checked.
pub fn find(text: &str) -> Vec<Link> {
    let mut links = Vec::new();
    for (line, prose) in prose_lines(text) {
        for target in targets(&without_code(prose)) {
            if is_local(&target) {
                links.push(Link { line, target });
            }
        }
    }
    links
}

/// Returns every valid target of `#...` in this document: its headings as GitHub spells them, and explicit anchors.
pub fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut seen: Vec<String> = Vec::new();
    for (_, line) in prose_lines(text) {
        anchors.extend(between(line, "id=\"", '"'));
        anchors.extend(between(line, "name=\"", '"'));
        let heading = line.trim_start_matches('#');
        if heading.len() < line.len() && heading.starts_with(' ') {
            let slug = slug(heading);
            let earlier = seen.iter().filter(|other| **other == slug).count();
            anchors.push(if earlier == 0 { slug.clone() } else { format!("{slug}-{earlier}") });
            seen.push(slug);
        }
    }
    anchors
}

/// Yields the lines outside fenced code with their numbers.
fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fence: Option<&str> = None;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let start = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
        match (fence, mark) {
            (None, Some(mark)) => fence = Some(mark),
            (Some(open), Some(mark)) if open == mark => fence = None,
            (None, None) => return Some((index + 1, line)),
            (Some(_), _) => {}
        }
        None
    })
}

fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

fn targets(line: &str) -> Vec<String> {
    let mut targets: Vec<String> = between(line, "](", ')');
    targets.extend(between(line, "href=\"", '"'));
    targets.extend(between(line, "src=\"", '"'));
    if line.starts_with('[')
        && let Some((_, definition)) = line.split_once("]: ")
    {
        targets.push(definition.to_string());
    }
    // Reduces `[text](target "title")` and `[text](<target>)` to the target.
    let bare = |target: &String| target.split_whitespace().next().unwrap_or("").trim_matches(['<', '>']).to_string();
    targets.iter().map(bare).filter(|target| !target.is_empty()).collect()
}

fn between(line: &str, open: &str, close: char) -> Vec<String> {
    let after = line.split(open).skip(1);
    after.filter_map(|rest| rest.split_once(close)).map(|(inside, _)| inside.to_string()).collect()
}

fn is_local(target: &str) -> bool {
    let has_scheme = target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.chars().all(|character| character.is_ascii_alphanumeric() || "+.-".contains(character))
    });
    !has_scheme && !target.starts_with("//")
}

fn slug(heading: &str) -> String {
    let kept = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(usize, &str)]) {
        let found = find(text);
        let found: Vec<(usize, &str)> = found.iter().map(|link| (link.line, link.target.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn local_links_are_found() {
        check("see [a](docs/a.md) and\n[b](<b.md> \"title\")", &[(1, "docs/a.md"), (2, "b.md")]);
        check("![i](i.svg) <img src=\"j.svg\"> <a href=\"#top\">", &[(1, "i.svg"), (1, "#top"), (1, "j.svg")]);
        check("[a]: docs/a.md#part", &[(1, "docs/a.md#part")]);
    }

    #[test]
    fn external_links_and_code_are_ignored() {
        check("[a](https://example.com) [b](mailto:a@example.com) [c](//example.com)", &[]);
        check("`[a](b.md)` and `x[0](y)`", &[]);
        check("```md\n[a](b.md)\n```\n[c](d.md)", &[(4, "d.md")]);
    }

    #[test]
    fn anchors_match_those_of_github() {
        let text =
            "# Goblin: a gateway\n## `serve` & stdio\n## Notes\n## Notes\n```\n# no\n```\n<a id=\"here\"></a>\n#no";
        assert_eq!(anchors(text), ["goblin-a-gateway", "serve--stdio", "notes", "notes-1", "here"]);
    }
}
