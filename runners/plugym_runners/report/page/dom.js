"use strict";
// Making elements. Text enters the page here and only as text: nothing assigns markup anywhere in these scripts.

const D = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

function choice(options, selected, changed, name) {
  const select = make("select", { "aria-label": name, onchange: () => changed(select.value) });
  select.append(...options.map(([value, label]) => make("option", { value }, label)));
  select.value = selected;
  return select;
}

function badge(text, kind = "") {
  return make("span", { class: `badge ${kind}` }, text);
}

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return value.toExponential(2);
  return String(Number(value.toPrecision(4)));
}

function sourceName(index) {
  const source = D.sources[index];
  return source.kind === "eval" ? `evaluation at ${source.step}` : `${source.kind} ${source.step}`;
}

const text = (index) => D.texts[index];
