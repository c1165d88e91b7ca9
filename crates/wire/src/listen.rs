//! The filter of `subscriptions/listen`.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::json::{self, Span, quote};

/// The notifications that a stream subscribes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenFilter {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
    pub uris: BTreeSet<Arc<str>>,
    /// The ids of tasks.
    pub tasks: BTreeSet<Arc<str>>,
}

impl ListenFilter {
    /// Reports whether the filter has a list.
    pub fn has_lists(&self) -> bool {
        self.tools || self.prompts || self.resources
    }

    /// Reads the `notifications` member of a request or an acknowledgement. Absent members mean no subscription.
    pub fn read(text: &str, span: Span) -> ListenFilter {
        let is_true = |key| json::member(text, span, key).is_some_and(|value| value.get(text) == "true");
        let strings = |key| {
            let values = json::member(text, span, key).into_iter().flat_map(|values| json::elements(text, values));
            values.filter_map(|at| json::string(text, at)).map(|value| Arc::from(&*value)).collect()
        };
        ListenFilter {
            tools: is_true("toolsListChanged"),
            prompts: is_true("promptsListChanged"),
            resources: is_true("resourcesListChanged"),
            uris: strings("resourceSubscriptions"),
            tasks: strings("taskIds"),
        }
    }

    pub fn to_json(&self) -> String {
        let flags = [
            (self.tools, r#""toolsListChanged":true"#),
            (self.prompts, r#""promptsListChanged":true"#),
            (self.resources, r#""resourcesListChanged":true"#),
        ];
        let mut members: Vec<_> =
            flags.iter().filter(|(is_set, _)| *is_set).map(|(_, member)| (*member).to_owned()).collect();
        for (key, values) in [("resourceSubscriptions", &self.uris), ("taskIds", &self.tasks)] {
            if !values.is_empty() {
                let values: Vec<_> = values.iter().map(|value| quote(value)).collect();
                members.push(format!(r#""{key}":[{}]"#, values.join(",")));
            }
        }
        format!("{{{}}}", members.join(","))
    }

    pub fn is_empty(&self) -> bool {
        *self == ListenFilter::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn srv2_a_filter_is_read_and_written_in_normal_form() {
        let check = |text: &str, expected: &str| {
            assert_eq!(ListenFilter::read(text, json::whole(text)).to_json(), expected, "{text}");
        };
        check("{}", "{}");
        check("[]", "{}");
        check(r#"{"toolsListChanged":false,"promptsListChanged":true,"x":1}"#, r#"{"promptsListChanged":true}"#);
        check(
            r#"{"resourceSubscriptions":["b:1","a:\u0031",7],"resourcesListChanged":true}"#,
            r#"{"resourcesListChanged":true,"resourceSubscriptions":["a:1","b:1"]}"#,
        );
        check(r#"{"taskIds":["b","a"]}"#, r#"{"taskIds":["a","b"]}"#);
    }
}
