#!/usr/bin/env node
// ts-node as clients call it by name, small and quick: esbuild's native binary turns TypeScript into what Node.js runs.
// Types are erased and never checked. A file is CommonJS unless it awaits at the top level, is an .mts, or --esm is
// given. `node --require ts-node.js x.ts` works as well; that is how forked children come back here.
"use strict";

const { spawnSync } = require("child_process");
const fs = require("fs");
const Module = require("module");
const path = require("path");
const { pathToFileURL } = require("url");

const ESBUILD = path.join(__dirname, "node_modules", "@esbuild", `${process.platform}-${process.arch}`);
const EXTENSIONS = [".ts", ".tsx", ".cts", ".mts"];

const USAGE = `Usage: ts-node [options] [script.ts [arguments]]
Without a script, the program is read from standard input.

  -e, --eval CODE              run CODE
  -p, --print                  print the value of CODE
  -r, --require MODULE         load a module first
  -O, --compilerOptions JSON   compiler options, such as '{"experimentalDecorators":true}'
  -P, --project FILE           use this tsconfig.json
      --skipProject            use none
      --cwd FOLDER             look for the script in this folder
      --esm                    run the script as an ES module
  -T, --transpileOnly          always so: types are never checked
  -v, --version; -h, --help

Further options of ts-node that change nothing here are accepted.`;

const SHORT = {
  C: "compiler", D: "ignorediagnostics", H: "compilerhost", I: "ignore", O: "compileroptions", P: "project",
  T: "transpileonly", e: "eval", h: "help", p: "print", r: "require", s: "scriptmode", v: "version",
};
const WITH_VALUE = new Set([
  "compiler", "compileroptions", "cwd", "dir", "eval", "experimentalspecifierresolution", "ignore",
  "ignorediagnostics", "project", "require", "scopedir",
]);
const SWITCHES = new Set([
  "compilerhost", "cwdmode", "emit", "esm", "files", "help", "logerror", "noexperimentalreplawait", "prefertsexts",
  "pretty", "print", "scope", "scriptmode", "skipignore", "skipproject", "swc", "transpileonly", "version",
]);

const options = { require: [] };

/** Ends without a stack: the mistake is in the command line, or in the program's text. */
function fail(message) {
  fs.writeSync(2, `ts-node: ${message}\n`);
  process.exit(1);
}

/** Fills `options` and gives what follows: the script and its arguments. --compiler-options is --compilerOptions. */
function parseArguments(words) {
  while (words.length > 0 && /^-./.test(words[0])) {
    const word = words.shift();
    if (word === "--") break;
    const [, dashes, text, value] = /^(--?)([^=]*)(?:=([^]*))?$/.exec(word);
    const names = dashes === "--" ? [text.replace(/-/g, "").toLowerCase()] : [...text].map((letter) => SHORT[letter]);
    for (const name of names) {
      if (SWITCHES.has(name)) options[name] = true;
      else if (!WITH_VALUE.has(name)) fail(`unknown option ${word}; see ts-node --help`);
      else {
        const given = value === undefined ? words.shift() : value;
        if (given === undefined) fail(`option ${word} needs a value; see ts-node --help`);
        if (name === "require") options.require.push(given);
        else options[name] = given;
      }
    }
  }
  return words;
}

/** The tsconfig esbuild shall use: what the command line says, else the project's own. */
function configure() {
  if (options.project) return [`--tsconfig=${path.resolve(options.project)}`];
  if (options.compileroptions === undefined && !options.skipproject) return [];
  let compilerOptions = {};
  try {
    compilerOptions = JSON.parse(options.compileroptions || "{}");
  } catch (error) {
    fail(`--compilerOptions is not JSON: ${error.message}`);
  }
  return [`--tsconfig-raw=${JSON.stringify({ compilerOptions })}`];
}

/** Runs esbuild on a file, or on a text that has none. Gives its output; throws a SyntaxError that shows the place. */
function esbuild(file, text, flags) {
  const folder = path.dirname(file);
  const name = path.basename(file);
  const input = text === undefined ? [`./${name}`] : ["--loader=ts", `--sourcefile=${name}`];
  const done = spawnSync(
    path.join(ESBUILD, "bin", "esbuild"),
    [
      ...input, ...flags, ...configure(), "--sourcemap=inline", `--target=node${process.versions.node}`,
      `--define:import.meta.url=${JSON.stringify(pathToFileURL(file).href)}`, "--log-level=error", "--color=false",
      `--define:import.meta.filename=${JSON.stringify(file)}`, `--define:import.meta.dirname=${JSON.stringify(folder)}`,
    ],
    { cwd: folder, input: text === undefined ? "" : text, encoding: "utf8", maxBuffer: Infinity },
  );
  if (done.error) fail(`esbuild can't be started: ${done.error.message}`);
  if (done.status === 0) return done.stdout;
  let place = file;
  const report = done.stderr.trim().replace(/^ {4}(\S.*:\d+:\d+):$/gm, (_, found) => {
    place = path.resolve(folder, found);
    return `    ${place}:`;
  });
  throw Object.assign(new SyntaxError(report), { stack: `SyntaxError: ${report}\n    at ${place}` });
}

