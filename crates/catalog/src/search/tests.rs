use proptest::prelude::*;

use super::*;

fn document<'a>(server: &'a str, native: &'a str, name: &'a str, description: &'a str) -> Document<'a> {
    Document { name: name.into(), native, description: description.into(), server, ..Document::default() }
}

/// A small sample of typical tools.
fn catalog() -> Vec<Document<'static>> {
    vec![
        document("github", "create_issue", "github_create_issue", "Create a new issue in a GitHub repository."),
        document(
            "github",
            "list_issues",
            "github_list_issues",
            "List issues of a repository. Filter by state, labels.",
        ),
        document("github", "create_pull_request", "github_create_pull_request", "Open a pull request."),
        document("files", "read_file", "files_read_file", "Read the complete contents of a file from the file system."),
        document("files", "delete_file", "files_delete_file", "Remove one file for good."),
        document("files", "list_directory", "files_list_directory", "What is in a directory."),
        document("time", "convert_time", "time_convert_time", "Convert a time between timezones."),
        document("shop", "searchProducts", "shop_searchProducts", "Look for products by price."),
    ]
}

fn names(query: &str, limit: usize) -> Vec<String> {
    let documents = catalog();
    let found = Index::build(documents.clone()).search(query, limit, |_| true);
    found.hits.iter().map(|hit| documents[hit.document].native.to_owned()).collect()
}

#[test]
fn the_best_match_is_the_first_hit() {
    let check = |query: &str, expected: &str| {
        let found = names(query, 3);
        assert_eq!(found.first().map(String::as_str), Some(expected), "{query}: {found:?}");
    };
    // Full names in any style.
    check("github_create_issue", "create_issue");
    check("createIssue", "create_issue");
    check("LIST ISSUES", "list_issues");
    check("search products", "searchProducts");
    // Other forms of the words.
    check("creating issues", "create_issue");
    check("deletion of files", "delete_file");
    check("file reading", "read_file");
    // Synonyms.
    check("remove a file", "delete_file");
    check("show me a folder", "list_directory");
    check("open a bug in the repo", "create_issue");
    // Beginnings of words.
    check("prod", "searchProducts");
    check("timez", "convert_time");
    // Typos.
    check("creat isue", "create_issue");
    check("direcotry", "list_directory");
    check("reposiotry isseus list", "list_issues");
    check("covnert", "convert_time");
    // One word for two, and two words for one.
    check("pullrequest", "create_pull_request");
    check("time zone", "convert_time");
    // A query without a verb asks to read.
    check("issues", "list_issues");
    check("file", "read_file");
    check("get rid of a file", "delete_file");
    // The server.
    check("github request", "create_pull_request");
    check("a tool to see what my shop has", "searchProducts");
}

