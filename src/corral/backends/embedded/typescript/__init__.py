"""The small TypeScript runtime: a `ts-node` of our own on esbuild, for machines that have Node.js and nothing newer.

`setup` installs it into the data folder, once and only when asked. The other files are what it installs: `ts-node.js`
is the command, `package.json` and `package-lock.json` pin esbuild's native binary by version and hash.
"""