// import() becomes require(), as with the compiler's "module": "commonjs", so that it finds .ts files too.
function toCommonJs(file, text) {
  return esbuild(file, text, ["--format=cjs", "--platform=node", "--supported:dynamic-import=false"]);
}

/** The script as CommonJS, which is made ahead to see whether it can be. */
const prepared = new Map();

/** Makes require() read TypeScript, and find x.ts where an import says x.js, as the compiler does. */
function register() {
  process.setSourceMapsEnabled(true);
  for (const extension of EXTENSIONS) {
    Module._extensions[extension] = (module, file) => module._compile(prepared.get(file) || toCommonJs(file), file);
  }
  const resolve = Module._resolveFilename;
  Module._resolveFilename = function (request, ...rest) {
    const [, stem, kind] = /^(\.{0,2}\/.*)\.([cm]?)js$/.exec(request) || [];
    for (const name of stem === undefined ? [] : [request, `${stem}.${kind}ts`]) {
      try {
        return resolve.call(this, name, ...rest);
      } catch {
        continue; // the last word, and the error, are Node's own
      }
    }
    return resolve.call(this, request, ...rest);
  };
}

/** Gives the program as CommonJS, or undefined when only an ES module can be it. */
function tryCommonJs(file, text) {
  if (options.esm || file.endsWith(".mts")) return undefined;
  try {
    return toCommonJs(file, text);
  } catch (error) {
    return /Top-level await is currently not supported/.test(error.message) ? undefined : fail(error.message);
  }
}

function isWritable(folder) {
  try {
    fs.accessSync(folder, fs.constants.W_OK);
    return true;
  } catch {
    return false;
  }
}

/** Runs the program as one ES module with the files it imports. It must lie in a file, to find packages from there. */
async function runModule(file, text) {
  const folders = [path.dirname(file), process.cwd(), require("os").tmpdir()];
  const module = path.join(folders.find(isWritable) || fail("no folder to write to"), `.ts-node-${process.pid}.mjs`);
  let pending = true;
  process.on("exit", (code) => {
    if (pending && code === 0) process.exitCode = 13; // as Node.js does when nothing will ever end an await
  });
  globalThis.require = Module.createRequire(file);
  Object.assign(globalThis, { __filename: file, __dirname: path.dirname(file) });
  // Removed as soon as it runs: it may run for long, and be killed.
  globalThis[Symbol.for("ts-node.loaded")] = () => fs.rmSync(module, { force: true });
  try {
    esbuild(file, text, [
      "--bundle", "--platform=node", "--packages=external", "--format=esm", `--outfile=${module}`,
      '--banner:js=globalThis[Symbol.for("ts-node.loaded")]();',
    ]);
  } catch (error) {
    fail(error.message);
  }
  try {
    await import(pathToFileURL(module).href);
  } finally {
    pending = false;
    fs.rmSync(module, { force: true });
  }
}

/** Runs a text as `node -e` does: in the global scope, with require and the rest at hand. */
function runText(name, text) {
  const file = path.join(process.cwd(), `[${name}].ts`);
  const code = tryCommonJs(file, text);
  if (code === undefined) return runModule(file, text);
  const module = new Module(file, null);
  module.filename = file;
  module.paths = Module._nodeModulePaths(process.cwd());
  const { exports } = module;
  Object.assign(globalThis, { module, exports, require: Module.createRequire(file), __filename: file, __dirname: "." });
  const value = require("vm").runInThisContext(code, { filename: file });
  if (options.print) console.log(value);
  return undefined;
}

function runFile(script) {
  let file;
  try {
    file = Module._resolveFilename(path.resolve(options.cwd || options.dir || ".", script), null, true);
  } catch {
    fail(`there is no script ${script}`);
  }
  process.argv[1] = file;
  if (EXTENSIONS.includes(path.extname(file))) {
    const code = tryCommonJs(file);
    if (code === undefined) return runModule(file);
    prepared.set(file, code);
  }
  return Module._load(file, null, true);
}

function main() {
  const words = parseArguments(process.argv.slice(2));
  if (options.help) return console.log(USAGE);
  if (options.version) return console.log(`ts-node of Corral, esbuild ${require(`${ESBUILD}/package.json`).version}`);
  if (options.print && options.eval === undefined) options.eval = words.shift();
  process.argv = [process.argv[0], ...words];
  process.execArgv.push("--require", __filename);
  register();
  const requireFromHere = Module.createRequire(path.join(process.cwd(), "[ts-node]"));
  options.require.forEach((name) => requireFromHere(name));
  if (options.eval !== undefined) return runText("eval", options.eval);
  if (words.length > 0 && words[0] !== "-") return runFile(words[0]);
  if (process.stdin.isTTY) fail("there is no interactive mode; give a script, or -e CODE");
  return runText("stdin", fs.readFileSync(0, "utf8"));
}

if (require.main === module) main();
else register();
