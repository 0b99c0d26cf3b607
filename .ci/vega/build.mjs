// Bundles entry.js into static/vega/vega.js, without the parts of Vega and D3 that our charts do not use: `make vega`.
// Removed parts are undefined. A chart that needs one is not drawn, and tests/browser fails.
import { existsSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { brotliCompressSync } from "node:zlib";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const MODULES = join(HERE, "node_modules");
const TARGET = join(HERE, "../../static/vega");

// Packages and the exports that we keep.
const PARTS = {
  "d3-color": [],
  "d3-ease": [],
  "d3-geo": [],
  // Ranges of our scales are numbers or discrete colours, without interpolation.
  "d3-interpolate": ["interpolateNumber as interpolate", "interpolateNumber", "interpolateRound"],
  "d3-scale": ["scaleImplicit", "scaleLinear", "scaleLog", "scaleOrdinal", "scaleUtc", "tickFormat"],
  "d3-scale-chromatic": [],
  "d3-shape": ["arc", "area", "curveLinear", "line", "symbol"],
  "vega-loader": [],
  "vega-statistics": [],
};
// Vega loads and links nothing: pages contain their data, and charts.js follows links.
const LOADER = "export const read = (data) => data; export const loader = () => ({ sanitize: async () => ({}) });";
// Modules of Vega's packages that our charts do not need.
const ABSENT = [
  "functions/src/functions/(geo|lasso|luminance|pinch|scale-gradient|shape|tree)",
  "parser/src/parsers/(legend|projection|title)",
  "scale/src/(palettes|scales/scaleBinOrdinal)",
  "scenegraph/src/(Hybrid(Handler|Renderer)|SVG(Handler|Renderer)|marks/(arc|image|shape|trail))",
  "view/src/bind",
  "view-transforms/src/layout/(grid|legend|title)",
];
// Packages that the d3-delaunay build already contains.
const CONTAINED = ["delaunator", "robust-predicates"];

async function undefinedExports(address, except = []) {
  const rest = Object.keys(await import(address)).filter((name) => !except.includes(name));
  return rest.map((name) => (name === "default" ? "export default undefined;" : `export const ${name} = undefined;`)).join("");
}

// Use the sources of Vega's packages: each of their builds is a single module, from which nothing can be removed.
function entryOf(name) {
  const sources = ["index.browser.js", "index.js"].map((path) => join(MODULES, name, path));
  return sources.find(existsSync) ?? fileURLToPath(import.meta.resolve(name));
}

const parts = {
  name: "parts",
  setup({ onResolve, onLoad }) {
    // Resolve from MODULES: one copy of each package, regardless of the versions that others require.
    onResolve({ filter: /^(vega|d3)-[a-z-]+$/ }, ({ path }) => (
      path in PARTS ? { path, namespace: "part" } : { path: entryOf(path), sideEffects: path === "vega-functions" }
    ));
    onResolve({ filter: /^[.]/ }, ({ path, importer, resolveDir }) => (
      /\/vega-(?!functions)[a-z-]+\//.test(importer) ? { path: join(resolveDir, path), sideEffects: false } : null
    ));
    onLoad({ filter: /./, namespace: "part" }, async ({ path }) => {
      const names = PARTS[path].map((name) => name.split(" ").at(-1));
      const rest = await undefinedExports(path, path === "vega-loader" ? ["loader", "read"] : names);
      const own = path === "vega-loader" ? LOADER : `export { ${PARTS[path]} } from ${JSON.stringify(entryOf(path))};`;
      return { contents: (names.length || path === "vega-loader" ? own : "") + rest, resolveDir: HERE };
    });
    onLoad({ filter: new RegExp(`/vega-(${ABSENT.join("|")})[.]js$`) }, async ({ path }) => (
      { contents: await undefinedExports(pathToFileURL(path)) }
    ));
    // Replace two tables of 10 kB by a Unicode property.
    onLoad({ filter: /\/vega-expression\/src\/parser[.]js$/ }, ({ path }) => ({
      contents: readFileSync(path, "utf8")
        .replace(/NonAsciiIdentifierStart = new RegExp\(.*\)/, "NonAsciiIdentifierStart = /\\p{ID_Start}/u")
        .replace(/NonAsciiIdentifierPart = new RegExp\(.*\)/, "NonAsciiIdentifierPart = /\\p{ID_Continue}/u"),
    }));
  },
};

const { metafile, outputFiles: [script] } = await build({
  entryPoints: [join(HERE, "entry.js")],
  absWorkingDir: HERE,
  write: false,
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  metafile: true,
  plugins: [parts],
});

// List every package in the script, and each licence text once.
function licenceOf(name) {
  const file = readdirSync(join(MODULES, name)).find((path) => /licen[cs]e/i.test(path));
  // vega-interpreter has no licence file; all packages of Vega are from one repository.
  return file ? readFileSync(join(MODULES, name, file), "utf8").trim() : licenceOf("vega-util");
}

const [{ inputs }] = Object.values(metafile.outputs);
const names = Object.keys(inputs).filter((path) => inputs[path].bytesInOutput).map((path) => path.match(/node_modules\/([^/]+)/)?.[1]);
const texts = new Map();
for (const name of [...new Set([...names.filter(Boolean), ...CONTAINED])].sort()) {
  const { version, license } = JSON.parse(readFileSync(join(MODULES, name, "package.json")));
  texts.set(licenceOf(name), [...(texts.get(licenceOf(name)) ?? []), `${name} ${version} (${license})`]);
}
const notice = [...texts].map(([text, packages]) => `${packages.join("\n")}\n\n${text}\n`).join(`\n${"=".repeat(80)}\n\n`);
const introduction = "vega.js contains parts of these packages. .ci/vega/build.mjs writes it and this file: make vega\n";

writeFileSync(join(TARGET, "vega.js"), script.contents);
writeFileSync(join(TARGET, "vega.js.br"), brotliCompressSync(script.contents));
writeFileSync(join(TARGET, "NOTICE"), `${introduction}\n${"=".repeat(80)}\n\n${notice}`);
