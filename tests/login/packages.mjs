// Loads installed packages. They are in target/tools, where `cargo xtask tools` installs them, and not beside this file.

import { createRequire } from "node:module";

export const require = createRequire(new URL("../../target/tools/package.json", import.meta.url));
