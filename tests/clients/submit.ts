// Submits a run with the types of openapi-typescript: `node submit.js URL [TOKEN]`.
import createClient from "openapi-fetch";
import type { components, paths } from "./llmprof.js";

type SubmitRun = components["schemas"]["SubmitRun"];

// Valid submissions.
const model: SubmitRun = { model: "llama-tiny", repeats: 1, warmup: 0, max_new_tokens: 2 };
const part: SubmitRun = {
  model: "deepseek-ocr-tiny",
  target: "decoder.layers.3.self_attn",
  align_with: "e2e",
};
const command: SubmitRun = {
  target: { command: "tiny-generate", params: { tokens: 8 } },
  mode: "light",
};
void [part, command];

// Invalid submissions.
// @ts-expect-error a number is not a text
const repeats: SubmitRun = { model: "llama-tiny", repeats: "three" };
// @ts-expect-error a submission names a model or a command
const nothing: SubmitRun = { repeats: 3 };
// @ts-expect-error there is no such field
const unknown: SubmitRun = { model: "llama-tiny", repeat: 3 };
// @ts-expect-error a mode is a name
const mode: SubmitRun = { model: "llama-tiny", mode: 3 };
void [repeats, nothing, unknown, mode];

const [url, token] = process.argv.slice(2);
const headers = token ? { authorization: `Bearer ${token}` } : undefined;
const client = createClient<paths>({ baseUrl: url, headers });
const { data, error } = await client.POST("/runs", { body: model });
if (!data) throw new Error(JSON.stringify(error));
// A dry run has a plan in place of a run.
if (!("run_id" in data)) throw new Error(JSON.stringify(data));
const run = await client.GET("/runs/{run_id}", { params: { path: { run_id: data.run_id } } });
if (run.data?.name !== "llama-tiny") throw new Error(JSON.stringify(run.error ?? run.data));
const subject = run.data.spec.subject;
if (subject.kind !== "model") throw new Error(subject.kind);
const { model: name } = subject.workload;
console.log(`typescript client: run ${data.run_id} of ${name} is ${run.data.state}`);
