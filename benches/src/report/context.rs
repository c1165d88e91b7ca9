//! The tables of the context cost of tool lists.
//!
//! [`Context`] has the token counts, and `context::price` computes the break-even. The functions here only format.

use super::{line, median};
use crate::context::{Context, Setting, Size, Step, Terms, Use, Walk, break_even, requests};

const USES: [usize; 3] = [1, 3, 10];
/// The tokens of a tool's result.
const RESULT: f64 = 500.0;
/// The price of a repeated token: free, a tenth as with a prompt cache, and the full price. The conversation starts
/// short like a chat, or long like an agent with many instructions.
const TERMS: [(&str, Terms); 5] = [
    ("room alone", terms(0.0, 2_000.0)),
    ("cached, 2,000 before", terms(0.1, 2_000.0)),
    ("cached, 20,000 before", terms(0.1, 20_000.0)),
    ("not cached, 2,000 before", terms(1.0, 2_000.0)),
    ("not cached, 20,000 before", terms(1.0, 20_000.0)),
];

const fn terms(again: f64, begin: f64) -> Terms {
    Terms { again, begin, result: RESULT }
}

/// The part of a result that a client shows.
type Shown = fn(&Step) -> usize;
const SHOWN: [(&str, Shown); 2] = [("text", |step| step.text), ("structured", |step| step.structured)];

pub fn tables(context: &Context) -> String {
    let mut text = lists_table(context);
    text += &own_table(context);
    text += &walks_table(context);
    text += &break_even_table(context);
    text
}

fn lists_table(context: &Context) -> String {
    let mut text =
        "\n| tools | exposure | listed | tokens | each | name, description, input schema only | each |\n".to_owned();
    text += "|--:|---|--:|--:|--:|--:|--:|\n";
    let mut row = |tools: usize, title: &str, entries: usize, Size { whole, bare }: Size| {
        let (each, bare_each) = (whole / entries.max(1), bare / entries.max(1));
        line(&mut text, format_args!("| {tools} | {title} | {entries} | {whole} | {each} | {bare} | {bare_each} |"));
    };
    for (tools, size) in &context.direct {
        row(*tools, "the servers, no gateway", *tools, *size);
        for listed in context.lists.iter().filter(|listed| listed.tools == *tools) {
            row(*tools, listed.setting.title(), listed.entries, listed.size);
        }
    }
    text
}

fn own_table(context: &Context) -> String {
    let mut text = "\n| meta tool | tokens | name, description, input schema only |\n|---|--:|--:|\n".to_owned();
    for (name, size) in &context.own {
        line(&mut text, format_args!("| `{name}` | {} | {} |", size.whole, size.bare));
    }
    if let Some(listed) = context.list(Setting::Search, context.max_tools()) {
        line(&mut text, format_args!("| all, as a list | {} | {} |", context.own_list.whole, context.own_list.bare));
        line(&mut text, format_args!("| those that `search` lists | {} | {} |", listed.size.whole, listed.size.bare));
        line(&mut text, format_args!("| what `search` adds to the instructions | {0} | {0} |", listed.instructions));
    }
    text
}

fn walks_table(context: &Context) -> String {
    let walks = &context.walks;
    let found = walks.iter().filter(|walk| walk.found).count();
    let (count, tools) = (walks.len(), context.max_tools());
    let mut text = format!("\n{count} queries among {tools} tools; {found} found a right tool with one search.\n");
    text += "\n| one use of a tool, in tokens | median | mean | worst |\n|---|--:|--:|--:|\n";
    let mut row = |title: &str, of: &dyn Fn(&Walk) -> usize| {
        let values = walks.iter().map(of);
        let (middle, mean) = (median(values.clone().map(|value| value as f64).collect()), mean(walks, of));
        let worst = values.max().unwrap_or(0);
        line(&mut text, format_args!("| {title} | {middle:.0} | {mean:.0} | {worst} |"));
    };
    row("`search_tools`, request", &|walk| walk.search.request_tokens);
    for (name, shown) in SHOWN {
        row(&format!("`search_tools`, answer, {name}"), &|walk| shown(&walk.search));
    }
    row("`describe_tool`, request", &|walk| walk.describe.request_tokens);
    for (name, shown) in SHOWN {
        row(&format!("`describe_tool`, answer, {name}"), &|walk| shown(&walk.describe));
    }
    row("`call_tool`, request, without the tool's own arguments", &|walk| walk.call);
    row("a call by the tool's own name, likewise", &|walk| walk.direct);
    for (name, shown) in SHOWN {
        row(&format!("all three, {name}"), &|walk| {
            let steps =
                [walk.search, walk.describe].iter().map(|step| step.request_tokens + shown(step)).sum::<usize>();
            steps + walk.call
        });
    }
    text
}

/// Returns the table of the number of tools from which a search is cheaper than a list without meta tools.
fn break_even_table(context: &Context) -> String {
    let tools = context.max_tools();
    let (Some(plain), Some(search)) = (context.list(Setting::Plain, tools), context.list(Setting::Search, tools))
    else {
        return String::new();
    };
    let each = plain.size.bare as f64 / plain.entries as f64;
    let own = (search.size.bare + search.instructions) as f64;
    let mut text = format!("\nBreak-even: a tool in the list has {each:.0} tokens, what it answers {RESULT:.0}.\n");
    text += "\n| uses | requests, `all` | requests, `search` |";
    text.extend(TERMS.map(|(title, _)| format!(" {title} |")));
    text += "\n|--:|--:|--:|";
    text.extend(TERMS.map(|_| "--:|"));
    text.push('\n');
    for uses in USES {
        let cells = TERMS.map(|(_, terms)| {
            let [text, structured] =
                SHOWN.map(|(_, shown)| break_even(terms, uses, typical(&context.walks, shown), own, each));
            format!(" {text} / {structured} |")
        });
        let (all, searching) = requests(uses);
        line(&mut text, format_args!("| {uses} | {all} | {searching} |{}", cells.concat()));
    }
    text
}

/// Returns the use of a tool with the mean of each part. The price of a list is a mean over its tools too.
fn typical(walks: &[Walk], shown: Shown) -> Use {
    Use {
        search: mean(walks, &|walk| walk.search.request_tokens + shown(&walk.search)),
        describe: mean(walks, &|walk| walk.describe.request_tokens + shown(&walk.describe)),
        call: mean(walks, &|walk| walk.call),
        direct: mean(walks, &|walk| walk.direct),
    }
}

fn mean(walks: &[Walk], of: &dyn Fn(&Walk) -> usize) -> f64 {
    walks.iter().map(of).sum::<usize>() as f64 / walks.len().max(1) as f64
}
