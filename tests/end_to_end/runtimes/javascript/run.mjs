// Runs models of a folder with onnxruntime-node or onnxruntime-web: node run.mjs PACKAGE FOLDER.
// FOLDER/models.json: for each model its file and its inputs, {name: {type, dims, data: base64}}. Prints its outputs alike.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [name, folder] = process.argv.slice(2);
const require = createRequire(join(process.env.RNNQC_NODE_MODULES, "x.js"));
// In Node the package for browsers has its WebAssembly beside it.
const ort = await import(pathToFileURL(require.resolve(name)));
const { InferenceSession, Tensor, env } = ort.default ?? ort;
if (name === "onnxruntime-web") env.wasm.numThreads = 1;

const ARRAYS = { float32: Float32Array, int32: Int32Array, int64: BigInt64Array, uint8: Uint8Array, bool: Uint8Array };
const cases = JSON.parse(readFileSync(join(folder, "models.json")));
const results = [];
for (const { file, feeds } of cases) {
  const session = await InferenceSession.create(new Uint8Array(readFileSync(join(folder, file))), {
    executionProviders: [name === "onnxruntime-web" ? "wasm" : "cpu"], logSeverityLevel: 3, intraOpNumThreads: 1,
  });
  const given = {};
  for (const [key, { type, dims, data }] of Object.entries(feeds)) {
    const bytes = new Uint8Array(Buffer.from(data, "base64")); // a copy, so that it is aligned
    given[key] = new Tensor(type, new ARRAYS[type](bytes.buffer), dims);
  }
  const outputs = {};
  for (const [key, value] of Object.entries(await session.run(given))) {
    const bytes = Buffer.from(value.data.buffer, value.data.byteOffset, value.data.byteLength);
    outputs[key] = { type: value.type, dims: value.dims, data: bytes.toString("base64") };
  }
  results.push(outputs);
}
console.log(JSON.stringify(results));
process.exit(0); // the WebAssembly keeps Node alive
