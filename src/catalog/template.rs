pub struct Template;
impl Template {
    pub fn parse(_: &str) -> Result<Template, ()> {
        Err(())
    }
    pub fn matches(&self, _: &str) -> Option<()> {
        None
    }
    pub fn matches_lenient(&self, _: &str) -> Option<()> {
        None
    }
    pub fn literal_bytes(&self) -> usize {
        0
    }
}