#[test]
fn two_adjacent_words_match_one_joined_word() {
    let documents = [document("a", "list_items", "a_list_items", ""), document("a", "list_todos", "a_list_todos", "")];
    let hits = Index::build(documents).search("what is on my to-do list", 9, |_| true).hits;
    assert_eq!(hits.iter().map(|hit| hit.document).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn the_first_imperative_verb_decides_the_ranking() {
    let names = ["edit_issue", "show_issue", "merge", "count"];
    let index = Index::build(names.map(|name| document("a", name, name, "")));
    let first = |query: &str| index.search(query, 1, |document| document < 2).hits[0].document;
    assert_eq!(first("merge an issue"), 0);
    assert_eq!(first("merged issues"), 1);
    assert_eq!(first("count issues to merge"), 1);
}

#[test]
fn an_exact_name_ranks_before_all_other_matches() {
    let long = "issue ".repeat(50);
    let documents = [
        document("a", "report", "a_report", &long),
        document("a", "issue_list", "a_issue_list", ""),
        document("a", "issue", "a_issue", ""),
        document("a", "big_issue", "a_big_issue", "issue"),
    ];
    let order = |query: &str| {
        let hits = Index::build(documents.clone()).search(query, 9, |_| true).hits;
        hits.iter().map(|hit| hit.document).collect::<Vec<_>>()
    };
    assert_eq!(order("issue")[..2], [2, 1]);
    assert_eq!(order("Issue list")[0], 1);
    assert_eq!(order("a_issue")[..2], [2, 1]);
    assert_eq!(order("issuelist")[0], 1);
}

#[test]
fn an_exact_uri_ranks_first() {
    let resource = |uri| Document { name: "log".into(), uri, server: "files", ..Document::default() };
    let documents = [resource("files+file:///logs/app.log.1"), resource("files+file:///logs/app.log")];
    let hits = Index::build(documents).search("files+file:///logs/app.log", 9, |_| true).hits;
    assert_eq!(hits.iter().map(|hit| hit.document).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn an_empty_query_returns_all_documents_in_order() {
    let index = Index::build(catalog());
    for query in ["", "  ", "*", "?!"] {
        let found = index.search(query, 3, |document| document != 1);
        assert_eq!(found.hits.iter().map(|hit| hit.document).collect::<Vec<_>>(), [0, 2, 3], "{query:?}");
        assert_eq!(found.total, 7);
    }
}

#[test]
fn only_admitted_documents_are_found_and_counted() {
    let index = Index::build(catalog());
    let all = index.search("issue", 9, |_| true);
    assert_eq!(all.total, all.hits.len());
    let one = index.search("issue", 1, |_| true);
    assert_eq!((one.hits.len(), one.total, one.hits[0]), (1, all.total, all.hits[0]));
    let rest = index.search("issue", 9, |document| document != all.hits[0].document);
    assert_eq!((rest.hits[0], rest.total), (all.hits[1], all.total - 1));
    assert_eq!(index.search("issue", 9, |_| false), SearchResult::default());
    assert_eq!(index.search("issue", 0, |_| true).hits, []);
}

#[test]
fn an_unknown_word_finds_no_document() {
    let index = Index::build(catalog());
    for query in ["xylophone", "zq", "天气"] {
        assert_eq!(index.search(query, 9, |_| true), SearchResult::default(), "{query}");
    }
    assert_eq!(Index::build([]).search("issue", 9, |_| true), SearchResult::default());
    assert_eq!(Index::build([]).search("", 9, |_| true), SearchResult::default());
}

#[test]
fn equal_scores_keep_the_order_of_the_documents() {
    let documents: Vec<_> = (0..50).map(|_| document("s", "ping", "s_ping", "Answers.")).collect();
    let found = Index::build(documents).search("answer", 20, |_| true);
    assert_eq!(found.hits.iter().map(|hit| hit.document).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    assert_eq!(found.total, 50);
}

#[test]
fn two_indexes_of_the_same_documents_return_the_same_hits() {
    let (one, other) = (Index::build(catalog()), Index::build(catalog()));
    for query in ["issue", "remove file", "creat", "timezon", "list all of it"] {
        assert_eq!(one.search(query, 9, |_| true), other.search(query, 9, |_| true), "{query}");
    }
}

#[test]
fn only_the_beginning_of_a_long_text_is_searched() {
    let description = format!("early {} late", "x ".repeat(MAX_DESCRIPTION));
    let arguments = vec![("a".into(), format!("soon {} never", "y ".repeat(MAX_ARGUMENT)).into())];
    let index = Index::build([Document { arguments, ..document("s", "t", "s_t", &description) }]);
    for (query, total) in [("early", 1), ("late", 0), ("soon", 1), ("never", 0)] {
        assert_eq!(index.search(query, 9, |_| true).total, total, "{query}");
    }
    let grown = index.size() - Index::build([]).size();
    assert!(grown < 1 << 10, "{grown} bytes for one document");
    let query = format!("{} early", "zzz ".repeat(1 << 20));
    assert_eq!(index.search(&query, 9, |_| true).total, 0);
}

#[test]
fn an_unknown_name_gets_its_nearest_names() {
    let names = ["github_search", "github_search_code", "gitlab_search", "files_read", "Weather-Now"];
    let check =
        |unknown: &str, expected: &[&str]| assert_eq!(nearest(unknown, names.into_iter(), 2), expected, "{unknown}");
    check("githb_search", &["github_search", "gitlab_search"]);
    check("github-search", &["github_search", "gitlab_search"]);
    check("search", &["github_search", "gitlab_search"]);
    check("search_code", &["github_search_code"]);
    check("weather_now", &["Weather-Now"]);
    check("file_reed", &["files_read"]);
    check("quux", &[]);
    check("", &[]);
    check(&"x".repeat(100_000), &[]);
    assert_eq!(nearest("x", std::iter::empty(), 3), [""; 0]);
}

proptest! {
    #[test]
    fn any_query_returns_at_most_the_limit_and_only_admitted_documents(
        query in "(\\PC{0,12}|[a-z]{1,9}|create|isue|file|repo|_| ){0,8}", limit in 0_usize..12, mask in any::<u8>(),
    ) {
        let found = Index::build(catalog()).search(&query, limit, |document| mask & 1 << document != 0);
        prop_assert!(found.hits.len() == limit.min(found.total));
        prop_assert!(found.hits.iter().all(|hit| mask & 1 << hit.document != 0 && hit.score.is_finite()));
        prop_assert!(found.hits.is_sorted_by(|one, other| one.score >= other.score));
    }

    #[test]
    fn any_document_can_be_indexed_and_is_found_by_its_name(name in "\\PC{0,60}", text in "\\PC{0,300}") {
        let found = Index::build([document("s", &name, &name, &text)]).search(&name, 1, |_| true);
        prop_assert_eq!(found.total, 1);
        let _ = Index::build([document("s", "t", "t", &text)]).search(&text, 1, |_| true);
    }
}
