"""The page at ``/docs``: reads ``/openapi.json`` and lists what there is. Loads nothing else."""

from __future__ import annotations

DOCS_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Magnetar REST</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
 body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
        color: #1d2430; background: #fff }
 h2 { margin: 2rem 0 .5rem; text-transform: capitalize; font-size: 1.1rem }
 details { border: 1px solid #d9dee7; border-radius: 6px; margin: .35rem 0; padding: .4rem .7rem }
 summary { cursor: pointer; font-family: ui-monospace, monospace }
 summary span { color: #667; font-family: system-ui, sans-serif; margin-left: .8rem }
 b { display: inline-block; width: 4.5rem } .GET { color: #06604f } .PUT { color: #7a4b00 }
 .POST { color: #1c4b9b } .DELETE { color: #a1192b }
 input { font: inherit; margin: .15rem .6rem .15rem .2rem; padding: .1rem .4rem }
 pre { background: #f4f6f9; padding: .6rem; overflow: auto; max-height: 24rem;
       white-space: pre-wrap }
</style></head><body>
<h1>Magnetar REST</h1>
<p>The description for programs is <a href="openapi.json">openapi.json</a>, metrics are at
<a href="metrics">metrics</a>.</p><main></main>
<script>
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children); return made; };
const send = async (method, path, fields, body, output) => {
  const query = new URLSearchParams();
  for (const { about, input } of fields) {
    const value = input.value;
    if (about.in === "path") path = path.replace(`{${about.name}}`, encodeURIComponent(value));
    else if (value) query.set(about.name, value); }
  if (query.size) path += "?" + query;
  const options = { method };
  if (body) { options.body = body.value; options.headers = { "content-type": "application/json" }; }
  const answer = await fetch(path, options);
  const text = await answer.text();
  let shown = text;
  try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: as it came */ }
  output.textContent = `${method} ${path}\\n${answer.status} ${answer.statusText}\\n\\n${shown}`; };
const operation = (method, path, about) => {
  const output = element("pre", { hidden: true });
  const fields = (about.parameters ?? []).map(about => ({ about, input: element("input", {
    placeholder: about.in, value: about.schema.default ?? "" }) }));
  const body = about.requestBody ? element("input", { placeholder: "body" }) : null;
  const button = element("button", { textContent: "Send", onclick: () => {
    output.hidden = false; send(method, path, fields, body, output); } });
  return element("details", {},
    element("summary", {}, element("b", { className: method, textContent: method }), path,
      element("span", { textContent: about.description ?? "" })),
    ...fields.map(({ about, input }) => element("label", {}, about.name, input)),
    ...(body ? [element("label", {}, "body", body)] : []), button, output); };
fetch("openapi.json").then(answer => answer.json()).then(({ paths }) => {
  const byTag = new Map();
  for (const [path, methods] of Object.entries(paths))
    for (const [method, about] of Object.entries(methods)) {
      const tag = about.tags?.[0] ?? "other";
      if (!byTag.has(tag)) byTag.set(tag, []);
      byTag.get(tag).push(operation(method.toUpperCase(), path, about)); }
  for (const [tag, operations] of byTag)
    document.querySelector("main").append(element("h2", { textContent: tag }), ...operations); });
</script></body></html>
"""
